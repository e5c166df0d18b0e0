"""Retrieval metrics against their definitions as loops, and against pytorch-metric-learning."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils import accuracy_calculator as pml

from softtriple.metrics.retrieval import map_at_r, precision_at_1, r_precision, recall_at_k


def by_the_book(neighbor_labels, label, positives):
    """R-precision and average precision at R of one query, as sums. Never optimise this."""
    hits, total = 0, 0.0
    for rank, neighbor in enumerate(neighbor_labels[:positives], start=1):
        if neighbor == label:
            hits += 1
            total += hits / rank
    return hits / positives, total / positives


@settings(deadline=None)
@given(st.data())
def test_definitions(data):
    row = st.lists(st.integers(0, 2), min_size=4, max_size=4)
    neighbors = data.draw(st.lists(row, min_size=1, max_size=6))
    labels = [data.draw(st.integers(0, 2)) for _ in neighbors]
    positives = [1, *(data.draw(st.integers(0, 4)) for _ in neighbors[1:])]
    values = [by_the_book(n, y, r) for n, y, r in zip(neighbors, labels, positives, strict=True) if r > 0]
    arguments = torch.tensor(neighbors), torch.tensor(labels), torch.tensor(positives)
    assert r_precision(*arguments) == pytest.approx(sum(rp for rp, _ in values) / len(values))
    assert map_at_r(*arguments) == pytest.approx(sum(ap for _, ap in values) / len(values))


def test_pytorch_metric_learning_agrees():
    torch.manual_seed(0)
    labels = torch.arange(5).repeat_interleave(9)
    neighbors = torch.randint(5, (45, 8))
    counts = torch.unique(labels, return_counts=True)
    arguments = neighbors, labels[:, None], True, counts, False, False, torch.eq
    positives = torch.full((45,), 8)
    assert r_precision(neighbors, labels, positives) == pytest.approx(pml.r_precision(*arguments), abs=1e-12)
    theirs = pml.mean_average_precision(*arguments, at_r=True)
    assert map_at_r(neighbors, labels, positives) == pytest.approx(theirs, abs=1e-12)
    theirs = pml.precision_at_k(neighbors, labels[:, None], 1, False, False, torch.eq)
    assert precision_at_1(neighbors, labels) == pytest.approx(theirs, abs=1e-12)


def test_recall_grows_with_k_and_one_hit_is_enough():
    neighbors, labels = torch.tensor([[1, 0, 0], [2, 1, 1], [0, 0, 0]]), torch.tensor([0, 2, 1])
    assert [recall_at_k(neighbors, labels, k) for k in (1, 2, 3)] == [1 / 3, 2 / 3, 2 / 3]


def test_too_few_neighbours_are_an_error():
    with pytest.raises(ValueError, match="R = 3"):
        map_at_r(torch.tensor([[0, 0]]), torch.tensor([0]), torch.tensor([3]))
