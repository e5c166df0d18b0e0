"""What training is measured against."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import TfidfVectorizer

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, Split, Texts, Vectors
from softtriple.metrics import Report, evaluate
from softtriple.models.heads import pca_head
from softtriple.progress import Reporter
from softtriple.training import baseline
from softtriple.training.baseline import tfidf_vectors, verdict
from softtriple.training.run import Run
from softtriple.training.train import train

TRAIN = ["reset my password", "password reset", "where is my order", "track my order"]
QUERIES = ["cancel the order", "order cancelled", "", "delete account", "cancel the order"]
GALLERY = ["cancel an order", "close the account"]


def sparse_cosines() -> torch.Tensor:
    counted = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit(TRAIN)
    rows = counted.transform(QUERIES + GALLERY).toarray()
    return F.normalize(torch.from_numpy(rows)) @ F.normalize(torch.from_numpy(rows)).T


def test_dense_vectors_have_the_cosines_of_tfidf() -> None:
    queries, gallery = tfidf_vectors(TRAIN, [QUERIES, GALLERY])
    assert (len(queries), len(gallery)) == (5, 2)
    assert queries.dtype == torch.float32
    rows = torch.cat([queries, gallery]).double()
    expected = sparse_cosines()
    torch.testing.assert_close(rows @ rows.T, expected, atol=1e-5, rtol=0)
    assert expected[0, 5] > expected[0, 6]


def test_many_texts_are_approximated_by_singular_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "EXACT_TEXTS", 3)
    monkeypatch.setattr(baseline, "SINGULAR_VECTORS", 6)
    rows = torch.cat(tfidf_vectors(TRAIN, [QUERIES, GALLERY])).double()
    torch.testing.assert_close(rows @ rows.T, sparse_cosines(), atol=1e-4, rtol=0)


def made(shares: list[float]) -> Report:
    per_class = {
        f"{name}": {"queries": 10, "recall_at_1": share, "map_at_r": share / 2} for name, share in enumerate(shares)
    }
    mean = float(np.mean(shares))
    return Report(
        recall={1: mean}, precision_at_1=mean, r_precision=mean, map_at_r=mean / 2,
        num_queries=10 * len(shares), num_gallery=10 * len(shares), num_classes=len(shares), per_class=per_class,
    )  # fmt: skip


POOR = [0.2, 0.3, 0.4, 0.5, 0.3, 0.4]


def test_nothing_is_said_if_training_helped() -> None:
    assert verdict(made(POOR), made([share + 0.2 for share in POOR])) is None


@pytest.mark.parametrize("gains", [[0.0] * 6, [-0.1] * 6, [0.2, -0.2, 0.2, -0.2, 0.1, -0.1]])
def test_it_is_said_if_training_did_not_clearly_help(gains: list[float]) -> None:
    told = verdict(made(POOR), made([share + gain for share, gain in zip(POOR, gains, strict=True)]))
    assert told is not None
    assert f"R@1 {100 * np.mean(gains):+.1f}" in told.replace("-0.0", "+0.0")
    assert f"MAP@R {50 * np.mean(gains):+.1f}" in told.replace("-0.0", "+0.0")
    assert "--dim" in told


def test_where_the_baseline_is_saturated_map_at_r_suffices() -> None:
    before, after = made([0.98] * 6), made([0.98] * 6)
    better = {name: {**vars_of(result), "map_at_r": 0.9} for name, result in after.per_class.items()}
    after = Report(
        recall=after.recall, precision_at_1=0.98, r_precision=0.9, map_at_r=0.9,
        num_queries=60, num_gallery=60, num_classes=6, per_class=better,
    )  # fmt: skip
    assert verdict(before, after) is None
    assert verdict(after, before) is not None


def vars_of(result: object) -> dict[str, float]:
    return {name: getattr(result, name) for name in ("queries", "recall_at_1", "map_at_r")}


def run(benchmark: Benchmark, *settings: str) -> Run:
    config = with_settings(Config(), ["train.epochs=1", *settings])
    return train(benchmark, config=config, reporter=Reporter(quiet=True))


def test_vectors_are_measured_whole_and_cut_by_pca() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 6)
    values = (random.standard_normal((8, 7))[labels] + random.standard_normal((48, 7))).astype(np.float32)
    parts = [Split(Vectors(values[rows]), labels[rows]) for rows in np.split(np.arange(48), 2)]
    benchmark = Benchmark(name="made", class_names=tuple("abcdefgh"), train=parts[0], test=parts[1])
    baselines = run(benchmark, "model.dim=3").baselines
    assert list(baselines) == ["the vectors themselves, 7-d", "PCA to 3-d"]
    test = torch.from_numpy(values[24:])
    weight, bias = pca_head(torch.from_numpy(values[:24]), 3)
    for report, rows in zip(baselines.values(), (test, (test.double() @ weight.T + bias).float()), strict=True):
        expected = evaluate(rows, torch.from_numpy(labels[24:]), recall_at=(1,))
        assert report.recall[1] == pytest.approx(expected.recall[1])
        assert report.map_at_r == pytest.approx(expected.map_at_r)
    assert list(run(benchmark).baselines) == ["the vectors themselves, 7-d"]  # nothing to cut


def test_texts_are_measured_against_tfidf() -> None:
    words = ["order", "parcel", "password", "account", "invoice", "refund"]
    texts = tuple(f"{verb} my {word} {end}" for word in words for verb in ("where is", "change") for end in ("", "now"))
    labels = np.repeat(np.arange(6), 4)
    parts = [Split(Texts(texts[start : start + 12]), labels[start : start + 12]) for start in (0, 12)]
    benchmark = Benchmark(name="made", class_names=tuple(words), train=parts[0], test=parts[1])
    outcome = run(benchmark)
    ((name, report),) = outcome.baselines.items()
    assert "TF-IDF" in name
    (vectors,) = tfidf_vectors(texts[:12], [texts[12:]])
    assert report.map_at_r == pytest.approx(evaluate(vectors, torch.from_numpy(labels[12:])).map_at_r)
    assert outcome.baseline == report
