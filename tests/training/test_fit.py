"""What a run tells TensorBoard, which need not be installed to test it."""

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from softtriple.config import Config, with_settings
from softtriple.progress import Reporter
from softtriple.training.run import RunDir
from softtriple.training.train import train


def run(folder: Path) -> RunDir:
    labels = np.repeat(np.arange(4), 6)
    vectors = np.eye(8, dtype=np.float32)[labels] + 0.1 * np.random.default_rng(0).standard_normal((24, 8))
    np.savez(folder / "vectors.npz", vectors=vectors.astype(np.float32), labels=labels)
    settings = ["train.tensorboard=true", "train.epochs=2", "train.evaluate_every=1", "model.dim=4"]
    config = with_settings(Config(dataset=str(folder / "vectors.npz")), settings)
    return train(config, RunDir(folder / "run"), Reporter(quiet=True)).run


def test_tensorboard_gets_the_numbers_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, int]] = []
    folders: set[str] = set()

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            folders.add(folder)

        def __enter__(self) -> "SummaryWriter":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def add_scalar(self, name: str, value: float, step: int) -> None:
            told.append((name, value, step))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    finished = run(tmp_path)
    assert folders == {str(finished.path / "tensorboard")}
    plain = [
        (name, value, entry["epoch"])
        for entry in finished.read_log()
        for name, value in entry.items()
        if isinstance(value, int | float) and name != "epoch"
    ]
    assert told == plain
    assert {name for name, _, _ in told} >= {"loss", "items_per_second", "distinct_centers", "test_recall@1"}


def test_without_tensorboard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'softtriple\[tensorboard\]'"):
        run(tmp_path)
    assert not (tmp_path / "run").exists()
