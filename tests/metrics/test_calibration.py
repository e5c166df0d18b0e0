"""Calibration on classes of known shape, its JSON, and galleries of other sizes."""

import json

import numpy as np
import pytest
import torch

from softtriple.errors import UserError
from softtriple.metrics import Calibration, Embeddings, calibrate, format_calibration
from softtriple.metrics import calibration as module
from softtriple.metrics.calibration import sample_rows


def embeddings(classes: int, per_class: int = 8, spread: float = 0.35, seed: int = 0) -> Embeddings:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    centers = random.standard_normal((classes, 16)) / 4
    values = centers[labels] + spread / 4 * random.standard_normal((len(labels), 16))
    names = tuple(f"class {label}" for label in range(classes))
    return Embeddings(torch.from_numpy(values).float(), torch.from_numpy(labels), class_names=names)


@pytest.fixture(scope="module")
def made() -> Calibration:
    return calibrate(embeddings(40, spread=0.8), source="test classes", far=0.05)


def test_what_it_says_of_itself(made: Calibration) -> None:
    assert made.source == "test classes"
    assert made.classes == tuple(f"class {label}" for label in range(40))
    assert (made.num_items, made.gallery_classes, made.items_per_class) == (320, 20, 4)
    assert made.false_accept == pytest.approx(0.05, abs=1e-6)
    low, high = made.threshold_interval
    assert low < made.threshold < high
    assert made.false_accept_interval[0] < 0.05 < made.false_accept_interval[1]
    assert made.false_reject_interval[0] <= made.false_reject <= made.false_reject_interval[1]
    assert 0.5 < made.accuracy < made.auroc < 1
    assert made.error_after < made.error_before
    assert sum(one.mass for one in made.reliability) == pytest.approx(1)
    assert made.pairs.error_after < made.pairs.error_before
    assert f"{made.threshold:.3f}" in format_calibration(made)


def test_json_gives_the_equal_value_back(made: Calibration) -> None:
    assert Calibration.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"threshold": "high"}, "threshold"),
        ({"sizes": []}, "sizes"),
        ({"class_error": float("nan")}, "class_error"),
        ({"x": 1}, "x"),
    ],
)
def test_damaged_json_is_named(made: Calibration, change: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=f"not a calibration: .*{named}"):
        Calibration.from_json(json.dumps({**json.loads(made.to_json()), **change}))
    with pytest.raises(UserError, match="not a calibration"):
        Calibration.from_json("{")


def test_the_rate_on_other_classes_is_the_wanted_one() -> None:
    """Over many draws of classes, the share of unknown queries accepted is as wanted, and within what is expected."""
    measured, inside = [], 0
    for seed in range(8):
        made = calibrate(embeddings(30, spread=0.8, seed=seed), source="x", far=0.1)
        # The same gallery and items, other classes.
        other = calibrate(embeddings(30, spread=0.8, seed=100 + seed), source="x", far=0.1)
        curve = other.curves
        measured.append(float(np.interp(made.threshold, curve.thresholds, curve.false_accept)))
        low, high = made.expected(30)
        inside += low <= measured[-1] <= high
    assert np.mean(measured) == pytest.approx(0.1, abs=0.03)
    assert inside >= 7


def test_a_wanted_false_reject_rate() -> None:
    made = calibrate(embeddings(20, spread=0.8), source="x", frr=0.1)
    assert made.false_reject == pytest.approx(0.1, abs=1e-6)
    assert made.threshold_interval[0] <= made.threshold <= made.threshold_interval[1]


def test_without_a_wanted_rate_both_are_equal() -> None:
    made = calibrate(embeddings(40, spread=0.8), source="x")
    assert made.wanted == "equal_error"
    assert made.false_reject == pytest.approx(made.false_accept, abs=1e-3)
    assert made.level == made.false_accept == pytest.approx(made.equal_error_rate, abs=1e-3)
    assert made.threshold_interval[0] < made.threshold < made.threshold_interval[1]
    with pytest.raises(UserError, match="far or frr"):
        calibrate(embeddings(6), source="x", far=0.1, frr=0.1)


def test_larger_galleries_have_higher_thresholds_and_lower_probabilities(made: Calibration) -> None:
    sizes = [made.at(classes, 0) for classes in (1, 2, 5, 20, 39, 100, 10_000)]
    thresholds = [size.threshold for size in sizes]
    assert thresholds == sorted(thresholds)
    assert made.at(20, 80).threshold == pytest.approx(made.threshold)
    chances = [size.probability(made.threshold) for size in sizes]
    assert chances == sorted(chances, reverse=True)
    assert all(size.slope > 0 for size in sizes)


def test_many_items_count_as_many_classes(made: Calibration) -> None:
    assert made.at(5, 400) == made.at(100, 400)
    assert made.at(0, 0).threshold == made.sizes[0].threshold


def test_too_few_classes_and_impossible_rates() -> None:
    with pytest.raises(UserError, match="at least 4"):
        calibrate(embeddings(3), source="test classes")
    singles = embeddings(9, per_class=1)
    with pytest.raises(UserError, match="0 classes with two or more items"):
        calibrate(singles, source="test classes")
    for level in (0.0, 1.0, float("nan")):
        with pytest.raises(UserError, match="far"):
            calibrate(embeddings(6), source="test classes", far=level)


def test_an_odd_number_of_classes() -> None:
    made = calibrate(embeddings(7, spread=0.8), source="x", far=0.2)
    assert (made.gallery_classes, made.sizes[-1].classes) == (3, 6)
    assert made.at(3, 0).threshold == pytest.approx(made.threshold)


def test_four_separate_classes_are_enough() -> None:
    made = calibrate(embeddings(4, spread=0.01), source="x")
    assert made.gallery_classes == 2
    assert [made.recall_at_1, made.auroc] == pytest.approx([1, 1])
    assert Calibration.from_json(made.to_json()) == made


def test_samples_are_bounded_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat(np.arange(50), 10)
    assert np.array_equal(sample_rows(labels), np.arange(500))
    monkeypatch.setattr(module, "MOST_CLASSES", 20)
    monkeypatch.setattr(module, "MOST_PER_CLASS", 6)
    rows = sample_rows(labels)
    classes, sizes = np.unique(labels[rows], return_counts=True)
    assert len(classes) == 20
    assert set(sizes) == {6}
    assert np.array_equal(rows, sample_rows(labels))
