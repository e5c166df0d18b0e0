"""The centres of a run: counted, printed and drawn."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from softtriple.config import Config, LossConfig, ModelConfig
from softtriple.errors import UserError
from softtriple.losses import build_loss
from softtriple.models import Encoder, EncoderConfig
from softtriple.report.centers import CenterCounts, count_centers, draw, text
from softtriple.training import Run
from softtriple.training.directory import RunDir

CLASSES = ("one", "two", "three")


def make_run(centers: torch.Tensor | None, loss_name: str = "softtriple") -> Run:
    options = {} if centers is None else {"centers_per_class": centers.shape[1]}
    loss = build_loss(loss_name, len(CLASSES), 4, **options)
    if centers is not None:
        loss.centers = torch.nn.Parameter(centers)
    encoder = Encoder(EncoderConfig(backbone="linear", dim=4, in_features=3), CLASSES)
    return Run(config=Config(loss=LossConfig(name=loss_name)), encoder=encoder, loss=loss)


def save_run(path: Path, centers: torch.Tensor | None) -> Path:
    directory = RunDir(path)
    path.mkdir()
    loss = LossConfig(name="softtriple", centers_per_class=3)
    directory.write_config(Config(dataset="made by hand", model=ModelConfig(dim=4), loss=loss))
    Encoder(EncoderConfig(backbone="linear", dim=4, in_features=3), CLASSES).save(directory.encoder)
    if centers is not None:
        save_file({"centers": centers}, directory.centers_file)
    return path


def test_merged_centers_count_once(tmp_path: Path) -> None:
    north, east = torch.eye(4)[:2]
    nearly = north + 0.01 * east
    centers = torch.stack(
        [torch.stack(group) for group in ([north] * 3, [north, nearly, east], list(torch.eye(4)[:3]))]
    )
    counts = count_centers(make_run(centers))
    assert list(counts.distinct.items()) == [("three", 3), ("two", 2), ("one", 1)]
    assert (counts.most, counts.mean) == (3, 2.0)
    lines = text(counts).splitlines()
    assert lines[1].split() == ["three", "3", "●●●"]
    assert lines[-1] == "3 classes, 2.0 of 3 centres distinct on average: 3 in 1, 2 in 1, 1 in 1"
    assert count_centers(Run.load(save_run(tmp_path / "run", centers))) == counts


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = save_run(tmp_path / "run", torch.eye(4)[:3].expand(3, 3, 4).contiguous())
    file = RunDir(path).centers_file
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"centers\.safetensors"):
        count_centers(Run.load(path))


@pytest.mark.parametrize("centers", [None, torch.ones(3, 4), torch.ones(2, 3, 4)])
def test_centers_that_are_missing_or_of_other_classes(tmp_path: Path, centers: torch.Tensor | None) -> None:
    with pytest.raises(UserError, match=r"centers\.safetensors"):
        count_centers(Run.load(save_run(tmp_path / "run", centers)))


def test_class_names_are_printed_on_one_line() -> None:
    assert text(CenterCounts({"red\x1b[31m\nline": 1}, 2)).splitlines()[1] == "red [31m line    1  ●"


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_chart(tmp_path: Path, suffix: str) -> None:
    counts = count_centers(make_run(torch.randn(3, 5, 4)))
    file = tmp_path / f"chart{suffix}"
    draw(counts, file)
    assert file.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    with pytest.raises(UserError, match=r"chart\.gif.*\.svg or \.png"):
        draw(counts, tmp_path / "chart.gif")


def test_a_loss_without_centers() -> None:
    with pytest.raises(UserError, match="semi-hard has no centres"):
        count_centers(make_run(None, "semi-hard"))
