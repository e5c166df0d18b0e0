"""The similarity below which a search answers "none of these", and what a score is worth as a probability.

Made from classes that the encoder was not trained on. Some of them play the gallery and the others the unknown, over
all such choices (`softtriple.metrics.open_set`). A calibration is a value of plain numbers, stored as JSON.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import scipy  # loads scipy.special on first use: it takes a quarter of a second
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from torch import Tensor

from softtriple.errors import UserError, counted
from softtriple.metrics import open_set, verification
from softtriple.metrics.evaluate import Embeddings
from softtriple.metrics.open_set import Rates, Trial
from softtriple.metrics.probability import (
    Bin,
    Masses,
    calibration_error,
    fit_logistic,
    log_odds_map,
    reliability,
)

if TYPE_CHECKING:  # as in report.py
    from dataclasses import dataclass
else:
    from functools import partial

    from pydantic.dataclasses import dataclass

    dataclass = partial(dataclass, config=ConfigDict(extra="forbid", allow_inf_nan=False))

Kind = Literal["equal_error", "false_accept", "false_reject"]
Interval = tuple[float, float]

# Bounds that keep a calibration within seconds; the classes and items beyond them are left out at random.
MOST_CLASSES = 300
MOST_PER_CLASS = 40
MOST_ITEMS = 6000
MOST_PAIRED = 1500  # items whose pairs are compared
FEWEST_CLASSES = 4  # two known and two unknown
HALVINGS = 4  # of the classes, to measure the probabilities on classes that they were not fitted to


@dataclass(frozen=True, kw_only=True)
class LogOdds:
    """The log-odds that two items have the same class, slope · similarity + intercept."""

    slope: float
    intercept: float

    def probability(self, score: float) -> float:
        """Probability that two items with this similarity have the same class."""
        return float(scipy.special.expit(self.slope * score + self.intercept))


@dataclass(frozen=True, kw_only=True)
class GallerySize(LogOdds):
    """The threshold for a gallery of some size, and the log-odds of a match if half of all queries are unknown."""

    classes: Annotated[float, Field(ge=1)]
    threshold: float


@dataclass(frozen=True, kw_only=True)
class PairCalibration(LogOdds):
    """Whether two items have the same class: error rates, and the log-odds if that is as likely as not."""

    auroc: float
    equal_error_rate: float
    fnmr_at_1_percent_fmr: float
    fnmr_at_0_1_percent_fmr: float
    error_before: float
    error_after: float


@dataclass(frozen=True, kw_only=True)
class Curves:
    """Shares of queries by threshold, for the gallery that the calibration reports on."""

    thresholds: tuple[float, ...]
    false_accept: tuple[float, ...]  # of unknown queries
    accept: tuple[float, ...]  # of known queries
    right: tuple[float, ...]  # of known queries: accepted, and the match has their class


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Threshold, error rates and probabilities of a search, measured on classes that were not trained on.

    Rates are for a gallery of ``gallery_classes`` with ``items_per_class`` each. ``sizes`` has the threshold for
    smaller and larger ones. Intervals are 95 % intervals over the choice of classes.
    """

    source: str
    classes: tuple[str, ...]
    num_items: int
    gallery_classes: int
    items_per_class: Annotated[float, Field(gt=0)]
    wanted: Kind  # what the threshold was chosen for
    level: float  # of that rate
    threshold: float
    threshold_interval: Interval
    false_accept: float
    false_accept_interval: Interval
    false_reject: float  # of known queries, whatever their best match
    false_reject_interval: Interval
    accuracy: float  # known queries with the right class and unknown ones rejected, if half of all are unknown
    recall_at_1: float  # of known queries, nothing rejected
    auroc: float  # of known against unknown queries, by the similarity of the best match
    equal_error_rate: float
    class_error: float  # standard error of the wanted rate over the choice of classes
    effective_classes: float  # how many classes that rate effectively rests on
    error_before: float  # calibration error of the similarity taken as a probability
    error_after: float  # of the probability, fitted to half of the classes and measured on the other half
    reliability: tuple[Bin, ...]
    sizes: Annotated[tuple[GallerySize, ...], Field(min_length=1)]
    curves: Curves
    pairs: PairCalibration

    def at(self, classes: int, items: int) -> GallerySize:
        """Threshold and probabilities for a gallery of this size, interpolated in the logarithm of its classes.

        Items beyond ``items_per_class`` count as further classes, which rather rejects too much than too little. Beyond
        the largest gallery that was measured, the threshold rises and the log-odds of a right match fall as in the last
        doubling that was.
        """
        wanted = math.log(max(1.0, classes, items / self.items_per_class))
        known = np.log([size.classes for size in self.sizes])
        columns = np.array([(size.threshold, size.slope, size.intercept) for size in self.sizes])
        threshold, slope, intercept = (float(np.interp(wanted, known, column)) for column in columns.T)
        if wanted > known[-1] and len(known) > 1:
            last, before = self.sizes[-1], self.sizes[-2]
            steps = (wanted - known[-1]) / (known[-1] - known[-2])
            threshold += steps * max(0.0, last.threshold - before.threshold)
            fall = (last.slope - before.slope) * last.threshold + last.intercept - before.intercept
            intercept += steps * min(0.0, fall)
        return GallerySize(classes=math.exp(wanted), threshold=threshold, slope=slope, intercept=intercept)

    def expected(self, classes: int) -> Interval:
        """95 % interval of the wanted rate as measured on this number of other classes, which vary as these did."""
        error = self.class_error * math.sqrt(1 + len(self.classes) / classes)
        return open_set.share_interval(self.level, error, self.effective_classes)

    def to_json(self) -> str:
        """The calibration as one JSON object; `from_json` gives the equal value back."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> "Calibration":
        """Read what `to_json` wrote."""
        try:
            return TypeAdapter(Calibration).validate_python(json.loads(text))
        except json.JSONDecodeError as error:
            raise UserError(f"not a calibration: {error}") from error
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc'])) or 'JSON'}: {fault['msg']}" for fault in error.errors())
            raise UserError(f"not a calibration: {'; '.join(faults)}") from error


def check_rates(far: float | None, frr: float | None) -> None:
    """UserError unless at most one of the rates is given, and is a share that a threshold can be chosen for."""
    if far is not None and frr is not None:
        raise UserError("a threshold has one wanted rate: give far or frr, not both")
    for name, rate in (("far", far), ("frr", frr)):
        if rate is not None and not 0 < rate < 1:
            raise UserError(f"{name} = {rate}: expected a share between 0 and 1, such as 0.01 for one per cent")


def usable_classes(labels: Int[np.ndarray, " items"]) -> Int[np.ndarray, " classes"]:
    """Classes with at least two items, one for the gallery and one to search with."""
    classes, sizes = np.unique(labels, return_counts=True)
    return classes[sizes > 1]


def sample_rows(labels: Int[np.ndarray, " items"], seed: int = 0) -> Int[np.ndarray, " rows"]:
    """The rows that a calibration uses: all of them, or as many random ones as the bounds of this module allow."""
    random = np.random.default_rng(seed)
    classes = random.permutation(usable_classes(labels))[:MOST_CLASSES]
    most = min(MOST_PER_CLASS, max(2, MOST_ITEMS // max(1, len(classes))))
    rows = [random.permutation(np.flatnonzero(labels == label))[:most] for label in np.sort(classes)]
    return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)


def calibrate(
    embeddings: Embeddings, *, source: str, far: float | None = None, frr: float | None = None, seed: int = 0
) -> Calibration:
    """The calibration from embeddings of classes that the encoder was not trained on.

    The threshold is that for a wanted false-accept rate ``far`` or false-reject rate ``frr``; without either, the one
    at which both rates are equal. ``source`` says which classes these are. Every class needs two items; classes with a
    single one are left out.
    """
    check_rates(far, frr)
    wanted: Kind = "false_accept" if far is not None else "false_reject" if frr is not None else "equal_error"
    level = far if far is not None else frr
    rows = sample_rows(embeddings.labels.cpu().numpy(), seed)
    names, labels = np.unique(embeddings.labels.cpu().numpy()[rows], return_inverse=True)
    if len(names) < FEWEST_CLASSES:
        raise UserError(
            f"{source}: {counted(len(names), 'class')} with two or more items; a calibration needs at least "
            f"{FEWEST_CLASSES}, half of them as unknown"
        )
    vectors = F.normalize(embeddings.vectors.detach().cpu().float()[rows], dim=1)
    trials = open_set.make_trials(vectors, labels, seed)
    thresholds = open_set.grid(trials)
    counts = open_set.count(trials, thresholds)
    classes = len(names)
    gallery = classes // 2
    measured = open_set.rates(counts, gallery, thresholds)
    threshold = _threshold(measured, wanted, level)
    false_accept, accept, right = (float(np.interp(threshold, thresholds, curve)) for curve in measured[1:])
    errors = {
        "false_accept": open_set.false_accept_error(trials, gallery, threshold),
        "false_reject": open_set.reject_error(trials, gallery, threshold),
    }
    rate: Kind = "false_reject" if wanted == "false_reject" else "false_accept"
    reached = false_accept if level is None else level
    ends = sorted(_threshold(measured, rate, share) for share in open_set.share_interval(reached, *errors[rate]))
    bins, before, after = _cross_fitted(trials, seed)
    sizes = [classes - 1]
    while sizes[0] > 1:
        sizes.insert(0, (sizes[0] + 1) // 2)
    return Calibration(
        source=source,
        classes=tuple(embeddings.class_name(int(label)) for label in names),
        num_items=len(rows),
        gallery_classes=gallery,
        items_per_class=len(rows) / 2 / classes,
        wanted=wanted,
        level=reached,
        threshold=threshold,
        threshold_interval=(ends[0], ends[1]),
        false_accept=false_accept,
        false_accept_interval=open_set.share_interval(false_accept, *errors["false_accept"]),
        false_reject=1 - accept,
        false_reject_interval=open_set.share_interval(1 - accept, *errors["false_reject"]),
        accuracy=(right + 1 - false_accept) / 2,
        recall_at_1=float(measured.right[0]),
        auroc=verification.area_under_curve(measured.false_accept[::-1], measured.accept[::-1]),
        equal_error_rate=verification.equal_error_rate(measured.false_accept[::-1], measured.accept[::-1]),
        class_error=errors[rate].error,
        effective_classes=errors[rate].effective,
        error_before=before,
        error_after=after,
        reliability=tuple(bins),
        sizes=tuple(_size(open_set.rates(counts, size, thresholds), size, wanted, level, len(rows)) for size in sizes),
        curves=Curves(**{name: tuple(curve.round(6).tolist()) for name, curve in measured._asdict().items()}),
        pairs=_pairs(vectors, labels, seed),
    )


def match_masses(measured: Rates) -> Masses:
    """Best matches by score, right or not, if half of all queries are unknown."""
    scores = (measured.thresholds[1:] + measured.thresholds[:-1]) / 2
    unknown, known, right = (-np.diff(curve) / 2 for curve in measured[1:])
    # Differences of means over the same queries: what is below zero is rounding.
    return Masses(scores, np.maximum(right, 0), np.maximum(unknown, 0) + np.maximum(known - right, 0))


def format_calibration(calibration: Calibration) -> str:
    """What was found, in a few lines."""
    low, high = calibration.threshold_interval
    pairs, classes = calibration.pairs, counted(len(calibration.classes), "class")
    rows = [
        ("None of these below", f"{calibration.threshold:.3f}", f"{low:.3f} to {high:.3f}"),
        ("False accepts", *_percent(calibration.false_accept, calibration.false_accept_interval)),
        ("False rejects", *_percent(calibration.false_reject, calibration.false_reject_interval)),
        ("Accuracy with rejection", f"{100 * calibration.accuracy:.2f}", ""),
        ("AUROC, known or unknown", f"{100 * calibration.auroc:.2f}", ""),
        ("Equal error rate", f"{100 * calibration.equal_error_rate:.2f}", ""),
        ("Calibration error", f"{100 * calibration.error_after:.2f}", f"before: {100 * calibration.error_before:.2f}"),
        ("Pairs: AUROC", f"{100 * pairs.auroc:.2f}", ""),
        ("Pairs: equal error rate", f"{100 * pairs.equal_error_rate:.2f}", ""),
        ("Pairs: FNMR at FMR 1 %", f"{100 * pairs.fnmr_at_1_percent_fmr:.2f}", ""),
        ("Pairs: FNMR at FMR 0.1 %", f"{100 * pairs.fnmr_at_0_1_percent_fmr:.2f}", ""),
    ]
    lines = [f"{title:<25}{value:>6}   {note}".rstrip() for title, value, note in rows]
    lines.append(
        f"{calibration.source}: {counted(calibration.num_items, 'item')} of {classes}; a gallery of "
        f"{calibration.gallery_classes} of them with {calibration.items_per_class:.0f} items each"
    )
    return "\n".join(lines)


def _percent(share: float, interval: Interval) -> tuple[str, str]:
    return f"{100 * share:.2f}", f"{100 * interval[0]:.2f} to {100 * interval[1]:.2f}"


def _threshold(measured: Rates, wanted: Kind, level: float | None) -> float:
    if level is None:
        return open_set.threshold_at(measured.thresholds, measured.false_accept + measured.accept, 1.0)
    if wanted == "false_accept":
        return open_set.threshold_at(measured.thresholds, measured.false_accept, level)
    return open_set.threshold_at(measured.thresholds, measured.accept, 1 - level)


def _size(measured: Rates, classes: int, wanted: Kind, level: float | None, cases: int) -> GallerySize:
    slope, intercept = fit_logistic(match_masses(measured), cases)
    return GallerySize(classes=classes, threshold=_threshold(measured, wanted, level), slope=slope, intercept=intercept)


def _cross_fitted(trials: Sequence[Trial], seed: int) -> tuple[list[Bin], float, float]:
    """Reliability of probabilities on classes that they were not fitted to, and the error before and after."""
    probabilities, masses = [], []
    for fitted, other in _halvings(trials[0].best.shape[1], seed):
        gallery = max(1, min(len(fitted), len(other)) // 2)
        halves = []
        for classes in (fitted, other):
            part = open_set.restrict(trials, classes)
            thresholds = open_set.grid(part)
            halves.append(match_masses(open_set.rates(open_set.count(part, thresholds), gallery, thresholds)))
        slope, intercept = fit_logistic(halves[0], sum(len(trial.labels) for trial in trials) // 2)
        masses.append(halves[1])
        probabilities.append(log_odds_map(slope, intercept, halves[1].scores))
    together = Masses(*(np.concatenate(column) for column in zip(*masses, strict=True)))
    bins = reliability(together, np.concatenate(probabilities))
    before = calibration_error(reliability(together, together.scores.clip(0, 1)))
    return bins, before, calibration_error(bins)


def _pairs(vectors: Float[Tensor, "items dim"], labels: Int[np.ndarray, " items"], seed: int) -> PairCalibration:
    most = max(2, MOST_PAIRED // (int(labels.max()) + 1))
    rows = np.concatenate([np.flatnonzero(labels == label)[:most] for label in range(int(labels.max()) + 1)])
    vectors, labels = vectors[rows], labels[rows]
    masses = verification.pair_masses(vectors, labels)
    slope, intercept = fit_logistic(masses, len(rows))
    probabilities, parts = [], []
    for fitted, other in _halvings(int(labels.max()) + 1, seed):
        halves = [np.isin(labels, classes) for classes in (fitted, other)]
        first, second = (verification.pair_masses(vectors[half], labels[half]) for half in halves)
        probabilities.append(log_odds_map(*fit_logistic(first, len(rows) // 2), second.scores))
        parts.append(second)
    together = Masses(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return PairCalibration(
        **verification.verify(masses)._asdict(),
        slope=slope,
        intercept=intercept,
        error_before=calibration_error(reliability(together, together.scores.clip(0, 1))),
        error_after=calibration_error(reliability(together, np.concatenate(probabilities))),
    )


def _halvings(classes: int, seed: int) -> list[tuple[Int[np.ndarray, " _"], Int[np.ndarray, " _"]]]:
    """Random halves of the classes, each pair in both orders."""
    random = np.random.default_rng(seed)
    halves = []
    for _ in range(HALVINGS // 2):
        order = random.permutation(classes)
        first, second = np.sort(order[: classes // 2]), np.sort(order[classes // 2 :])
        halves += [(first, second), (second, first)]
    return halves
