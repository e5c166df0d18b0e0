"""Whether two items have the same class, by their similarity alone: error rates and a probability."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.metrics.probability import Masses

PAIR_BINS = 1000  # of similarity, from -1 to 1


class Verification(NamedTuple):
    """Error rates when pairs at or above a threshold count as the same class.

    FMR is the share of pairs of different classes that are accepted, FNMR that of pairs of the same class that are not.
    """

    auroc: float
    equal_error_rate: float
    fnmr_at_1_percent_fmr: float
    fnmr_at_0_1_percent_fmr: float


def pair_masses(vectors: Float[Tensor, "items dim"], labels: Int[np.ndarray, " items"]) -> Masses:
    """Pairs by similarity, those of the same class and the others each scaled to one half."""
    edges = np.linspace(-1, 1, PAIR_BINS + 1)
    counts = np.zeros((2, PAIR_BINS))
    for row in range(0, len(labels), 1024):
        similarity = (vectors[row : row + 1024] @ vectors.T).numpy()
        place = np.clip((similarity + 1) * (PAIR_BINS / 2), 0, PAIR_BINS - 1).astype(np.int64)
        # Every pair once: the columns after the row.
        later = np.arange(len(labels)) > np.arange(row, row + len(similarity))[:, None]
        same = labels[row : row + 1024, None] == labels
        for kind, chosen in enumerate((same & later, ~same & later)):
            counts[kind] += np.bincount(place[chosen], minlength=PAIR_BINS)
    same, different = counts / counts.sum(axis=1, keepdims=True) / 2
    return Masses((edges[1:] + edges[:-1]) / 2, same, different)


def verify(masses: Masses) -> Verification:
    """The error rates of pairs."""
    accepted = np.cumsum(masses.true[::-1]) / masses.true.sum(), np.cumsum(masses.false[::-1]) / masses.false.sum()
    true_match, false_match = (np.concatenate([[0.0], shares]) for shares in accepted)
    return Verification(
        auroc=area_under_curve(false_match, true_match),
        equal_error_rate=equal_error_rate(false_match, true_match),
        fnmr_at_1_percent_fmr=float(1 - np.interp(0.01, false_match, true_match)),
        fnmr_at_0_1_percent_fmr=float(1 - np.interp(0.001, false_match, true_match)),
    )


def area_under_curve(false: Float[np.ndarray, " points"], true: Float[np.ndarray, " points"]) -> float:
    """Area under the curve of true against false accepts, both increasing.

    Example:
        >>> area_under_curve(np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.5, 1.0]))
        0.75
    """
    return float(np.trapezoid(true, false))


def equal_error_rate(false: Float[np.ndarray, " points"], true: Float[np.ndarray, " points"]) -> float:
    """Where as many are wrongly accepted as wrongly rejected; both shares increase.

    Example:
        >>> equal_error_rate(np.array([0.0, 0.25, 1.0]), np.array([0.0, 0.75, 1.0]))
        0.25
    """
    return float(np.interp(0.0, false - (1 - true), false))
