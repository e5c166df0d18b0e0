"""Whole runs over several ranks: the numbers, files and states of one process."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.distributed.workers import Workers
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config, with_settings
from softtriple.errors import UserError
from softtriple.losses import LOSSES, SoftTripleLoss, sample_classes, shard
from softtriple.progress import Reporter
from softtriple.training import fit
from softtriple.training.checkpoint import Position, load_checkpoint, read_state, save_checkpoint
from softtriple.training.directory import RunDir
from softtriple.training.fit import LOOK_EVERY, row_batches
from softtriple.training.optim import RowAdam
from softtriple.training.train import train

# 39 items of 3 classes to train on: the last batch of each epoch has one, and most ranks have nothing of it.
SMALL = ["train.epochs=3", "train.batch_size=19", "model.dim=9", "model.hidden=[12, 12, 12]", "train.milestones=[2]"]
SEVERAL = ["loss.centers_per_class=2"]


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    file = tmp_path / "vectors.npz"
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 13)
    values = 3 * random.standard_normal((6, 10))[labels] + random.standard_normal((len(labels), 10))
    np.savez(file, vectors=values.astype(np.float32), labels=labels)
    return str(file)


def run(dataset: str, out: Path, settings: list[str], stop_in: int | None = None, resume: bool = False) -> None:
    """A run by the ranks of this group; it ends as if by Ctrl-C before the second batch of epoch ``stop_in``."""

    def interrupted(loss: object, labels: object, config: object, epoch: int) -> Iterator[Any]:
        for number, rows in enumerate(row_batches(loss, labels, config, epoch)):  # type: ignore[arg-type]
            if epoch == stop_in and number == 1:
                raise KeyboardInterrupt
            yield rows

    fit.row_batches = interrupted  # type: ignore[assignment]
    fit.LOOK_EVERY = 1  # a look at every step is a chance to save it
    try:
        train(dataset, out=out, config=with_settings(Config(), settings), reporter=Reporter(quiet=True), resume=resume)
    except KeyboardInterrupt:
        assert stop_in is not None
    finally:
        fit.row_batches, fit.LOOK_EVERY = row_batches, LOOK_EVERY


def losses(out: Path) -> list[float]:
    return [entry["loss"] for entry in RunDir(out).read_log()]


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return {key: value for key, value in found.items() if key != "seconds"}


def learned(out: Path) -> dict[str, Tensor]:
    centers = load_file(out / "centers.safetensors") if (out / "centers.safetensors").exists() else {}
    return load_file(out / "encoder" / "model.safetensors") | centers


def assert_same_run(one: Path, other: Path) -> None:
    # Adam makes a step of the same length from a gradient that is nothing but rounding: weights may differ by a little.
    assert losses(other) == pytest.approx(losses(one), rel=1e-4)
    torch.testing.assert_close(learned(other), learned(one), rtol=1e-4, atol=1e-4)
    assert {path.name for path in other.iterdir()} == {path.name for path in one.iterdir()}


@pytest.mark.parametrize("world_size", [2, 4])
def test_the_number_of_ranks_changes_nothing(workers: Workers, vectors: str, tmp_path: Path, world_size: int) -> None:
    """Also with more ranks than classes (4 and 3), and with accumulated batches."""
    settings = [*SMALL, *SEVERAL, "train.accumulate=2", "train.evaluate_every=2"]
    run(vectors, tmp_path / "one", settings)
    workers.run(world_size, run, vectors, tmp_path / "several", settings)
    assert_same_run(tmp_path / "one", tmp_path / "several")
    assert report(tmp_path / "several")["recall"] == report(tmp_path / "one")["recall"]
    assert (tmp_path / "several" / "config.toml").read_text() == (tmp_path / "one" / "config.toml").read_text()


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"softtriple"}))
def test_every_loss_trains_over_ranks(workers: Workers, vectors: str, tmp_path: Path, name: str) -> None:
    settings = [*SMALL, f"loss.name={name}", "train.epochs=2"]
    run(vectors, tmp_path / "one", settings)
    workers.run(2, run, vectors, tmp_path / "two", settings)
    assert_same_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_a_run_goes_on_with_another_number_of_ranks(
    workers: Workers, vectors: str, tmp_path: Path, before: int, after: int
) -> None:
    settings = [*SMALL, *SEVERAL, "train.checkpoint_minutes=0"]
    run(vectors, tmp_path / "whole", settings)
    workers.run(before, run, vectors, tmp_path / "broken", settings, 1)
    (newest,) = sorted((tmp_path / "broken" / "checkpoints").iterdir())[-1:]
    state = torch.load(newest, weights_only=True)
    assert (state["position"]["epoch"], state["position"]["batch"]) == (1, 1)
    assert state["loss"]["centers"].shape == (3, 2, 9)
    (moments,) = [entry for entry in state["optimizer"]["state"].values() if entry["exp_avg"].shape == (3, 2, 9)]
    assert (moments["exp_avg_sq"] > 0).any(dim=-1).all()
    workers.run(after, run, vectors, tmp_path / "broken", settings, None, True)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize("world_size", [1, 2])
def test_sampled_classes_resume_to_the_same_numbers(
    workers: Workers, vectors: str, tmp_path: Path, world_size: int
) -> None:
    """Six classes to train on, two examples a batch: three or fewer classes take part in a step."""
    settings = [
        *SMALL,
        *SEVERAL,
        "loss.sample_rate=0.4",
        "train.batch_size=2",
        "data.split=instances",
        "train.epochs=2",
    ]
    workers.run(world_size, run, vectors, tmp_path / "whole", settings)
    workers.run(world_size, run, vectors, tmp_path / "broken", settings, 1)
    workers.run(world_size, run, vectors, tmp_path / "broken", settings, None, True)
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")
    torch.testing.assert_close(learned(tmp_path / "broken"), learned(tmp_path / "whole"), rtol=0, atol=0)
    assert learned(tmp_path / "whole")["centers"].shape == (6, 2, 9)


def sampled_state(before: Path | None, after: Path) -> None:
    """Save a few steps over sampled classes, or what another number of ranks has saved."""
    torch.manual_seed(0)
    encoder, loss = nn.Linear(4, 4), sample_classes(shard(SoftTripleLoss(7, 4, 2)), 0.3)
    optimizer = RowAdam([*encoder.parameters(), *loss.parameters()])
    scaler = torch.amp.GradScaler(enabled=False)
    if before is not None:
        load_checkpoint(before, encoder, loss, optimizer, scaler)
    else:
        for label in (0, 3, 6, 6):
            optimizer.zero_grad()
            loss(encoder(torch.randn(1, 4)), torch.tensor([label])).backward()
            optimizer.step()
    save_checkpoint(after, Position(1), encoder, loss, optimizer, scaler)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_each_class_keeps_its_steps_with_another_number_of_ranks(
    workers: Workers, tmp_path: Path, before: int, after: int
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    workers.run(before, sampled_state, None, tmp_path / "first")
    workers.run(after, sampled_state, tmp_path / "first", tmp_path / "second")
    first, second = (read_state(next((tmp_path / name).iterdir())) for name in ("first", "second"))
    steps = first["optimizer"]["state"][2]["step"]
    assert steps.shape == (7,)
    assert len(steps.unique()) > 2
    torch.testing.assert_close(second, first, rtol=0, atol=0)


def test_sampled_classes_need_a_loss_that_has_them(vectors: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sample_rate = 0.5: proxy-nca .*softtriple and softmax-norm"):
        run(vectors, tmp_path / "run", [*SMALL, "loss.name=proxy-nca", "loss.sample_rate=0.5"])
    with pytest.raises(ValueError, match=r"sample_rate = 2.0"):
        run(vectors, tmp_path / "other", [*SMALL, "loss.sample_rate=2"])


def kept_files(folder: str, out: Path, cache: Path) -> tuple[list[int], int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTTRIPLE_CACHE", str(cache))
        settings = ["train.epochs=1", "model.dim=8", "model.backbone=conv-small", "model.input_size=28"]
        run(folder, out, [*settings, "data.augment=crop", "model.trainable=last:2", "train.views=2"])
    return sorted(path.stat().st_ino for path in cache.rglob("*.npy")), dist.rank()


def test_what_is_kept_is_made_by_one_rank(workers: Workers, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for label in range(4):
        (tmp_path / "pictures" / str(label)).mkdir(parents=True)
        for item in range(5):
            pixels = random.integers(0, 255, (30, 34, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / str(label) / f"{item}.png")
    found = workers.run(3, kept_files, str(tmp_path / "pictures"), tmp_path / "run", tmp_path / "cache")
    assert [rank for _, rank in found] == [0, 1, 2]
    assert all(len(times) == 3 for times, _ in found)  # two augmented views to train on, one still view to test
    assert found[0][0] == found[1][0] == found[2][0]


def clash(vectors: str, out: Path) -> str:
    try:
        run(vectors, out, [*SMALL, *SEVERAL])
    except (OSError, RuntimeError, UserError) as error:  # the others lose their connection to the first
        return str(error) if dist.is_main() else ""
    return "trained"


def test_a_run_is_not_overwritten(workers: Workers, vectors: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "something").touch()
    first, second = workers.run(2, clash, vectors, tmp_path / "run")
    assert "already exists" in first
    assert second == ""


def without_room(vectors: str, out: Path) -> str:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        return clash(vectors, out)


def test_a_disk_without_room_for_the_centers_is_an_error_of_the_folder(
    workers: Workers, vectors: str, tmp_path: Path
) -> None:
    first, second = workers.run(2, without_room, vectors, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    assert first == f"{folder}: cannot be written (No space left on device). Existing files are unchanged."
    assert second == ""
    assert list(folder.iterdir()) == []
