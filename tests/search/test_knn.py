"""Neighbours and ranks against a brute-force search in float64, on sets full of ties."""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softtriple.errors import UserError
from softtriple.search import knn, products
from softtriple.search.knn import (
    Neighbors,
    error_bound,
    exact_pairs,
    first_hit_ranks,
    longest_row,
    nearest,
    ranked_rows,
    top_rows,
)


def by_the_book(queries, gallery, k, exclude_self=False):
    """Sort all rows by (similarity, row), a query at a time. Never optimise this."""
    queries, gallery = queries.double().numpy(), gallery.double().numpy()
    rows = []
    for i, query in enumerate(queries):
        scores = [(-float((query * item).sum()), j) for j, item in enumerate(gallery) if not (exclude_self and i == j)]
        rows.append([j for _, j in sorted(scores)[:k]])
    return torch.tensor(rows, dtype=torch.int64).view(len(queries), -1)


def crowded(count, dim, distinct, seed):
    """Unit vectors of which only ``distinct`` differ, so that most similarities occur many times."""
    random = np.random.default_rng(seed)
    pool = torch.nn.functional.normalize(torch.from_numpy(random.normal(size=(distinct, dim))).float(), dim=1)
    return pool[random.integers(distinct, size=count)]


@pytest.fixture(params=["float32", "float64", "short rows"])
def engine(request, monkeypatch):
    """Every way to find candidates must find the same."""
    if request.param == "float64":
        monkeypatch.setattr(knn, "DEEP", 0)
    if request.param == "short rows":
        monkeypatch.setattr(products, "COLUMNS", 16)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_integer_vectors_with_ties(data):
    integers = st.integers(-2, 2)
    dim = data.draw(st.integers(1, 3))
    rows = st.lists(st.lists(integers, min_size=dim, max_size=dim), min_size=1, max_size=14)
    queries, gallery = (torch.tensor(data.draw(rows), dtype=torch.float32) for _ in range(2))
    k = data.draw(st.integers(1, 16))
    assert nearest(queries, gallery, k).rows.equal(by_the_book(queries, gallery, k))
    among = nearest(gallery, gallery, k, exclude_self=True).rows
    assert among.equal(by_the_book(gallery, gallery, k, exclude_self=True))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("dim", "distinct"), [(3, 9), (67, 9), (67, 500), (5, 1)])
@pytest.mark.usefixtures("engine")
def test_copies_of_a_vector_tie_wherever_they_stand(seed, dim, distinct):
    items, queries = crowded(60, dim, distinct, seed), crowded(23, dim, 40, seed + 100)
    for k in (1, 7, 40, 59):
        assert nearest(queries, items, k).rows.equal(by_the_book(queries, items, k))
        among = nearest(items, items, k, exclude_self=True).rows
        assert among.equal(by_the_book(items, items, k, exclude_self=True))


@pytest.mark.parametrize("noise", [1e-7, 3e-5, 3e-4])
@pytest.mark.usefixtures("engine")
def test_nearly_equal_vectors_are_ordered_as_in_float64(noise):
    # Differences of 1e-7 in the similarity or less: float32 products get this order wrong.
    random = np.random.default_rng(1)
    center = random.normal(size=256)
    items = torch.from_numpy(center + noise * random.normal(size=(120, 256))).float()
    items = torch.nn.functional.normalize(items, dim=1)
    float32_order = (items @ items.T).fill_diagonal_(-2).topk(5, dim=1).indices
    expected = by_the_book(items, items, 60, exclude_self=True)
    assert not float32_order.equal(expected[:, :5]), "too easy to tell anything"
    for k in (5, 60):
        assert nearest(items, items, k, exclude_self=True).rows.equal(expected[:, :k])


def test_only_rows_that_the_bound_leaves_open_are_scored_exactly(monkeypatch):
    scored = count_pairs(monkeypatch)
    items = crowded(300, 16, 10_000, 0)
    ranked_rows(items, items, 100, own=torch.arange(300), memory_budget=1 << 20)
    assert 0 < sum(scored) < 300 * 100 / 10


def count_pairs(monkeypatch):
    """A list that grows by the number of pairs of every call of `exact_pairs`."""
    scored, pairs = [], knn.exact_pairs

    def count(queries, gallery, rows, cols, memory_budget):
        scored.append(len(rows))
        return pairs(queries, gallery, rows, cols, memory_budget)

    monkeypatch.setattr(knn, "exact_pairs", count)
    return scored


@pytest.mark.usefixtures("engine")
def test_result_does_not_depend_on_the_memory_budget():
    items = crowded(80, 24, 50, 0)
    expected = nearest(items, items, 7, exclude_self=True)
    for budget in (1 << 12, 1 << 16):
        found = nearest(items, items, 7, exclude_self=True, memory_budget=budget)
        assert found.rows.equal(expected.rows)
        assert found.scores.equal(expected.scores)


def test_candidates_stay_within_the_memory_budget(monkeypatch):
    kept = count_pairs(monkeypatch)
    items = unit(150, 8)
    budget = 100 * 1000
    found = nearest(items, items, 50, exclude_self=True, memory_budget=budget)
    assert found.rows.equal(by_the_book(items, items, 50, exclude_self=True))
    assert max(kept) * knn.CANDIDATE_BYTES <= budget / 2
    assert sum(kept) >= 150 * 50


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("k", [1, 4])
def test_vectors_that_are_no_numbers_are_refused(wrong, k):
    items = torch.eye(4)
    broken = torch.tensor([[wrong, 0.0, 0.0, 0.0]])
    for queries, gallery in ((broken, items), (items, torch.cat([items, broken]))):
        with pytest.raises(ValueError, match="NaN or infinite numbers"):
            nearest(queries, gallery, k)


def test_scores_are_cosines_best_first():
    items, queries = crowded(40, 8, 40, 0), crowded(7, 8, 7, 1)
    rows, scores = nearest(queries, items, 5)
    assert torch.allclose(scores, (queries[:, None] * items[rows]).sum(-1), atol=1e-6)
    assert (scores.diff(dim=1) <= 0).all()


@pytest.mark.usefixtures("engine")
def test_more_neighbours_than_rows_returns_all_rows():
    items = crowded(4, 5, 4, 0)
    assert nearest(items[:2], items, 10).rows.shape == (2, 4)
    assert nearest(items, items, 10, exclude_self=True).rows.shape == (4, 3)
    assert nearest(items[:1], items[:1], 10, exclude_self=True).rows.shape == (1, 0)
    assert nearest(items[:0], items, 2).rows.shape[0] == 0


def test_a_row_is_not_its_own_neighbour_but_its_copy_is():
    items = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert nearest(items, items, 1, exclude_self=True).rows.tolist() == [[1], [0], [0]]


def test_some_of_the_items_search_all_of_them():
    items = crowded(80, 16, 40, 3)
    own = torch.tensor([3, 4, 20, 61, 79])
    rows, _ = top_rows(items[own], items, 6, own=own, memory_budget=1 << 20)
    np.testing.assert_array_equal(rows, by_the_book(items, items, 6, exclude_self=True)[own])


def test_numpy_gives_numpy_and_lists_give_tensors():
    items = crowded(20, 8, 20, 0)
    expected = nearest(items, items, 3)
    found = nearest(items.numpy(), items.double().numpy(), 3)
    assert isinstance(found.rows, np.ndarray)
    np.testing.assert_array_equal(found.rows, expected.rows)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert nearest(items.tolist(), items.tolist(), 3).rows.equal(expected.rows)


@pytest.mark.parametrize("wrong", [["a", "b"], [1.0, 2.0], "text", None, [[1.0], [1.0, 2.0]]])
def test_what_is_not_rows_of_numbers_is_named(wrong):
    with pytest.raises(UserError, match="gallery: expected rows of numbers"):
        nearest(torch.ones(1, 2), wrong, 1)


def test_no_cosine_is_above_one():
    items = crowded(200, 7, 200, 0)
    products = (items.double() ** 2).sum(dim=1)
    assert (products > 1 + 1e-8).any(), "too easy to tell anything"
    assert nearest(items, items, 1).scores.max() == 1
    assert nearest(-items, items, 200).scores.min() == -1
    assert nearest(3 * items, items, 1).scores.min() > 2.9, "inner products of other vectors stay as they are"


def test_precision_of_matrix_products_allowed_for_training_changes_nothing_and_stays():
    items = crowded(50, 32, 50, 0)
    expected = nearest(items, items, 5, exclude_self=True)
    torch.set_float32_matmul_precision("medium")
    try:
        found = nearest(items, items, 5, exclude_self=True)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert found.rows.equal(expected.rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k = 0"),
        ({"k": 1, "gallery": torch.ones(3, 4)}, "4"),
        ({"k": 1, "gallery": torch.ones(4, 2), "exclude_self": True}, "exclude_self"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        nearest(torch.ones(3, 2), **{"gallery": torch.ones(3, 2), **arguments})


def unit(count, dim, seed=0):
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dim))).float()
    return torch.nn.functional.normalize(values, dim=1)


@pytest.mark.parametrize("dim", [1, 2, 3, 31, 64, 1000])
def test_similarity_of_a_pair_does_not_depend_on_where_it_stands(dim):
    items = unit(50, dim)
    copies = items[torch.arange(700) % 50]
    rows, cols = np.random.default_rng(0).integers(700, size=(2, 5000))
    scores = exact_pairs(copies, copies, rows, cols, 1 << 30)
    np.testing.assert_array_equal(scores, exact_pairs(copies, copies, cols, rows, 1 << 30))
    np.testing.assert_array_equal(scores, exact_pairs(items, items, rows % 50, cols % 50, 1 << 12))
    for pair in range(500):
        one = slice(pair, pair + 1)
        assert scores[one] == exact_pairs(items, items, rows[one] % 50, cols[one] % 50, 1 << 30)


@pytest.mark.parametrize("dim", [2, 64, 1000])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_error_bound_holds(dim, scale):
    items = unit(200, dim) * scale
    exact = items.double() @ items.double().T
    error = float(((items @ items.T).double() - exact).abs().max())
    assert error <= error_bound(dim, longest_row(items), longest_row(items)) <= 1e-4 * scale**2


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


@pytest.mark.parametrize("open_pairs", [0, 12, 10**6])
@pytest.mark.parametrize(("dim", "distinct"), [(3, 9), (67, 9), (67, 500)])
def test_ranks_by_codes_are_the_same(dim, distinct, open_pairs, monkeypatch):
    items, labels = labelled(150, dim, distinct, 12, 0)
    queries, query_labels = labelled(40, dim, distinct, 12, 1)
    other = {"gallery": items, "gallery_labels": labels}
    expected = first_hit_ranks(items, labels), first_hit_ranks(queries, query_labels, **other)
    for name, value in {"WIDE": 0, "LARGE": 0, "OPEN": open_pairs}.items():
        monkeypatch.setattr(knn, name, value)
    monkeypatch.setattr(products, "coarse_is_faster", lambda: True)
    monkeypatch.setattr(products, "TILE", 40)
    assert first_hit_ranks(items, labels).equal(expected[0])
    assert first_hit_ranks(queries, query_labels, **other).equal(expected[1])


def test_docstring_examples():
    result = doctest.testmod(knn, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
    assert Neighbors._fields == ("rows", "scores")
