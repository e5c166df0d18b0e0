"""Error rates of a search with rejection, against plain loops over every choice of known classes."""

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from softtriple.metrics import open_set
from softtriple.metrics.open_set import Trial

RANDOM = np.random.default_rng(0)


def make_trial(classes: int, per_class: int = 3) -> Trial:
    labels = np.repeat(np.arange(classes), per_class)
    best = RANDOM.uniform(-0.2, 0.8, (len(labels), classes))
    best[np.arange(len(labels)), labels] += 0.2
    return Trial(labels, best)


def by_the_book(trial: Trial, gallery: int, threshold: float) -> tuple[float, float, float]:
    """Every gallery of that many classes, every query: unknown accepted, known accepted, known accepted and right."""
    unknown, known, right = [], [], []
    for chosen in combinations(range(trial.best.shape[1]), gallery):
        for label, row in zip(trial.labels, trial.best, strict=True):
            best = max(chosen, key=lambda one: row[one])
            accepted = row[best] >= threshold
            if label in chosen:
                known.append(accepted)
                right.append(accepted and best == label)
            else:
                unknown.append(accepted)
    return float(np.mean(unknown)), float(np.mean(known)), float(np.mean(right))


@pytest.mark.parametrize(("classes", "gallery"), [(4, 1), (4, 2), (5, 4), (6, 3)])
def test_rates_are_those_of_all_galleries(classes: int, gallery: int) -> None:
    trial, thresholds = make_trial(classes), np.array([0.1, 0.45, 0.7])
    found = open_set.rates(open_set.count([trial], thresholds), gallery, thresholds)
    expected = np.array([by_the_book(trial, gallery, threshold) for threshold in thresholds])
    np.testing.assert_allclose(np.stack(found[1:], axis=1), expected, atol=1e-12)


def test_larger_galleries_accept_more_unknown_queries() -> None:
    trials = [make_trial(12), make_trial(12)]
    thresholds = open_set.grid(trials)
    counts = open_set.count(trials, thresholds)
    found = [open_set.rates(counts, gallery, thresholds).false_accept for gallery in (1, 3, 6, 11)]
    for small, large in pairwise(found):
        assert (large >= small - 1e-12).all()
    assert found[0][0] == found[-1][0] == 1
    assert found[-1][-1] == 0


def test_trials_search_the_other_half_of_each_class() -> None:
    labels = np.array([1, 0, 1, 0, 2, 2, 2, 1])
    vectors = F.normalize(torch.from_numpy(RANDOM.standard_normal((8, 4))).float(), dim=1)
    first, second = open_set.make_trials(vectors, labels, seed=0)
    assert sorted([*first.labels, *second.labels]) == sorted(labels)
    similarity = (vectors @ vectors.T).numpy()
    for trial in (first, second):
        for label, row in zip(trial.labels, trial.best, strict=True):
            assert (row < 1 - 1e-6).all(), "a query does not find itself"
            near = [np.abs(similarity[one][:, None] - row).min(axis=0).max() for one in np.flatnonzero(labels == label)]
            query = np.flatnonzero(labels == label)[int(np.argmin(near))]
            for other in range(3):
                assert np.abs(similarity[query][labels == other] - row[other]).min() < 1e-6


def test_restricting_forgets_the_other_classes() -> None:
    trial = make_trial(5)
    (kept,) = open_set.restrict([trial], np.array([1, 4]))
    rows = np.isin(trial.labels, [1, 4])
    assert kept.labels.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(kept.best, trial.best[rows][:, [1, 4]])


def test_the_error_of_false_accepts_counts_both_classes_of_a_pair() -> None:
    """A U-statistic of pairs by its definition: covariances of all pairs of pairs that share a class."""
    classes, gallery, threshold = 6, 1, 0.6
    trial = make_trial(classes, per_class=4)
    accepted = trial.others >= threshold
    rate = accepted.sum() / (classes - 1) / len(trial.labels)
    terms = {}
    for a, b in combinations(range(classes), 2):
        pair = accepted[trial.labels == a, b].sum() + accepted[trial.labels == b, a].sum() - 2 * 4 * rate
        terms[a, b] = pair / (classes - 1) / len(trial.labels)
    variance = sum(terms[one] * terms[two] for one in terms for two in terms if set(one) & set(two))
    error, effective = open_set.false_accept_error([trial], gallery, threshold)
    assert error == pytest.approx(np.sqrt(variance), rel=1e-5)
    assert 1 <= effective <= classes


def test_false_accepts_of_one_pair_rest_on_two_classes() -> None:
    labels = np.repeat(np.arange(40), 2)
    best = np.zeros((80, 40))
    best[labels == 3, 5] = best[labels == 5, 3] = 0.9
    _, effective = open_set.false_accept_error([Trial(labels, best)], 10, 0.5)
    assert effective == pytest.approx(2, abs=0.3)


def test_intervals_contain_the_share_and_widen_with_fewer_classes() -> None:
    few, many = (open_set.share_interval(0.01, 0.002, effective) for effective in (5.0, 500.0))
    assert 0 < few[0] < many[0] < 0.01 < many[1] < few[1] < 1
    assert open_set.share_interval(0.0, 0.1, 10.0) == (0.0, 0.0)
    low, high = open_set.share_interval(0.99, 0.002, 5.0)
    assert (1 - high, 1 - low) == pytest.approx(few)
