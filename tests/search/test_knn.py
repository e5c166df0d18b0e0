"""`nearest` against a brute-force search in float64, on sets full of ties."""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softtriple.search import knn, similarity
from softtriple.search.knn import Neighbors, TopK, nearest
from softtriple.search.similarity import tiles


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


def search_by_tiles(self):
    for tile in tiles(self.queries, self.gallery, self.memory_budget, self_at=self.self_at):
        self.update(tile)


@pytest.fixture(params=[None, 2048, 5], ids=["faiss", "one tile", "many tiles"])
def engine(request, monkeypatch):
    """On a CPU faiss finds the candidates; tiles, as on a GPU and in an evaluation, must find the same."""
    if request.param is not None:
        monkeypatch.setattr(similarity, "TILE", request.param)
        monkeypatch.setattr(TopK, "search", search_by_tiles)


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


@pytest.mark.parametrize("seed", range(6))
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
    items = torch.from_numpy(center + 3e-4 * random.normal(size=(300, 256))).float()
    items = torch.nn.functional.normalize(items, dim=1)
    float32_order = (items @ items.T).fill_diagonal_(-2).topk(5, dim=1).indices
    expected = by_the_book(items, items, 5, exclude_self=True)
    assert not float32_order.equal(expected), "too easy to tell anything"
    assert nearest(items, items, 5, exclude_self=True).rows.equal(expected)


@pytest.mark.usefixtures("engine")
def test_result_does_not_depend_on_the_memory_budget():
    items = crowded(150, 24, 100, 0)
    expected = nearest(items, items, 7, exclude_self=True)
    for budget in (1 << 12, 1 << 16):
        found = nearest(items, items, 7, exclude_self=True, memory_budget=budget)
        assert found.rows.equal(expected.rows)
        assert found.scores.equal(expected.scores)


def test_candidates_stay_within_the_memory_budget(monkeypatch):
    kept = []

    def search(self):
        kept.append(self.values.numel())
        search_by_tiles(self)

    monkeypatch.setattr(TopK, "search", search)
    items = crowded(150, 8, 100, 0)
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


def test_each_query_has_its_own_depth():
    items = crowded(50, 6, 30, 3)
    depth = torch.arange(50) % 5
    top = TopK(items, items, depth, 1 << 20, self_at=0)
    for tile in tiles(items, None, 1 << 20):
        top.update(tile)
    rows = top.neighbors().rows
    expected = by_the_book(items, items, 4, exclude_self=True)
    for query, wanted in enumerate(depth.tolist()):
        assert rows[query, :wanted].equal(expected[query, :wanted])


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


def test_docstring_examples():
    result = doctest.testmod(knn, extraglobs={"torch": torch})
    assert result.attempted > 0
    assert result.failed == 0
    assert Neighbors._fields == ("rows", "scores")
