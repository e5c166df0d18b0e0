"""Places of hits and of the first hit against a brute-force search in float64, on sets full of ties."""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.test_knn import by_the_book, crowded

from softtriple.search import knn, products, ranks
from softtriple.search.knn import nearest
from softtriple.search.ranks import first_hit_ranks, hit_rows


def hits_by_the_book(queries, labels, gallery, gallery_labels, k, exclude_self=False):
    rows = by_the_book(queries, gallery, k, exclude_self)
    return gallery_labels[rows] == labels[:, None]


@pytest.fixture(params=["rows", "kept rows", "tiles", "float64"])
def engine(request, monkeypatch):
    if request.param == "kept rows":
        monkeypatch.setattr(products, "WIDE", 0)
    if request.param == "tiles":
        monkeypatch.setattr(products, "_row_candidates", products._tiled_candidates)
    if request.param == "float64":
        monkeypatch.setattr(ranks, "DEEP", 0)


@pytest.mark.parametrize("k", [1, 7, 40, 69])
@pytest.mark.parametrize(("dim", "distinct"), [(3, 9), (67, 9), (67, 500), (5, 1)])
@pytest.mark.usefixtures("engine")
def test_hits_where_copies_of_a_vector_tie(k, dim, distinct):
    items, labels = labelled(70, dim, distinct, 3, k)
    own = torch.arange(70)
    rows = hit_rows(items, labels, items, labels, k, own=own, memory_budget=1 << 20)
    assert (labels[rows] == labels[:, None]).equal(hits_by_the_book(items, labels, items, labels, k, True))
    assert all(len({own, *row}) == k + 1 for own, row in enumerate(rows.tolist()))
    queries, query_labels = labelled(25, dim, distinct, 4, k + 50)
    rows = hit_rows(queries, query_labels, items, labels, k, memory_budget=1 << 20)
    assert (labels[rows] == query_labels[:, None]).equal(hits_by_the_book(queries, query_labels, items, labels, k))


@pytest.mark.parametrize("noise", [1e-7, 3e-5, 3e-4])
@pytest.mark.usefixtures("engine")
def test_hits_among_nearly_equal_vectors_are_those_of_float64(noise):
    random = np.random.default_rng(1)
    items = torch.from_numpy(random.normal(size=256) + noise * random.normal(size=(150, 256))).float()
    items, labels = torch.nn.functional.normalize(items, dim=1), torch.from_numpy(random.integers(3, size=150))
    for k in (5, 60):
        rows = hit_rows(items, labels, items, labels, k, own=torch.arange(150), memory_budget=1 << 20)
        assert (labels[rows] == labels[:, None]).equal(hits_by_the_book(items, labels, items, labels, k, True))


def test_only_rows_that_the_bound_leaves_open_are_scored_exactly(monkeypatch):
    items, labels = labelled(300, 16, 10_000, 4, 0)
    scored = []

    def counted_pairs(queries, gallery, rows, cols, memory_budget):
        scored.append(len(rows))
        return knn.exact_pairs(queries, gallery, rows, cols, memory_budget)

    monkeypatch.setattr(ranks, "exact_pairs", counted_pairs)
    hit_rows(items, labels, items, labels, 100, own=torch.arange(300), memory_budget=1 << 20)
    assert sum(scored) < 300 * 100 / 10


def ranks_by_the_book(queries, labels, gallery=None, gallery_labels=None):
    """Walk down the sorted list until the class is right. Never optimise this."""
    among = gallery is None
    items, item_labels = (queries, labels) if among else (gallery, gallery_labels)
    ranks = []
    for order, label in zip(by_the_book(queries, items, len(items), exclude_self=among), labels, strict=True):
        hits = (item_labels[order] == label).nonzero()[:, 0]
        ranks.append(int(hits[0]) + 1 if len(hits) else 0)
    return torch.tensor(ranks)


def labelled(count, dim, distinct, num_classes, seed):
    labels = np.random.default_rng(seed).integers(num_classes, size=count)
    return crowded(count, dim, distinct, seed), torch.from_numpy(labels)


@pytest.fixture(params=[2048, 8], ids=["one tile", "many tiles"])
def tile(request, monkeypatch):
    monkeypatch.setattr(products, "TILE", request.param)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_ranks_of_integer_vectors_with_ties(data):
    dim = data.draw(st.integers(1, 3))
    item = st.tuples(st.lists(st.integers(-2, 2), min_size=dim, max_size=dim), st.integers(-1, 3))
    sets = []
    for _ in range(2):
        vectors, labels = zip(*data.draw(st.lists(item, min_size=1, max_size=14)), strict=True)
        sets.append((torch.tensor(vectors, dtype=torch.float32), torch.tensor(labels)))
    (queries, labels), (gallery, gallery_labels) = sets
    assert first_hit_ranks(queries, labels).equal(ranks_by_the_book(queries, labels))
    found = first_hit_ranks(queries, labels, gallery=gallery, gallery_labels=gallery_labels)
    assert found.equal(ranks_by_the_book(queries, labels, gallery, gallery_labels))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("dim", "distinct"), [(3, 9), (67, 9), (67, 500), (5, 1)])
@pytest.mark.usefixtures("tile")
def test_ranks_where_copies_of_a_vector_tie_wherever_they_stand(seed, dim, distinct):
    items, labels = labelled(70, dim, distinct, 6, seed)
    queries, query_labels = labelled(25, dim, distinct, 8, seed + 50)
    assert first_hit_ranks(items, labels).equal(ranks_by_the_book(items, labels))
    found = first_hit_ranks(queries, query_labels, gallery=items, gallery_labels=labels)
    assert found.equal(ranks_by_the_book(queries, query_labels, items, labels))


@pytest.mark.usefixtures("tile")
def test_nearly_equal_vectors_are_ranked_as_in_float64():
    random = np.random.default_rng(1)
    items = torch.from_numpy(random.normal(size=256) + 3e-4 * random.normal(size=(200, 256))).float()
    items, labels = torch.nn.functional.normalize(items, dim=1), torch.from_numpy(random.integers(40, size=200))
    assert first_hit_ranks(items, labels).equal(ranks_by_the_book(items, labels))


def test_counting_agrees_with_the_neighbours():
    items, labels = labelled(400, 16, 250, 30, 0)
    rows = nearest(items, items, 399, exclude_self=True).rows
    hits = labels[rows] == labels[:, None]
    first = torch.where(hits.any(dim=1), hits.int().argmax(dim=1) + 1, 0)
    assert first_hit_ranks(items, labels).equal(first)


def test_order_of_items_does_not_matter_without_ties():
    items, labels = labelled(200, 16, 10_000, 20, 0)
    items = items[torch.unique(items, dim=0, return_inverse=True)[1].unique()]
    labels = labels[: len(items)]
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))
    assert first_hit_ranks(items[order], labels[order]).equal(first_hit_ranks(items, labels)[order])


@pytest.mark.parametrize("budget", [1, 1 << 12, 1 << 17])
def test_ranks_result_does_not_depend_on_the_memory_budget(budget):
    items, labels = labelled(60, 16, 40, 10, 0)
    assert first_hit_ranks(items, labels, memory_budget=budget).equal(first_hit_ranks(items, labels))


def test_single_items_have_no_rank():
    items, _ = labelled(5, 4, 5, 2, 0)
    assert first_hit_ranks(items, torch.arange(5)).tolist() == [0] * 5


def test_ranks_vectors_that_are_no_numbers_are_refused():
    items, labels = labelled(5, 4, 5, 2, 0)
    items[3, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite numbers"):
        first_hit_ranks(items, labels)


def test_gallery_needs_labels():
    with pytest.raises(ValueError, match="gallery_labels"):
        first_hit_ranks(torch.ones(2, 2), torch.ones(2).long(), gallery=torch.ones(2, 2))


def test_docstring_examples():
    assert doctest.testmod(ranks).failed == 0


@pytest.mark.parametrize("open_pairs", [0, 12, 10**6])
@pytest.mark.parametrize(("dim", "distinct"), [(3, 9), (67, 9), (67, 500)])
def test_ranks_by_codes_are_the_same(dim, distinct, open_pairs, monkeypatch):
    items, labels = labelled(150, dim, distinct, 12, 0)
    queries, query_labels = labelled(40, dim, distinct, 12, 1)
    other = {"gallery": items, "gallery_labels": labels}
    expected = first_hit_ranks(items, labels), first_hit_ranks(queries, query_labels, **other)
    for name, value in {"WIDE": 0, "LARGE": 0, "OPEN": open_pairs, "coarse_is_faster": lambda: True}.items():
        monkeypatch.setattr(ranks, name, value)
    monkeypatch.setattr(products, "TILE", 40)
    assert first_hit_ranks(items, labels).equal(expected[0])
    assert first_hit_ranks(queries, query_labels, **other).equal(expected[1])
