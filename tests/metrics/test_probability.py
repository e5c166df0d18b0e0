"""From scores to probabilities."""

import numpy as np
import pytest
from scipy.special import expit

from softtriple.metrics.probability import Masses, calibration_error, fit_logistic, log_odds_map, reliability

SCORES = np.linspace(-1, 1, 201)


def test_a_logistic_truth_is_recovered() -> None:
    truth = expit(6 * SCORES - 2)
    slope, intercept = fit_logistic(Masses(SCORES, truth / 201, (1 - truth) / 201), cases=100_000)
    assert slope == pytest.approx(6, rel=0.02)
    assert intercept == pytest.approx(-2, rel=0.02)


def test_separated_scores_keep_some_doubt() -> None:
    apart = Masses(SCORES, (SCORES > 0) / 201, (SCORES <= 0) / 201)
    certain = log_odds_map(*fit_logistic(apart, cases=10_000), SCORES)
    doubtful = log_odds_map(*fit_logistic(apart, cases=20), SCORES)
    assert (np.diff(certain) >= 0).all()
    assert 0.9 < doubtful[-1] < certain[-1] <= 1


def test_the_calibration_error_by_hand() -> None:
    masses = Masses(np.array([0.1, 0.2, 0.9]), np.array([1.0, 0.0, 1.0]) / 4, np.array([0.0, 1.0, 1.0]) / 4)
    said = np.array([0.12, 0.18, 0.95])
    bins = reliability(masses, said)
    assert [tuple(round(value, 4) for value in one) for one in bins] == [(0.15, 0.5, 0.5), (0.95, 0.5, 0.5)]
    assert calibration_error(bins) == pytest.approx(0.5 * 0.35 + 0.5 * 0.45)


def test_true_probabilities_have_no_error() -> None:
    truth = expit(3 * SCORES)
    masses = Masses(SCORES, truth / 201, (1 - truth) / 201)
    assert calibration_error(reliability(masses, truth)) == pytest.approx(0, abs=1e-12)
