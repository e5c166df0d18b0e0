"""Error rates of a search that may answer "none of these", by threshold, over every choice of known classes.

A gallery of G classes is searched by items of its own classes (known) and of other classes (unknown). With N classes to
learn from, any G of them can be the gallery. The rates are means over all these choices, in closed form: if j of the n
classes other than the query's own have an item at least as similar as the threshold, G of them taken at random include
none of the j with probability C(n - j, G) / C(n, G). Such a mean is unbiased for a gallery of G classes drawn from the
same population, and it depends on G: the more classes there are to be mistaken for, the better an unknown matches.

**Standard errors.** A false accept belongs to two classes, the query's and the one it was taken for, and either may be
a class that looks like many others. Its error is therefore clustered by pairs that share a class: with S the symmetric
matrix of what each pair contributes, minus its mean, the variance is the sum of squared row sums of S minus the sum of
squares over pairs, which the row sums count twice (Aronow, Samii and Assenova, *Political Analysis* 23, 2015). Where a
few look-alike classes make most of the errors, a hundred classes say no more than these few: intervals are those of
Student's t with the effective number of classes, (sum r²)² / sum r⁴ of the row sums r, minus one degree of freedom.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # loads scipy.special on first use: it takes a quarter of a second
from jaxtyping import Float, Int
from torch import Tensor, split

GRID = 100  # about a third of the thresholds at which rates are computed


class Trial(NamedTuple):
    """Queries: the class of each as a number from 0, and its best similarity to the gallery items of every class."""

    labels: Int[np.ndarray, " queries"]
    best: Float[np.ndarray, "queries classes"]

    @property
    def own(self) -> Float[np.ndarray, " queries"]:
        """Best similarity to the query's own class."""
        return np.asarray(self.best[np.arange(len(self.labels)), self.labels])

    @property
    def others(self) -> Float[np.ndarray, "queries classes"]:
        """Best similarities with the query's own class at minus infinity."""
        others = self.best.copy()
        others[np.arange(len(self.labels)), self.labels] = -np.inf
        return others


class Counts(NamedTuple):
    """What the rates of a trial depend on, for a gallery of any size."""

    own: Float[np.ndarray, " queries"]
    ahead: Int[np.ndarray, " queries"]  # other classes before the query's own
    above: Int[np.ndarray, "grid queries"]  # other classes at or above each threshold
    others: int


class ClassError(NamedTuple):
    """Standard error of a share over the choice of classes, and how many of them it effectively rests on."""

    error: float
    effective: float


class Rates(NamedTuple):
    """Shares of queries by threshold, which never increase with it."""

    thresholds: Float[np.ndarray, " grid"]
    false_accept: Float[np.ndarray, " grid"]  # of unknown queries: the best match is at or above the threshold
    accept: Float[np.ndarray, " grid"]  # of known queries: the same
    right: Float[np.ndarray, " grid"]  # of known queries: the same, and the match has the query's class


def make_trials(vectors: Float[Tensor, "items dim"], labels: Int[np.ndarray, " items"], seed: int) -> list[Trial]:
    """Two trials: a random half of the items of each class searches the other half, and the reverse.

    Vectors are of unit length, ``labels`` count from 0, and every class has at least two items.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[labels[order].argsort(kind="stable")]
    place = np.arange(len(order)) - np.searchsorted(labels[order], labels[order])
    even, odd = order[place % 2 == 0], order[place % 2 == 1]
    return [_trial(vectors, labels, even, odd), _trial(vectors, labels, odd, even)]


def restrict(trials: Sequence[Trial], classes: Int[np.ndarray, " some"]) -> list[Trial]:
    """The trials as if only these ``classes`` existed, numbered in their order."""
    number = np.full(trials[0].best.shape[1], -1)
    number[classes] = np.arange(len(classes))
    rows = [number[trial.labels] >= 0 for trial in trials]
    return [Trial(number[t.labels[kept]], t.best[kept][:, classes]) for t, kept in zip(trials, rows, strict=True)]


def grid(trials: Sequence[Trial]) -> Float[np.ndarray, " grid"]:
    """Thresholds from the lowest similarity to just above the highest, dense where the rates change.

    They are quantiles of the similarities to the query's own class and to the best other class; of the latter more and
    more closely towards the highest, where few unknown queries are accepted.
    """
    own = np.concatenate([trial.own for trial in trials])
    other = np.concatenate([trial.others.max(axis=1) for trial in trials])
    ends = [min(trial.best.min() for trial in trials), max(own.max(), other.max()) + 1e-6]
    shares, tail = np.linspace(0, 1, GRID // 2), 1 - np.geomspace(1e-4, 0.1, GRID // 2)
    levels = [np.quantile(own, shares), np.quantile(other, np.concatenate([shares, tail]))]
    return np.unique(np.concatenate([ends, *levels]).astype(np.float64))


def count(trials: Sequence[Trial], thresholds: Float[np.ndarray, " grid"]) -> list[Counts]:
    """What `rates` needs, once for galleries of all sizes."""
    counts = []
    for trial in trials:
        own, others = trial.own, trial.others
        above = np.stack([(others >= threshold).sum(axis=1) for threshold in thresholds])
        counts.append(Counts(own, (others > own[:, None]).sum(axis=1), above, others.shape[1] - 1))
    return counts


def rates(counts: Sequence[Counts], gallery: int, thresholds: Float[np.ndarray, " grid"]) -> Rates:
    """The rates for a gallery of ``gallery`` classes, fewer than there are."""
    curves = []
    for own, ahead, above, others in counts:
        accepted = own >= thresholds[:, None]
        without_own = misses(others, gallery - 1)
        curves.append(
            (
                1 - misses(others, gallery)[above].mean(axis=1),
                1 - (without_own[above] * ~accepted).mean(axis=1),
                (without_own[ahead] * accepted).mean(axis=1),
            )
        )
    return Rates(thresholds, *np.mean(curves, axis=0))


def misses(others: int, gallery: int) -> Float[np.ndarray, " counts"]:
    """Probability that ``gallery`` of ``others`` classes include none of j, for j from 0 to ``others``.

    Example:
        >>> misses(3, 1).round(3).tolist()
        [1.0, 0.667, 0.333, 0.0]
    """
    assert gallery <= others, "a gallery has fewer classes than there are"
    left = others - np.arange(others + 1)
    possible = left >= gallery
    left = np.where(possible, left, gallery)
    gammaln = scipy.special.gammaln
    logs = gammaln(left + 1) - gammaln(left - gallery + 1) - gammaln(others + 1) + gammaln(others - gallery + 1)
    return np.where(possible, np.exp(logs), 0.0)


def threshold_at(thresholds: Float[np.ndarray, " grid"], shares: Float[np.ndarray, " grid"], level: float) -> float:
    """Where a share that decreases with the threshold falls to ``level``.

    Example:
        >>> threshold_at(np.array([0.0, 0.5, 1.0]), np.array([1.0, 0.2, 0.0]), 0.1)
        0.75
    """
    return float(np.interp(-level, -np.minimum.accumulate(shares), thresholds))


def false_accept_error(trials: Sequence[Trial], gallery: int, threshold: float) -> ClassError:
    """The error of the false-accept rate."""
    pairs = np.mean([_pair_terms(trial, gallery, threshold) for trial in trials], axis=0)
    pairs = pairs + pairs.T
    sums = pairs.sum(axis=1)
    return ClassError(float(np.sqrt(max(0.0, (sums**2).sum() - (pairs**2).sum() / 2))), _effective(sums))


def reject_error(trials: Sequence[Trial], gallery: int, threshold: float) -> ClassError:
    """The error of the share of known queries that are rejected, which is mostly a matter of their own class."""
    terms = []
    for trial in trials:
        others = trial.others
        missed = misses(others.shape[1] - 1, gallery - 1)[(others >= threshold).sum(axis=1)]
        rejected = (trial.own < threshold) * missed
        terms.append(np.bincount(trial.labels, rejected - rejected.mean()) / len(rejected))
    sums = np.mean(terms, axis=0)
    return ClassError(float(np.sqrt((sums**2).sum())), _effective(sums))


def share_interval(share: float, error: float, effective: float) -> tuple[float, float]:
    """95 % interval of a share with this standard error, which rests on an effective number of classes.

    It is symmetric in the cube root of the share, or of its complement if that is smaller. Rare errors come in lumps, a
    pair of look-alike classes at a time; a sum of few positive lumps is skewed as gamma variables are, and the cube
    root makes those nearly normal (Wilson and Hilferty, 1931).

    Example:
        >>> [round(end, 4) for end in share_interval(0.01, 0.004, effective=1e9)]
        [0.004, 0.0201]
    """
    if share > 0.5:
        low, high = share_interval(1 - share, error, effective)
        return 1 - high, 1 - low
    if share <= 0:
        return share, share
    reach = scipy.special.stdtrit(max(effective - 1, 1.0), 0.975) * error / (3 * share ** (2 / 3))
    low, high = ((share ** (1 / 3) + side) ** 3 for side in (-reach, reach))
    return float(max(0.0, low)), float(min(1.0, high))


def _effective(sums: Float[np.ndarray, " classes"]) -> float:
    fourth = float((sums**4).sum())
    return float((sums**2).sum()) ** 2 / fourth if fourth > 0 else float(len(sums))


def _trial(
    vectors: Float[Tensor, "items dim"],
    labels: Int[np.ndarray, " items"],
    queries: Int[np.ndarray, " queries"],
    gallery: Int[np.ndarray, " gallery"],
) -> Trial:
    """``gallery`` is in the order of the classes and has all of them."""
    starts = np.flatnonzero(np.diff(labels[gallery], prepend=-1))
    items = vectors[gallery].T
    parts = [np.maximum.reduceat((part @ items).numpy(), starts, axis=1) for part in split(vectors[queries], 1024)]
    return Trial(labels[queries], np.concatenate(parts))


def _pair_terms(trial: Trial, gallery: int, threshold: float) -> Float[np.ndarray, "classes classes"]:
    """What queries of one class taken for another add to the false-accept rate, minus the mean.

    A query that several classes could be taken for counts for each of them in equal parts.
    """
    above = trial.others >= threshold
    classes = above.shape[1]
    j = above.sum(axis=1)
    accepted = 1 - misses(classes - 1, gallery)[j]
    members = np.zeros((classes, len(j)), dtype=np.float32)
    members[trial.labels, np.arange(len(j))] = accepted / np.maximum(j, 1)
    expected = accepted.mean() * np.bincount(trial.labels, minlength=classes) / (classes - 1)
    terms = members @ above.astype(np.float32) - expected[:, None]
    np.fill_diagonal(terms, 0)
    return np.asarray(terms / len(j))
