"""`evaluate` against pytorch-metric-learning and brute force, and the cases at the edge."""

import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

from softtriple.metrics import Report
from softtriple.metrics.evaluate import Embeddings, evaluate

# The package exports a function of the same name, which hides the module.
EVALUATION = importlib.import_module("softtriple.metrics.evaluate")


def sample(count=300, num_classes=30, dim=16, noise=1.0, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(num_classes, size=count)
    vectors = random.normal(size=(num_classes, dim))[labels] + noise * random.normal(size=(count, dim))
    return Embeddings(torch.from_numpy(vectors).float(), torch.from_numpy(labels))


def retrieval(report: Report):
    return *report.recall.values(), report.precision_at_1, report.r_precision, report.map_at_r


def by_the_book(queries, gallery, recall_at):
    """The metrics from fully sorted lists in float64. Never optimise this."""
    among = gallery is None
    items = queries if among else gallery
    x, y = (torch.nn.functional.normalize(e.vectors, dim=1).double().numpy() for e in (queries, items))
    rows = []
    for i, label in enumerate(queries.labels.tolist()):
        order = sorted((-float((x[i] * y[j]).sum()), j) for j in range(len(y)) if not (among and i == j))
        hits = [int(items.labels[j]) == label for _, j in order]
        positives = sum(hits)
        if positives:
            found = [rank for rank, hit in enumerate(hits, start=1) if hit]
            within = [rank for rank in found if rank <= positives]
            precision = sum(n / rank for n, rank in enumerate(within, start=1)) / positives
            rows.append([*(found[0] <= k for k in recall_at), found[0] == 1, len(within) / positives, precision])
    return np.mean(rows, axis=0).tolist()


# In 512 dimensions neighbours come from the tiles that ranks are counted in, as on Stanford Online Products.
@pytest.mark.parametrize(("noise", "dim"), [(0.3, 16), (1.0, 16), (3.0, 16), (3.0, 512), (8.0, 512)])
def test_pytorch_metric_learning_agrees(noise, dim):
    data = sample(500, 40, dim, noise=noise)
    report = evaluate(data, kmeans_restarts=0, bootstrap=0)
    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
    theirs = calculator.get_accuracy(torch.nn.functional.normalize(data.vectors, dim=1), data.labels)
    ours = report.precision_at_1, report.r_precision, report.map_at_r
    assert ours == pytest.approx([theirs[name] for name in names], abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_tiny_sets_full_of_ties(data):
    # Unit vectors along the axes: similarities are -1, 0 and 1 and hardly ever different.
    vectors = torch.cat([torch.eye(3), -torch.eye(3), torch.zeros(1, 3)])
    sets = []
    for _ in range(2):
        items = data.draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=2, max_size=12))
        rows, labels = zip((0, 0), (1, 0), *items, strict=True)
        sets.append(Embeddings(vectors[list(rows)], torch.tensor(labels)))
    queries, gallery = sets
    budget = data.draw(st.sampled_from([1, 2000, 1 << 30]))
    for against in (None, gallery):
        report = evaluate(queries, gallery=against, kmeans_restarts=0, bootstrap=0, memory_budget=budget)
        assert retrieval(report) == pytest.approx(by_the_book(queries, against, (1, 2, 4, 8)), abs=1e-12)


def test_queries_against_a_gallery():
    queries, gallery = sample(60, seed=1), sample(200, seed=2)
    report = evaluate(queries, gallery=gallery, recall_at=(1, 10, 20, 30), kmeans_restarts=0)
    expected = by_the_book(queries, gallery, (1, 10, 20, 30))
    assert retrieval(report) == pytest.approx(expected, abs=1e-12)
    assert (report.num_queries, report.num_gallery) == (60, 200)


def test_a_small_budget_changes_no_number():
    data = sample(300, 5)
    expected = evaluate(data, kmeans_restarts=0)
    for budget in (1 << 12, 1 << 18):
        report = evaluate(data, kmeans_restarts=0, memory_budget=budget)
        assert retrieval(report) == retrieval(expected)
        assert report.intervals == expected.intervals


def test_many_classes_take_one_run_of_kmeans(monkeypatch):
    monkeypatch.setattr(EVALUATION, "MANY", 20)
    runs = evaluate(sample(), bootstrap=0).kmeans
    assert runs is not None
    assert (runs.restarts, runs.nmi_spread, runs.ami_spread) == (1, None, None)


@pytest.mark.parametrize("dim", [16, 512])
def test_clusters_do_not_depend_on_how_classes_are_numbered(dim):
    data = sample(dim=dim)
    names = torch.from_numpy(np.random.default_rng(0).permutation(30))
    reports = evaluate(data), evaluate(Embeddings(data.vectors, names[data.labels]))
    assert reports[0].kmeans is not None
    assert reports[1].kmeans is not None
    assert reports[0].kmeans.objective == reports[1].kmeans.objective
    assert (reports[0].nmi, reports[0].ami) == pytest.approx((reports[1].nmi, reports[1].ami), abs=1e-12)


@pytest.mark.parametrize("budget", [1 << 14, 1 << 30])
def test_a_large_class_does_not_deepen_the_search_of_others(monkeypatch, budget):
    random = np.random.default_rng(0)
    labels = torch.from_numpy(np.concatenate([np.zeros(300, int), 1 + random.integers(40, size=200)]))
    labels = labels[torch.from_numpy(random.permutation(500))]
    vectors = torch.from_numpy(random.normal(size=(41, 8))[labels] + random.normal(size=(500, 8))).float()
    candidates, search = [], EVALUATION.ranked_rows

    def count(queries, gallery, k, **options):
        candidates.append(len(queries) * k)
        return search(queries, gallery, k, **options)

    monkeypatch.setattr(EVALUATION, "ranked_rows", count)
    data = Embeddings(vectors, labels)
    report = evaluate(data, kmeans_restarts=0, bootstrap=0, memory_budget=budget)
    assert retrieval(report) == pytest.approx(by_the_book(data, None, (1, 2, 4, 8)), abs=1e-12)
    assert sum(candidates) < 300 * 299 + 200 * 64


def test_one_class_has_no_intervals():
    vectors = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    assert evaluate(Embeddings(vectors, torch.zeros(6, dtype=torch.int64))).intervals == {}


def test_length_of_vectors_does_not_matter():
    data = sample()
    scales = torch.logspace(-20, 20, len(data.labels))[:, None]
    report = evaluate(Embeddings(data.vectors * scales, data.labels), kmeans_restarts=0, bootstrap=0)
    assert retrieval(report) == pytest.approx(retrieval(evaluate(data, kmeans_restarts=0, bootstrap=0)))


def test_perfect_and_hopeless_vectors():
    labels = torch.arange(4).repeat_interleave(3)
    perfect = evaluate(Embeddings(torch.eye(4)[labels], labels))
    assert (*perfect.recall.values(), perfect.precision_at_1, perfect.r_precision, perfect.map_at_r) == (1.0,) * 7
    assert (perfect.nmi, perfect.ami) == (pytest.approx(1.0), pytest.approx(1.0))
    hopeless = evaluate(Embeddings(torch.eye(3).repeat(4, 1), labels))
    assert hopeless.map_at_r < 0.3


def test_single_items_are_counted_reported_and_left_out():
    data = sample(200, 20)
    lonely = Embeddings(
        torch.cat([data.vectors, torch.randn(3, 16)]), torch.cat([data.labels, torch.tensor([50, 51, 52])])
    )
    report = evaluate(lonely, kmeans_restarts=0)
    assert (report.num_queries, report.num_without_positives, report.num_classes) == (203, 3, 23)
    assert "50" not in report.recall_per_class
    assert retrieval(report) == pytest.approx(by_the_book(lonely, None, (1, 2, 4, 8)), abs=1e-12)


def test_zero_vectors_are_reported_and_similar_to_nothing():
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.1], [1.0, 0.0], [0.0, 0.0]])
    report = evaluate(Embeddings(vectors, torch.tensor([0, 1, 1, 0])), kmeans_restarts=0, bootstrap=0)
    assert report.num_zero_vectors == 2
    # All similarities of a zero vector are 0, so its neighbours come in the order of rows: 1, 2, 3 and 0, 1, 2.
    assert report.recall == {1: 0.75, 2: 0.75, 4: 1.0, 8: 1.0}


def test_vectors_that_are_no_numbers_are_refused():
    vectors = torch.ones(5, 2)
    vectors[1, 0], vectors[3, 1] = torch.nan, torch.inf
    with pytest.raises(ValueError, match="NaN or infinite numbers in 2 rows, the first is row 1"):
        Embeddings(vectors, torch.zeros(5, dtype=torch.int64))


def test_recall_per_class_has_names_and_averages_to_recall():
    data = sample(100, 4)
    report = evaluate(Embeddings(data.vectors, data.labels, class_names=("a", "b", "c", "d")), kmeans_restarts=0)
    sizes = torch.bincount(data.labels).tolist()
    assert list(report.recall_per_class) == ["a", "b", "c", "d"]
    total = sum(size * share for size, share in zip(sizes, report.recall_per_class.values(), strict=True))
    assert total / 100 == pytest.approx(report.recall[1])


def test_intervals_hold_the_metrics_and_kmeans_says_its_spread():
    report = evaluate(sample(), seed=7, kmeans_restarts=3)
    values = {f"recall@{k}": share for k, share in report.recall.items()}
    values |= {name: getattr(report, name) for name in ("precision_at_1", "r_precision", "map_at_r")}
    assert report.intervals.keys() == values.keys()
    for name, (low, high) in report.intervals.items():
        assert low <= values[name] <= high
    assert report.kmeans is not None
    assert (report.kmeans.seed, report.kmeans.restarts) == (7, 3)
    assert report.kmeans.nmi_spread > 0
    again = evaluate(sample(), seed=7, kmeans_restarts=3)
    assert (again.nmi, again.ami, again.kmeans, again.intervals) == (
        report.nmi,
        report.ami,
        report.kmeans,
        report.intervals,
    )


def test_arrays_lists_and_strings_are_accepted():
    data = sample(60, 6)
    options = {"kmeans_restarts": 0, "bootstrap": 0}
    expected = evaluate(data, **options)
    names = [f"class {label}" for label in data.labels.tolist()]
    for vectors, labels in (
        (data.vectors.numpy(), data.labels.numpy()),
        (data.vectors, data.labels.int()),
        (data.vectors.tolist(), data.labels.tolist()),
        (data.vectors.double().numpy(), names),
        (data.vectors.numpy(), np.array(names, dtype=object)),
    ):
        assert retrieval(evaluate(vectors, labels, **options)) == retrieval(expected)
    assert list(evaluate(data.vectors, names, **options).recall_per_class) == sorted(set(names))


def test_strings_name_the_same_classes_in_queries_and_gallery():
    queries, gallery = sample(40, 5, seed=1), sample(90, 8, seed=2)
    names = "hgfedcba"
    spelled = [[names[label] for label in data.labels.tolist()] for data in (queries, gallery)]
    report = evaluate(queries.vectors, spelled[0], gallery=gallery.vectors, gallery_labels=spelled[1])
    assert retrieval(report) == pytest.approx(by_the_book(queries, gallery, (1, 2, 4, 8)), abs=1e-12)


def test_results_per_class_average_to_the_report():
    report = evaluate(sample(), kmeans_restarts=0, recall_at=(2, 5))
    results = report.per_class.values()
    total = sum(result.queries for result in results)
    assert total == report.num_queries - report.num_without_positives
    assert sum(r.queries * r.recall_at_1 for r in results) / total == pytest.approx(report.precision_at_1)
    assert sum(r.queries * r.map_at_r for r in results) / total == pytest.approx(report.map_at_r)


def test_double_and_half_precision_vectors_are_accepted():
    data = sample()
    expected = retrieval(evaluate(data, kmeans_restarts=0, bootstrap=0))
    double = Embeddings(data.vectors.double(), data.labels.int())
    assert retrieval(evaluate(double, kmeans_restarts=0, bootstrap=0)) == pytest.approx(expected)
    half = Embeddings(data.vectors.half(), data.labels)
    assert evaluate(half, kmeans_restarts=0, bootstrap=0).precision_at_1 == pytest.approx(expected[0], abs=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Embeddings(torch.ones(3), torch.zeros(3).long()), "vectors"),
        (lambda: Embeddings(torch.ones(0, 2), torch.zeros(0).long()), "vectors"),
        (lambda: Embeddings(torch.ones(3, 2), torch.zeros(2).long()), "labels: expected 3"),
        (lambda: Embeddings(torch.ones(3, 2), torch.zeros(3)), "labels: expected 3 integers"),
        (lambda: Embeddings(torch.ones(3, 2), torch.zeros(3).bool()), "labels: expected 3 integers"),
        (lambda: Embeddings(torch.ones(3, 2), torch.zeros(3).long(), paths=("a",)), "paths: expected 3"),
        (lambda: Embeddings(torch.ones(3, 2), torch.tensor([0, 1, 2]), class_names=("a", "b")), "class_names: 2 names"),
        (lambda: evaluate(Embeddings(torch.ones(3, 2), torch.arange(3))), "no query has another item"),
        (lambda: evaluate(sample(), recall_at=()), "recall_at"),
        (lambda: evaluate(sample(), recall_at=(0, 1)), "recall_at"),
        (lambda: evaluate(sample(), kmeans_restarts=-1), "kmeans_restarts = -1"),
        (lambda: evaluate(sample(), bootstrap=-1), "bootstrap = -1"),
        (lambda: evaluate(sample(dim=16), gallery=sample(dim=8)), "gallery: 8 dimensions"),
        (lambda: evaluate(np.ones((3, 2))), "got ndarray without labels"),
        (lambda: evaluate(np.ones((3, 2)), [0, 1]), "labels: expected 3"),
        (
            lambda: evaluate(np.ones((3, 2)), [0.5, 1, 2]),
            "labels: expected one integer or string per vector, got float",
        ),
        (lambda: evaluate(np.ones((3, 2)), ["a", None, "b"]), "labels: expected one integer or string"),
        (lambda: evaluate(["a", "b"], [0, 1]), "embeddings: expected rows of numbers"),
        (lambda: evaluate(sample(), torch.zeros(300)), "do not pass labels"),
        (lambda: evaluate(sample(), gallery=np.ones((3, 16)), gallery_labels=[0, 0, 1]), "both as Embeddings"),
        (lambda: evaluate(np.ones((2, 2)), [0, 0], gallery_labels=[0]), "gallery_labels without a gallery"),
        (
            lambda: evaluate(np.ones((2, 2)), [0, 0], gallery=np.ones((2, 2)), gallery_labels=["a", "b"]),
            "one are strings, the other integers",
        ),
    ],
)
def test_wrong_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
