"""`nearest` against a brute-force search in float64, on sets full of ties."""

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
    nearest,
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


@pytest.fixture(params=["rows", "kept rows", "tiles", "small tiles"])
def engine(request, monkeypatch):
    """Every way to find candidates must find the same."""
    if request.param == "kept rows":
        monkeypatch.setattr(products, "WIDE", 0)
    if "tiles" in request.param:
        monkeypatch.setattr(products, "_row_candidates", products._tiled_candidates)
    if "small" in request.param:
        monkeypatch.setattr(products, "TILE", 5)


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
@pytest.mark.parametrize("dim", [3, 67])
@pytest.mark.usefixtures("engine")
def test_copies_of_a_vector_tie_wherever_they_stand(seed, dim):
    items, queries = crowded(60, dim, 9, seed), crowded(23, dim, 40, seed + 100)
    for k in (1, 4, 59):
        assert nearest(queries, items, k).rows.equal(by_the_book(queries, items, k))
        among = nearest(items, items, k, exclude_self=True).rows
        assert among.equal(by_the_book(items, items, k, exclude_self=True))


@pytest.mark.usefixtures("engine")
def test_all_vectors_equal():
    items = crowded(30, 17, 1, 0)
    assert nearest(items, items, 3, exclude_self=True).rows.equal(by_the_book(items, items, 3, exclude_self=True))


@pytest.mark.usefixtures("engine")
def test_nearly_equal_vectors_are_ordered_as_in_float64():
    # Differences of 1e-7 in the similarity: float32 products get this order wrong.
    random = np.random.default_rng(1)
    center = random.normal(size=256)
    items = torch.from_numpy(center + 3e-4 * random.normal(size=(120, 256))).float()
    items = torch.nn.functional.normalize(items, dim=1)
    float32_order = (items @ items.T).fill_diagonal_(-2).topk(5, dim=1).indices
    expected = by_the_book(items, items, 5, exclude_self=True)
    assert not float32_order.equal(expected), "too easy to tell anything"
    assert nearest(items, items, 5, exclude_self=True).rows.equal(expected)


@pytest.mark.usefixtures("engine")
def test_result_does_not_depend_on_the_memory_budget():
    items = crowded(80, 24, 50, 0)
    expected = nearest(items, items, 7, exclude_self=True)
    for budget in (1 << 12, 1 << 16):
        found = nearest(items, items, 7, exclude_self=True, memory_budget=budget)
        assert found.rows.equal(expected.rows)
        assert found.scores.equal(expected.scores)


def test_candidates_stay_within_the_memory_budget(monkeypatch):
    kept, pairs = [], knn.exact_pairs

    def count(queries, gallery, rows, cols, budget):
        kept.append(len(rows))
        return pairs(queries, gallery, rows, cols, budget)

    monkeypatch.setattr(knn, "exact_pairs", count)
    items = unit(150, 8)
    budget = 100 * 1000
    found = nearest(items, items, 50, exclude_self=True, memory_budget=budget)
    assert found.rows.equal(by_the_book(items, items, 50, exclude_self=True))
    assert max(kept) * knn.CANDIDATE_BYTES <= budget / 2
    assert sum(kept) == 150 * 53


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
    assert rows.equal(by_the_book(items, items, 6, exclude_self=True)[own])


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
    rows, cols = torch.randint(700, (2, 5000), generator=torch.Generator().manual_seed(0))
    scores = exact_pairs(copies, copies, rows, cols, 1 << 30)
    assert scores.equal(exact_pairs(copies, copies, cols, rows, 1 << 30))
    assert scores.equal(exact_pairs(items, items, rows % 50, cols % 50, 1 << 12))
    alone = torch.cat(
        [
            exact_pairs(items, items, r, c, 1 << 30)
            for r, c in zip((rows[:500] % 50).split(1), (cols[:500] % 50).split(1), strict=True)
        ]
    )
    assert scores[:500].equal(alone)


@pytest.mark.parametrize("dim", [2, 64, 1000])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_error_bound_holds(dim, scale):
    items = unit(200, dim) * scale
    exact = items.double() @ items.double().T
    error = float(((items @ items.T).double() - exact).abs().max())
    assert error <= error_bound(items, items) <= 1e-4 * scale**2


def test_docstring_examples():
    result = doctest.testmod(knn, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
    assert Neighbors._fields == ("rows", "scores")
