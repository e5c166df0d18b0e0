"""Two runs on the items of both stores, against plain loops."""

import threading
import time

import numpy as np
import pytest
import torch
from tests.gallery.memory_store import MemoryStore
from tests.gallery.test_analysis import random_store

from softtriple.errors import UserError
from softtriple.gallery.analysis import take_snapshot
from softtriple.gallery.compare import Comparing, compare


def noisy(store: MemoryStore, seed: int) -> MemoryStore:
    """The store of another encoder: the items but the first in another order, with other vectors."""
    stored = [one for items, _ in store.scan() for one in store.get([item.id for item in items])][:0:-1]
    noise = np.random.default_rng(seed).standard_normal((len(stored), 9))
    noise[:, :6] += 4 * np.stack([one.vector for one in stored])
    return MemoryStore([one.item for one in stored], noise / np.linalg.norm(noise, axis=1, keepdims=True), "other")


def test_both_are_measured_on_the_items_of_both() -> None:
    store = random_store(90, 5)
    other = noisy(store, 1)
    snapshot = take_snapshot(store, 1000)
    compared = compare(snapshot, other)
    assert compared.rows.tolist() == list(range(1, 90))
    names = [snapshot.items[row].id for row in compared.rows]
    for which, vectors in enumerate(
        (np.stack([one.vector for one in store.get(names)]), np.stack([one.vector for one in other.get(names)]))
    ):
        scores = vectors @ vectors.T
        np.fill_diagonal(scores, -2)
        labels = snapshot.labels[compared.rows].numpy()
        right = labels[scores.argmax(axis=1)] == labels
        assert compared.right[which].tolist() == right.tolist()
        assert compared.reports[which].recall[1] == pytest.approx(right.mean())
    difference = compared.differences["recall@1"]
    assert difference.mean == pytest.approx(compared.reports[1].recall[1] - compared.reports[0].recall[1])
    assert difference.low <= difference.mean <= difference.high
    for which in range(2):
        only = compared.only(which)
        assert set(only) == set(torch.nonzero(compared.right[which] & ~compared.right[1 - which])[:, 0].tolist())
        confidence = [float(compared.neighbors[1 - which].scores[place, 0]) for place in only]
        assert confidence == sorted(confidence, reverse=True)


def test_stores_without_common_items_cannot_be_compared() -> None:
    store = random_store(20, 3)
    other = noisy(store, 1)
    other.delete([item.id for items, _ in store.scan() for item in items])
    with pytest.raises(UserError, match="0 items in common"):
        compare(take_snapshot(store, 100), other)


def test_a_comparison_is_made_once_per_snapshot_and_its_errors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = random_store(30, 3)
    snapshot, other = take_snapshot(store, 100), noisy(store, 1)
    go_on, compared = threading.Event(), []

    def patient(*given):
        compared.append(given)
        assert go_on.wait(30)
        return compare(*given)

    monkeypatch.setattr("softtriple.gallery.compare.compare", patient)
    monkeypatch.setattr("softtriple.gallery.compare.SHORT", 0.01)
    comparing = Comparing(other)
    assert comparing.result(snapshot) is None
    go_on.set()
    deadline = time.monotonic() + 30
    while (result := comparing.result(snapshot)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert result.rows.tolist() == list(range(1, 30))
    assert comparing.result(snapshot) is result
    assert len(compared) == 1
    monkeypatch.setattr("softtriple.gallery.compare.SHORT", 30)
    other.delete([item.id for item in snapshot.items])
    store.delete([snapshot.items[0].id])
    with pytest.raises(UserError, match="0 items in common"):
        comparing.result(take_snapshot(store, 100))
