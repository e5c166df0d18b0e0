"""Tiny training runs that write every kind of file, and a comparison of their results."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.abuse.children import Ending, Fault, softtriple
from PIL import Image


class Scenario(NamedTuple):
    """Data and settings of a run, with its own folder and cache."""

    name: str
    folder: Path
    data: Path
    settings: tuple[str, ...]

    def train(self, run: str, *more: str, fault: Fault | None = None, **how: Any) -> Ending:
        """Start or resume the run called ``run``."""
        out = self.folder / run
        if "--resume" in more:
            out.mkdir(exist_ok=True)  # it may have been killed before it did so itself
        settings = [word for setting in self.settings for word in ("--set", setting)]
        arguments = ("train", self.data, "--out", out, *settings, *more)
        return softtriple(*arguments, cache=self.folder / f"{run}-cache", watched=[out], fault=fault, **how)

    def forget(self, run: str) -> None:
        """Remove a run and its cache."""
        for folder in (run, f"{run}-cache"):
            shutil.rmtree(self.folder / folder, ignore_errors=True)

    def result(self, run: str) -> dict[str, str]:
        """Digests of what a finished run wrote, without times: equal results are equal to the last bit."""
        return result(self.folder / run)


def scenarios(folder: Path) -> list[Scenario]:
    """Two runs: vectors with SoftTriple and a checkpoint after every step; images with HTL, the image cache and the
    cached features of frozen layers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 20)
    vectors = 2 * generator.standard_normal((6, 8))[labels] + generator.standard_normal((120, 8))
    np.savez(folder / "vectors.npz", vectors=vectors.astype(np.float32), labels=labels)
    for label in range(4):
        place = folder / "pictures" / str(label)
        place.mkdir(parents=True, exist_ok=True)
        for number in range(8):
            pixels = np.clip(60 * label + generator.normal(30, 30, (48, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{number}.png")
    for name in ("vectors", "pictures-runs"):
        (folder / name).mkdir(exist_ok=True)
    common = ("train.evaluate_every=1", "train.checkpoint_minutes=0", "model.dim=4")
    return [
        Scenario("vectors", folder / "vectors", folder / "vectors.npz", (*common, "train.epochs=3")),
        Scenario(
            "pictures",
            folder / "pictures-runs",
            folder / "pictures",
            (
                *common,
                "train.epochs=2",
                "train.views=2",
                "train.batch_size=8",
                "model.backbone=conv-small",
                "model.trainable=last:1",
                "loss.name=htl",
            ),
        ),
    ]


def result(run: Path) -> dict[str, str]:
    """Digests of the files in the run directory ``run``, without times and the name of the directory."""
    digests = {}
    for name in ("encoder/encoder.json", "encoder/model.safetensors", "centers.safetensors", "config.toml"):
        if (run / name).exists():
            digests[name] = hashlib.sha256((run / name).read_bytes()).hexdigest()
    report = json.loads((run / "report.json").read_text())
    digests["report.json"] = json.dumps({**report, "seconds": None}, sort_keys=True)
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    digests["log.jsonl"] = json.dumps([{**entry, "items_per_second": None} for entry in entries], sort_keys=True)
    newest = max((run / "checkpoints").glob("epoch-*.pt"))
    # Not the bytes of the file: pickle stores equal strings differently if they are the same object.
    digests[newest.name] = _digest(torch.load(newest, weights_only=True))
    digests["left over"] = str(sorted(path.name for path in run.rglob(".softtriple-partial-*")))
    assert "<html" in (run / "report.html").read_text()
    return digests


def _digest(state: object) -> str:
    match state:
        case torch.Tensor():
            return hashlib.sha256(state.numpy().tobytes()).hexdigest()
        case dict():
            return str({key: _digest(value) for key, value in state.items()})
        case list() | tuple():
            return str([_digest(value) for value in state])
        case _:
            return repr(state)
