"""Wrong arguments of `train` end before any data are read."""

import errno
from pathlib import Path

import numpy as np
import pytest

from softtriple.config import Config
from softtriple.data import make_benchmark
from softtriple.errors import UserError
from softtriple.progress import Reporter
from softtriple.training.arguments import check_data
from softtriple.training.train import train

QUIET = Reporter(quiet=True)
VALUES, LABELS = np.eye(12, 5, dtype=np.float32), np.repeat(np.arange(4), 3)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"loss": "sofftriple"}, ["sofftriple", "softtriple"]),
        ({"options": {"gama": 0.2}}, ["gama", "gamma"]),
        ({"backbone": "eficientnet-lite1"}, ["eficientnet-lite1", "did you mean 'efficientnet-lite1'"]),
        ({"trainable": "first:2"}, ["first:2", "last:N"]),
        ({"sample_rate": 2.0}, ["sample_rate", "2.0"]),
        ({"epoch": 3}, ["epoch", "epochs"]),
        ({"loss": "margin", "centers_per_class": 3}, ["margin", "centers_per_class"]),
        ({"loss": "softmax-norm", "centers_per_class": 2}, ["softmax-norm", "centers_per_class = 2"]),
        ({"options": {"alpha": 3}}, ["softtriple", "alpha"]),
        ({"backbone": "timm:resnet81"}, ["timm:resnet81", "timm:resnet18"]),
        ({"schedule": "cosine", "milestones": (3, 5)}, ["milestones = [3, 5]", "train.schedule=step"]),
    ],
)
def test_wrong_arguments_fail_before_data_are_read(tmp_path: Path, settings: dict, facts: list[str]) -> None:
    """The data do not exist: whoever read them first would complain about that instead."""
    with pytest.raises(UserError) as caught:
        train("cub:nowhere", out=tmp_path / "run", reporter=QUIET, **settings)
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)
    assert not (tmp_path / "run").exists()


def test_an_output_folder_that_cannot_be_written_fails_first(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file is a file, not a folder"):
        train("cub:nowhere", out=tmp_path / "file" / "run", reporter=QUIET)


def test_an_output_folder_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdir(self: Path, *arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(UserError, match=r"run: cannot be created \(Read-only file system\).*--out"):
        train((VALUES, LABELS), out=tmp_path / "run", reporter=QUIET)


@pytest.mark.parametrize("data", [np.eye(4), [np.eye(4), [0, 0, 1, 1]], (np.eye(4),)])
def test_data_are_a_source_or_values(data: object) -> None:
    with pytest.raises(UserError, match="expected a source"):
        check_data(Config(), data)


def test_a_setting_without_effect_on_values_is_an_error() -> None:
    with pytest.raises(UserError, match=r"data\.label = 'kind' has no effect on a tuple"):
        train((VALUES, LABELS), label="kind", reporter=QUIET)
    with pytest.raises(UserError, match=r"data\.split = 'classes' has no effect on a Benchmark"):
        train(make_benchmark(VALUES, LABELS), split="classes", reporter=QUIET)
