"""Ranks by counting against ranks by sorting, and against `nearest`."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softtriple.metrics.ranks import first_hit_ranks
from softtriple.search import knn, nearest


def by_the_book(queries, labels, gallery=None, gallery_labels=None):
    """Walk down the sorted list until the class is right. Never optimise this."""
    among = gallery is None
    items, item_labels = (queries, labels) if among else (gallery, gallery_labels)
    queries, items = queries.double().numpy(), items.double().numpy()
    ranks = []
    for i, query in enumerate(queries):
        order = sorted((-float((query * item).sum()), j) for j, item in enumerate(items) if not (among and i == j))
        hits = [rank for rank, (_, j) in enumerate(order, start=1) if item_labels[j] == labels[i]]
        ranks.append(hits[0] if hits else 0)
    return torch.tensor(ranks)


def crowded(count, dim, distinct, num_classes, seed):
    random = np.random.default_rng(seed)
    pool = torch.nn.functional.normalize(torch.from_numpy(random.normal(size=(distinct, dim))).float(), dim=1)
    return pool[random.integers(distinct, size=count)], torch.from_numpy(random.integers(num_classes, size=count))


@pytest.fixture(params=[2048, 8], ids=["one tile", "many tiles"])
def tile(request, monkeypatch):
    monkeypatch.setattr(knn, "TILE", request.param)


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def coarse(request, monkeypatch):
    monkeypatch.setattr(knn, "coarse_pays", lambda queries, gallery: request.param)


@settings(deadline=None, max_examples=200)
@given(st.data(), st.booleans())
def test_integer_vectors_with_ties(data, coarse):
    dim = data.draw(st.integers(1, 3))
    item = st.tuples(st.lists(st.integers(-2, 2), min_size=dim, max_size=dim), st.integers(-1, 3))
    sets = []
    for _ in range(2):
        vectors, labels = zip(*data.draw(st.lists(item, min_size=1, max_size=14)), strict=True)
        sets.append((torch.tensor(vectors, dtype=torch.float32), torch.tensor(labels)))
    (queries, labels), (gallery, gallery_labels) = sets
    with mock.patch.object(knn, "coarse_pays", return_value=coarse):
        assert first_hit_ranks(queries, labels).equal(by_the_book(queries, labels))
        found = first_hit_ranks(queries, labels, gallery=gallery, gallery_labels=gallery_labels)
    assert found.equal(by_the_book(queries, labels, gallery, gallery_labels))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("dim", "distinct"), [(3, 9), (67, 9), (67, 500), (5, 1)])
@pytest.mark.usefixtures("tile", "coarse")
def test_copies_of_a_vector_tie_wherever_they_stand(seed, dim, distinct):
    items, labels = crowded(70, dim, distinct, 6, seed)
    queries, query_labels = crowded(25, dim, distinct, 8, seed + 50)
    assert first_hit_ranks(items, labels).equal(by_the_book(items, labels))
    found = first_hit_ranks(queries, query_labels, gallery=items, gallery_labels=labels)
    assert found.equal(by_the_book(queries, query_labels, items, labels))


@pytest.mark.usefixtures("tile", "coarse")
def test_nearly_equal_vectors_are_ranked_as_in_float64():
    random = np.random.default_rng(1)
    items = torch.from_numpy(random.normal(size=256) + 3e-4 * random.normal(size=(200, 256))).float()
    items, labels = torch.nn.functional.normalize(items, dim=1), torch.from_numpy(random.integers(40, size=200))
    assert first_hit_ranks(items, labels).equal(by_the_book(items, labels))


def test_counting_agrees_with_the_neighbours():
    items, labels = crowded(400, 16, 250, 30, 0)
    rows = nearest(items, items, 399, exclude_self=True).rows
    hits = labels[rows] == labels[:, None]
    first = torch.where(hits.any(dim=1), hits.int().argmax(dim=1) + 1, 0)
    assert first_hit_ranks(items, labels).equal(first)


def test_order_of_items_does_not_matter_without_ties():
    items, labels = crowded(200, 16, 10_000, 20, 0)
    items = items[torch.unique(items, dim=0, return_inverse=True)[1].unique()]
    labels = labels[: len(items)]
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))
    assert first_hit_ranks(items[order], labels[order]).equal(first_hit_ranks(items, labels)[order])


@pytest.mark.parametrize("budget", [1, 1 << 12, 1 << 20])
def test_result_does_not_depend_on_the_memory_budget(budget):
    items, labels = crowded(150, 16, 100, 10, 0)
    assert first_hit_ranks(items, labels, memory_budget=budget).equal(first_hit_ranks(items, labels))


def test_single_items_have_no_rank():
    items, _ = crowded(5, 4, 5, 2, 0)
    assert first_hit_ranks(items, torch.arange(5)).tolist() == [0] * 5


def test_vectors_that_are_no_numbers_are_refused():
    items, labels = crowded(5, 4, 5, 2, 0)
    items[3, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite numbers"):
        first_hit_ranks(items, labels)


def test_gallery_needs_labels():
    with pytest.raises(ValueError, match="gallery_labels"):
        first_hit_ranks(torch.ones(2, 2), torch.ones(2).long(), gallery=torch.ones(2, 2))
