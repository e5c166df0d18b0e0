"""Recall, map and centres against plain ways to compute them."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from tests.gallery.memory_store import MemoryStore

from softtriple.gallery.analysis import ClassScore, Snapshot, center_groups, mean_recall, sample, take_snapshot
from softtriple.metrics.evaluate import Embeddings, evaluate
from softtriple.search import Item


def random_store(items: int, num_classes: int, seed: int = 0) -> MemoryStore:
    random = np.random.default_rng(seed)
    labels = random.integers(num_classes, size=items)
    vectors = random.standard_normal((items, 6)) + 1.5 * random.standard_normal((num_classes, 6))[labels]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = [Item(f"item {row}", int(label), f"class {label}", "") for row, label in enumerate(labels)]
    return MemoryStore(names, vectors.astype(np.float32))


def random_snapshot(items: int = 90, num_classes: int = 5) -> Snapshot:
    return take_snapshot(random_store(items, num_classes), most=10_000)


def scores_of(snapshot: Snapshot) -> list[ClassScore]:
    snapshot.taken(range(len(snapshot.items)))
    return snapshot.scores()


def test_a_snapshot_is_the_store() -> None:
    store = random_store(90, 5)
    snapshot = take_snapshot(store, most=90)
    assert snapshot.total == len(snapshot.items) == 90
    for row, item in enumerate(snapshot.items):
        assert snapshot.class_names[snapshot.labels[row]] == item.class_name
        np.testing.assert_allclose(snapshot.vectors[row], store.get([item.id])[0].vector, atol=1e-6)


def test_a_class_does_not_wait_for_the_others() -> None:
    snapshot, whole = random_snapshot(), random_snapshot()
    scores = {score.name: score for score in scores_of(whole)}
    rows = snapshot.rows_of("class 3").tolist()
    assert snapshot.taken(rows) == whole.taken_for[rows].tolist()
    assert snapshot.score("class 3") == scores["class 3"]
    assert snapshot.measured == snapshot.score("class 3").measured == len(rows)
    assert snapshot.score("class 2").recall is None, "not measured yet"
    assert snapshot.taken([]) == []


def test_recall_so_far_is_that_of_the_items_measured() -> None:
    snapshot = random_snapshot()
    rows = list(range(0, 90, 2))
    right = [label == snapshot.labels[row] for row, label in zip(rows, snapshot.taken(rows), strict=True)]
    assert mean_recall(snapshot.scores()) == pytest.approx(np.mean(right))
    assert mean_recall(random_snapshot().scores()) is None


def test_copies_are_taken_for_the_class_of_their_copy() -> None:
    items = [Item(str(row), row, f"class {row}", "") for row in range(4)]
    snapshot = take_snapshot(MemoryStore(items, np.tile([[1.0, 0.0]], (4, 1)).astype(np.float32)), 10)
    assert snapshot.taken(range(4)) == [1, 0, 0, 0]


def test_a_large_store_is_sampled_by_whole_classes_so_that_recall_is_that_of_the_store() -> None:
    """Pairs that find each other: thinned one by one, most would be alone."""
    random = np.random.default_rng(0)
    vectors = np.repeat(random.standard_normal((200, 6)), 2, axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = [Item(f"item {row}", row // 2, f"pair {row // 2}", "") for row in range(400)]
    snapshot = take_snapshot(MemoryStore(items, vectors.astype(np.float32)), most=101)
    assert (len(snapshot.items), len(snapshot.class_names), snapshot.total) == (100, 50, 400)
    assert [score.recall for score in scores_of(snapshot)] == [1.0] * 50
    sizes = {"huge": 1000} | {f"pair {number}": 2 for number in range(50)}
    assert sample(sizes, most=100) == (set(sizes) - {"huge"}, 1), "what does not fit is passed over"
    left_out = next(name for name in snapshot.sizes if name not in snapshot.class_names)
    assert len(snapshot.rows_of(left_out)) == 0


@pytest.mark.parametrize(("most", "step"), [(16, 6), (10, 9), (1, 90)])
def test_classes_of_which_no_two_fit_are_thinned_evenly(most: int, step: int) -> None:
    store = random_store(90, 5)
    snapshot = take_snapshot(store, most)
    assert [item.id for item in snapshot.items] == [f"item {row}" for row in range(0, 90, step)]
    assert len(snapshot.items) <= most
    assert snapshot.total == 90


def test_classes_are_told_apart_by_name_not_by_label() -> None:
    items = [Item("a", 0, "cat", ""), Item("b", 0, "dog", ""), Item("c", 7, "cat", "")]
    snapshot = take_snapshot(MemoryStore(items, np.eye(3, dtype=np.float32)), 10)
    assert snapshot.class_names == ("cat", "dog")
    assert snapshot.labels.tolist() == [0, 1, 0]


def test_recall_of_classes_is_that_of_the_report() -> None:
    snapshot = random_snapshot()
    found = Embeddings(snapshot.vectors, snapshot.labels, class_names=snapshot.class_names)
    report = evaluate(found, recall_at=(1,), kmeans_restarts=0, bootstrap=0)
    scores = scores_of(snapshot)
    assert {score.name: score.recall for score in scores} == pytest.approx(report.recall_per_class)
    assert [score.recall for score in scores] == sorted(score.recall for score in scores)


def test_confusions_by_the_book() -> None:
    snapshot = random_snapshot()
    similarity = (snapshot.vectors.double() @ snapshot.vectors.double().T).fill_diagonal_(-2)
    for score in scores_of(snapshot):
        rows = snapshot.rows_of(score.name)
        expected = Counter(snapshot.class_names[snapshot.labels[similarity[row].argmax()]] for row in rows)
        expected.pop(score.name, None)
        assert dict(score.confused) == dict(expected)
        assert [count for _, count in score.confused] == sorted(expected.values(), reverse=True)
        assert score.items == len(rows)


def test_a_lone_item_has_no_recall_and_comes_last() -> None:
    items = [Item("a", 0, "alone", ""), Item("b", 1, "pair", ""), Item("c", 1, "pair", "")]
    vectors = F.normalize(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]]), dim=1).numpy()
    pair, alone = scores_of(take_snapshot(MemoryStore(items, vectors), 10))
    assert (pair.name, pair.recall, pair.confused) == ("pair", 1.0, ())
    assert (alone.name, alone.recall) == ("alone", None)
    assert alone.confused == (("pair", 1),)


def test_the_map_is_principal_components() -> None:
    snapshot = random_snapshot()
    rows, points, explained = snapshot.projection
    model = PCA(2, svd_solver="full")
    expected = model.fit_transform(snapshot.vectors.double().numpy())
    assert rows.tolist() == list(range(90))
    np.testing.assert_allclose(np.abs(points), np.abs(expected), atol=1e-6)
    assert explained == pytest.approx(model.explained_variance_ratio_.sum())


def test_a_part_of_the_map_lies_where_the_whole_puts_it() -> None:
    snapshot = random_snapshot()
    whole, part = snapshot.projection, replace(snapshot, map_points=20).projection
    assert len(part.rows) == 20
    np.testing.assert_allclose(part.points, whole.points[part.rows], atol=1e-9)


@pytest.mark.parametrize("items", [0, 1, 2])
def test_a_map_of_hardly_anything(items: int) -> None:
    store = MemoryStore([Item(str(row), 0, "a", "") for row in range(items)], np.eye(3, dtype=np.float32)[:items])
    snapshot = take_snapshot(store, 10)
    rows, points, explained = snapshot.projection
    assert len(rows) == len(points) == items
    assert np.isfinite(points).all()
    assert 0 <= explained <= 1 + 1e-9
    assert len(scores_of(snapshot)) == min(items, 1)


def test_a_map_of_vectors_of_one_number() -> None:
    vectors = np.array([[1.0], [-1.0], [1.0]], dtype=np.float32)
    snapshot = take_snapshot(MemoryStore([Item(str(row), 0, "a", "") for row in range(3)], vectors), 10)
    points = snapshot.projection.points
    assert points.shape == (3, 2)
    assert (points[:, 1] == 0).all()


def test_mixed_order_is_a_lasting_permutation() -> None:
    snapshot = random_snapshot()
    order = snapshot.order
    assert sorted(order) == list(range(90))
    assert order != list(range(90))
    assert order == random_snapshot().order


def test_items_fall_to_their_nearest_centre() -> None:
    torch.manual_seed(1)
    vectors = F.normalize(torch.randn(40, 5), dim=1)
    centers = 3 * torch.randn(4, 5)
    groups = center_groups(vectors, centers, rows=range(100, 140))
    assert [group.merged for group in groups] == [1, 1, 1, 1]
    expected = (vectors @ F.normalize(centers, dim=1).T).argmax(dim=1)
    members = sorted(sorted(row - 100 for row in group.rows) for group in groups)
    assert members == sorted((expected == center).nonzero()[:, 0].tolist() for center in range(4))
    assert [len(group.rows) for group in groups] == sorted((len(group.rows) for group in groups), reverse=True)


def test_merged_centres_are_one_group_and_an_empty_one_is_shown() -> None:
    east, north = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    centers = torch.stack([east, east + 0.01 * north, -north])
    vectors = F.normalize(torch.stack([north + 3 * east, north + 9 * east, east]), dim=1)
    first, second = center_groups(vectors, centers, rows=range(3))
    assert (first.merged, set(first.rows)) == (2, {0, 1, 2})
    assert first.rows[-1] == 0, "the farthest comes last"
    assert (second.merged, second.rows) == (1, [])


def test_a_class_without_items_has_its_centres_all_the_same() -> None:
    groups = center_groups(torch.empty(0, 3), torch.eye(3)[:2], rows=[])
    assert [(group.merged, group.rows) for group in groups] == [(1, []), (1, [])]
