"""The centres of a run: counted, told and drawn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from softtriple.config import Config, LossConfig
from softtriple.models import Encoder, EncoderConfig
from softtriple.report.centers import CenterCounts, count_centers, draw, text
from softtriple.training.directory import RunDir


def make_run(path: Path, centers: torch.Tensor | None, loss: str = "softtriple") -> Path:
    run = RunDir(path)
    path.mkdir()
    run.write_config(Config(dataset="made by hand", loss=LossConfig(name=loss)))
    Encoder(EncoderConfig(backbone="linear", dim=4, in_features=3), ["one", "two", "three"]).save(run.encoder)
    if centers is not None:
        save_file({"centers": centers}, run.centers_file)
    return path


def test_merged_centers_count_once(tmp_path: Path) -> None:
    north, east = torch.eye(4)[:2]
    nearly = north + 0.01 * east
    centers = torch.stack(
        [torch.stack(group) for group in ([north] * 3, [north, nearly, east], list(torch.eye(4)[:3]))]
    )
    counts = count_centers(make_run(tmp_path / "run", centers))
    assert list(counts.distinct.items()) == [("three", 3), ("two", 2), ("one", 1)]
    assert (counts.most, counts.mean) == (3, 2.0)
    told = text(counts).splitlines()
    assert told[1].split() == ["three", "3", "●●●"]
    assert told[-1] == "3 classes, 2.0 of 3 centres distinct on average: 3 in 1, 2 in 1, 1 in 1"


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", torch.eye(4)[None].expand(3, 4, 4).contiguous())
    file = RunDir(run).centers_file
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"centers\.safetensors: not a readable safetensors file"):
        count_centers(run)


def test_names_of_classes_are_plain() -> None:
    assert text(CenterCounts({"red\x1b[31m\nline": 1}, 2)).splitlines()[1] == "red [31m line    1  ●"


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_chart(tmp_path: Path, suffix: str) -> None:
    counts = count_centers(
        make_run(tmp_path / "run", torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5, 4))))
    )
    file = tmp_path / f"chart{suffix}"
    draw(counts, file)
    assert file.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    with pytest.raises(ValueError, match=r"a chart is written as .svg or .png"):
        draw(counts, tmp_path / "chart.gif")


@pytest.mark.parametrize("centers", [None, torch.ones(3, 4), torch.ones(2, 5, 4)])
def test_centers_that_are_missing_or_of_other_classes(tmp_path: Path, centers: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match=r"centers\.safetensors: it is missing, or not of the classes of this run"):
        count_centers(make_run(tmp_path / "run", centers))


def test_a_loss_without_centers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the loss semi-hard has no centres to count; softtriple has"):
        count_centers(make_run(tmp_path / "run", None, loss="semi-hard"))
