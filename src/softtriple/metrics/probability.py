"""From a score to a probability: logistic regression on binned scores, and how far a map is from the truth."""

from typing import NamedTuple

import numpy as np
import scipy  # loads scipy.special on first use: it takes a quarter of a second
from jaxtyping import Float

BINS = 10  # of probability, for the calibration error


class Masses(NamedTuple):
    """Shares of all cases by score: those where the statement is true, and those where it is false."""

    scores: Float[np.ndarray, " bins"]
    true: Float[np.ndarray, " bins"]
    false: Float[np.ndarray, " bins"]


class Bin(NamedTuple):
    """Cases with similar probabilities: the mean of these, the share that is true, and the share of all cases."""

    probability: float
    true: float
    mass: float


def fit_logistic(masses: Masses, cases: int) -> tuple[float, float]:
    """Slope and intercept of the log-odds as a linear function of the score.

    Two parameters, where isotonic regression has a step for every few cases: it would follow the classes at hand, and
    answer 0 or 1 beyond them. Cases that a score separates completely would make the slope infinite; as in Platt's
    method, one of ``cases`` of either kind counts as mistaken.
    """
    from sklearn.linear_model import LogisticRegression

    true, false = masses.true.sum(), masses.false.sum()
    doubt = 1 / (cases + 2)
    weights = np.concatenate(
        [
            masses.true * (1 - doubt) + masses.false * doubt,
            masses.false * (1 - doubt) + masses.true * doubt,
        ]
    )
    spread = float(masses.scores.max() - masses.scores.min()) or 1.0
    scores = np.tile((masses.scores - masses.scores.min()) / spread, 2)[:, None]
    said = np.repeat([1, 0], len(masses.scores))
    model = LogisticRegression(C=1e6, max_iter=1000)
    model.fit(scores, said, sample_weight=weights * cases / (true + false))
    slope = float(model.coef_[0, 0]) / spread
    return slope, float(model.intercept_[0]) - slope * float(masses.scores.min())


def reliability(masses: Masses, probabilities: Float[np.ndarray, " bins"]) -> list[Bin]:
    """Cases by their probability in tenths, without empty tenths."""
    place = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    mass = masses.true + masses.false
    total = mass.sum()
    bins = []
    for tenth in np.unique(place[mass > 0]):
        inside = place == tenth
        weight = mass[inside].sum()
        mean = float((probabilities[inside] * mass[inside]).sum() / weight)
        bins.append(Bin(mean, float(masses.true[inside].sum() / weight), float(weight / total)))
    return bins


def calibration_error(bins: list[Bin]) -> float:
    """Expected calibration error: mean distance between probability and truth, weighted by the cases.

    Example:
        >>> calibration_error([Bin(0.25, 0.5, 0.5), Bin(0.75, 0.75, 0.5)])
        0.125
    """
    return sum(one.mass * abs(one.probability - one.true) for one in bins)


def log_odds_map(slope: float, intercept: float, scores: Float[np.ndarray, " bins"]) -> Float[np.ndarray, " bins"]:
    """The probability of each score."""
    return np.asarray(scipy.special.expit(slope * scores + intercept))
