"""Embedding and evaluation over ranks: exactly what one process finds."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.distributed.workers import Workers

from softtriple.data import Split, Vectors
from softtriple.metrics import Report
from softtriple.metrics.evaluate import Embeddings, evaluate
from softtriple.models import Encoder, EncoderConfig
from softtriple.models.features import Reading, embed_share, embed_together, item_feed
from softtriple.training import Run


def embeddings(items: int, seed: int, dim: int) -> Embeddings:
    """Coarse numbers, so that many similarities tie; classes of very different size."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(30, (items,), generator=random).square() // 30
    return Embeddings(torch.randint(-2, 3, (items, dim), generator=random).float(), labels)


def found(items: int, with_gallery: bool, dim: int, budget: int) -> Report:
    gallery = embeddings(150, 1, dim) if with_gallery else None
    report = evaluate(embeddings(items, 0, dim), gallery=gallery, recall_at=(1, 5), bootstrap=20, memory_budget=budget)
    return dataclasses.replace(report, seconds={})


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize(
    ("items", "with_gallery", "dim", "budget"),
    [(200, False, 4, 1 << 30), (200, True, 4, 1 << 30), (190, False, 600, 1 << 30), (200, False, 4, 1 << 16)],
    ids=["among themselves", "gallery", "shared tiles in one process", "small tiles"],
)
def test_reports_are_equal(
    workers: Workers, world_size: int, items: int, with_gallery: bool, dim: int, budget: int
) -> None:
    expected = found(items, with_gallery, dim, budget)
    assert workers.run(world_size, found, items, with_gallery, dim, budget) == [expected] * world_size


def vectors_of(items: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    encoder = Encoder(EncoderConfig(backbone="mlp", in_features=6, hidden=(8,), dim=4))
    values = np.random.default_rng(0).standard_normal((items, 6)).astype(np.float32)
    split = Split(Vectors(values), np.zeros(items, dtype=np.int64))
    feed = item_feed(encoder, split, Reading())
    return embed_together(encoder, feed), embed_share(encoder, feed)


@pytest.mark.parametrize("items", [300, 64, 7])
def test_vectors_are_equal_to_the_last_bit(workers: Workers, items: int) -> None:
    expected, _ = vectors_of(items)
    found = workers.run(3, vectors_of, items)
    assert all(torch.equal(together, expected) for together, _ in found)
    assert torch.equal(torch.cat([share for _, share in found]), expected)


def of_run(run: Path, data: str, out: Path) -> dict[str, Any]:
    loaded = Run.load(run)
    loaded.write_embeddings(data, out)
    report: dict[str, Any] = json.loads(loaded.evaluate().to_json())
    return {key: value for key, value in report.items() if key != "seconds"}


def test_the_verbs_over_ranks(workers: Workers, tmp_path: Path) -> None:
    from tests.distributed.test_training import SMALL, run

    labels = np.repeat(np.arange(6), 30)
    values = np.random.default_rng(0).standard_normal((180, 5)) + labels[:, None]
    data = str(tmp_path / "vectors.npz")
    np.savez(data, vectors=values.astype(np.float32), labels=labels)
    run(data, tmp_path / "run", [*SMALL, "train.epochs=1"])
    expected = of_run(tmp_path / "run", data, tmp_path / "one.npz")
    assert workers.run(2, of_run, tmp_path / "run", data, tmp_path / "two.npz") == [expected] * 2
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "two.npz") as two:
        assert (one["vectors"] == two["vectors"]).all()
        assert len(one["vectors"]) == 180
