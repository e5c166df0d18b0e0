"""Choosing the initial head, and how far to train it, on held-out training classes.

This is for a linear head on features that do not change: cached features of a frozen backbone, given vectors, or TF-IDF
projections of texts. Test classes are never used. `choose_start` compares closed-form heads by cross-validation over
the training classes. `choose_share` evaluates heads that were trained on some of these classes on the others, for each
epoch and share of the way from the start to the end of training (WiSE-FT, Wortsman et al., CVPR 2022).
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from softtriple.metrics import evaluate
from softtriple.models.heads import Head, Start, column_scale, principal_components, within_class_spread
from softtriple.progress import Update

# With fewer training classes, held-out items are searched among all training items, not only among themselves.
FEW_CLASSES = 20
SHARES = (0.25, 0.5, 0.75, 1.0)
# Computing the principal components of more features would take longer than training.
MOST_CUT_FEATURES = 1024
# Trials search a sample of larger data, because their time grows with the square of the items. Classes are left out
# first, in runs, since neighbours in their order have much in common, as long as enough of them stay; then items of
# each class, because MAP@R takes as many neighbours as a class has items.
MOST_TRIED, RUN, ENOUGH_CLASSES, MOST_OF_A_CLASS = 10_000, 10, 100, 500

# All subtract half of the mean: on held-out classes of photos, drawings and texts that is safer than none or all of it.
IMAGE_STARTS = (Start(0.5, 0.3), Start(0.5, 0.1), Start(0.5, 0.6), Start(1.0, 0.3), Start(1.0, 0.6), Start(0.0, 0.0))
SENTENCE_STARTS = (
    Start(1.0, 0.1),
    Start(1.0, 0.3),
    Start(1.0, 0.02),
    Start(0.5, 0.3),
    Start(0.5, 0.1),
    Start(0.0, 0.0),
)
TEXT_STARTS = (Start(1.0, 0.1), Start(1.0, 0.3), Start(1.0, 0.02), Start(1.0, 0.6), Start(0.5, 0.1), Start(0.5, 0.3))
# Given vectors may already be a good metric, and their columns may have different units.
IDENTITY = Start(0.0, 0.0, center=0.0)
VECTOR_STARTS = (
    IDENTITY,
    Start(0.0, 0.0),
    Start(0.0, 0.0, center=1.0),
    *(Start(power, shrinkage) for power in (0.5, 1.0) for shrinkage in (0.02, 0.3)),
    *(Start(power, shrinkage, c) for power in (0.5, 1.0) for shrinkage in (0.1, 0.6) for c in (0.5, 0.0, 1.0)),
    *(Start(power, 0.1, standardize=True) for power in (0.0, 0.5, 1.0)),
)

Labels = Int64[np.ndarray, " items"]
Division = tuple[np.ndarray, np.ndarray]  # rows to train on, rows held out


class Trial(NamedTuple):
    """How well held-out items are retrieved."""

    recall: float
    map_at_r: float

    @property
    def score(self) -> float:
        """The mean of Recall@1 and MAP@R, by which candidates are compared."""
        return (self.recall + self.map_at_r) / 2

    def not_below(self, other: "Trial") -> bool:
        """Whether neither metric is below that of ``other``."""
        return self.recall >= other.recall and self.map_at_r >= other.map_at_r


def choose_start(
    features: Float[Tensor, "items features"],
    labels: Labels,
    starts: Sequence[Start],
    splits: Sequence[Division] | None = None,
    dim: int | None = None,
    update: Update = lambda *_: None,
) -> Start:
    """The closed-form head that retrieves held-out items best, by cross-validation over ``splits`` of the rows.

    ``splits`` are `class_splits` by default. Embeddings are compared at width ``dim`` if there are at most 1024
    features, else at the width of the features. A start with a lower Recall@1 or MAP@R than the plain features is
    rejected; if all are, the plain features are used. Among starts that differ by less than the standard error over
    splits, the first in ``starts`` is chosen. ``update`` is told how many trials are done, and of how many.
    """
    splits = class_splits(labels) if splits is None else splits
    cut = dim is not None and dim < features.shape[1] <= MOST_CUT_FEATURES
    trials: dict[Start, list[Trial]] = {start: [] for start in (*starts, IDENTITY)}
    for number, (train, held_out) in enumerate(splits):
        rows, spreads, centred = features[train].double(), {}, {}
        mean = rows.mean(dim=0)
        tried = tried_rows(labels, held_out)
        needed = features if cut else features[tried]
        for place, start in enumerate(trials):
            update(number * len(trials) + place, len(splits) * len(trials))
            scale = column_scale(rows, start)
            if start.standardize not in spreads:
                spreads[start.standardize] = within_class_spread(rows * scale, torch.from_numpy(labels[train]))
            whitening = scale[:, None] * spreads[start.standardize].whitening(start.power, start.shrinkage)
            if (alike := start._replace(center=1.0)) not in centred:
                centred = {alike: (needed - mean).float() @ whitening.float()}  # only the last, since it is large
            embedded = centred[alike] + ((1 - start.center) * mean @ whitening).float()
            if cut:
                assert dim is not None
                embedded = embedded[tried] @ principal_components(embedded[train].double(), dim).T.float()
            trials[start].append(_retrieval(embedded, labels[tried], labels[held_out]))
    plain = _mean(trials[IDENTITY])
    allowed = [start for start in starts if _mean(trials[start]).not_below(plain)] or [IDENTITY]
    best = max(allowed, key=lambda start: _mean(trials[start]).score)
    for start in allowed:
        gains = np.array([b.score - a.score for a, b in zip(trials[start], trials[best], strict=True)])
        if gains.mean() <= gains.std(ddof=1) / len(gains) ** 0.5:
            return start
    return best


class Choice(NamedTuple):
    """How long to train and how far to go: the head is ``start + share * (end - start)`` after ``epochs`` epochs."""

    epochs: int
    share: float
    gain: Trial  # over the start, on held-out classes


def choose_share(
    start: Head, ends: Mapping[int, Head], features: Tensor, labels: Labels, widths: Sequence[int]
) -> dict[tuple[int, float], Trial]:
    """The gain of each epoch and share over the start on held-out items, averaged over ``widths`` of the embedding.

    ``ends`` are the heads after some epochs, by epoch.
    """

    def retrieval(head: Head) -> Trial:
        vectors = F.linear(features.float(), head[0].float(), head[1].float())
        return _mean([try_retrieval(vectors[:, :width], labels, np.arange(len(labels))) for width in widths])

    before = retrieval(start)
    gains = {(0, 0.0): Trial(0.0, 0.0)}
    for epoch, end in ends.items():
        for share in SHARES:
            after = retrieval(interpolate(start, end, share))
            gains[epoch, share] = Trial(after.recall - before.recall, after.map_at_r - before.map_at_r)
    return gains


def best_choice(splits: Sequence[dict[tuple[int, float], Trial]]) -> Choice:
    """The epoch and share with the best mean gain over ``splits``, if it helps in each of them; else no training.

    Neither Recall@1 nor MAP@R may fall in the mean. With few classes, splits often disagree.
    """
    means = {key: _mean([gains[key] for gains in splits]) for key in splits[0]}
    safe = [
        key
        for key, mean in means.items()
        if mean.not_below(Trial(0.0, 0.0)) and all(gains[key].score >= 0 for gains in splits)
    ]
    key = max(safe, key=lambda key: means[key].score)
    return Choice(*key, means[key])


def interpolate(start: Head, end: Head, share: float) -> Head:
    """The head ``share`` of the way from ``start`` to ``end``."""
    weight, bias = (torch.lerp(one.double(), other.double(), share) for one, other in zip(start, end, strict=True))
    return weight, bias


def class_splits(labels: Labels) -> list[Division]:
    """Rows to train on and rows held out, for four divisions of the classes into halves.

    Half of the classes are held out, as by default for the test. Two divisions cut the classes in the middle of their
    order, also as for the test: neighbours in that order have much in common, so the other half is another domain. The
    other two hold out every second class.
    """
    classes = np.unique(labels)
    first = np.arange(len(classes)) < len(classes) // 2
    even = np.arange(len(classes)) % 2 == 0
    chosen = (np.isin(labels, classes[part]) for part in (first, ~even, ~first, even))
    return [(np.flatnonzero(~held_out), np.flatnonzero(held_out)) for held_out in chosen]


def instance_splits(labels: Labels) -> list[Division]:
    """Like `class_splits`, but halves the items of each class, for data whose test items have training classes."""
    place = _places(labels)
    halves = (place % 2 == 0, place % 2 == 1, place // 2 % 2 == 0, place // 2 % 2 == 1)
    return [(np.flatnonzero(~half), np.flatnonzero(half)) for half in halves if 0 < half.sum() < len(labels)]


def _places(labels: Labels) -> Labels:
    """The place of each item among those of its class."""
    order = np.argsort(labels, kind="stable")
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return place


def try_retrieval(vectors: Float[Tensor, "items dim"], labels: Labels, rows: np.ndarray) -> Trial:
    """How well the items of ``rows`` are retrieved among `tried_rows`."""
    chosen = tried_rows(labels, rows)
    return _retrieval(vectors[chosen], labels[chosen], labels[rows])


def _retrieval(vectors: Float[Tensor, "items dim"], labels: Labels, asked: Int64[np.ndarray, " asked"]) -> Trial:
    """How well the items of the classes ``asked`` are retrieved among all."""
    if np.bincount(labels).max(initial=0) < 2:
        return Trial(0.0, 0.0)
    report = evaluate(vectors, torch.from_numpy(labels), recall_at=(1,), kmeans_restarts=0, bootstrap=0)
    wanted = {str(label) for label in np.unique(asked)}
    results = [result for name, result in report.per_class.items() if name in wanted]
    queries = sum(result.queries for result in results)
    if not queries:
        return Trial(0.0, 0.0)
    return Trial(
        sum(result.recall_at_1 * result.queries for result in results) / queries,
        sum(result.map_at_r * result.queries for result in results) / queries,
    )


def tried_rows(labels: Labels, held_out: np.ndarray) -> np.ndarray:
    """The rows among which the ``held_out`` ones are searched: these, or all if their classes are few; or a sample."""
    few = len(np.unique(labels[held_out])) < FEW_CLASSES // 2
    rows = np.arange(len(labels)) if few else held_out
    if len(rows) <= MOST_TRIED:
        return rows
    classes, numbers = np.unique(labels[rows], return_inverse=True)
    kept = max(ENOUGH_CLASSES, len(classes) * MOST_TRIED // len(rows))
    rows = rows[numbers // RUN % math.ceil(len(classes) / kept) == 0]
    _, numbers, sizes = np.unique(labels[rows], return_inverse=True, return_counts=True)
    every = np.maximum(math.ceil(len(rows) / MOST_TRIED), np.ceil(sizes / MOST_OF_A_CLASS)).astype(int)
    sample: np.ndarray = rows[_places(labels[rows]) % every[numbers] == 0]
    return sample


def _mean(trials: Sequence[Trial]) -> Trial:
    return Trial(*(float(np.mean(column)) for column in zip(*trials, strict=True)))
