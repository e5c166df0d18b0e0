"""Held-out training classes decide where the head starts, how long it trains and how far it moves from its start.

All of it is about a linear head on features that do not change: cached features of a frozen backbone, or given vectors.
Test classes never take part. `choose_start` compares closed-form heads by cross-validation over the training classes;
`choose_length` trains on three quarters of them, watches the last quarter after each epoch, and picks the epoch and the
share of the way from start to end (WiSE-FT, Wortsman et al., CVPR 2022) that retrieve its items best.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from softtriple.data.sampling import stream
from softtriple.metrics import evaluate
from softtriple.models.heads import pca_head, within_class_covariance

FOLDS = 4
FEWEST_CLASSES = 20  # with fewer, a quarter of them says too little
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class Start(NamedTuple):
    """A closed-form head: within-class whitening to ``power``, shrunk, then PCA; columns perhaps standardised first."""

    power: float  # 0 is plain PCA
    shrinkage: float = 0.0
    standardize: bool = False


STARTS = (
    Start(0.0),
    Start(0.5, 0.1),
    Start(0.5, 0.3),
    Start(0.5, 0.6),
    Start(1.0, 0.02),
    Start(1.0, 0.1),
    Start(1.0, 0.3),
    Start(1.0, 0.6),
)
# Columns of given vectors may have different units, which standardising makes equal.
VECTOR_STARTS = (*STARTS, *(start._replace(standardize=True) for start in STARTS))

Head = tuple[Float[Tensor, "dim features"], Float[Tensor, " dim"]]
Labels = Int64[np.ndarray, " items"]


def start_head(features: Float[Tensor, "items features"], labels: Labels, dim: int, start: Start) -> Head:
    """Weight and bias of the closed-form head ``start`` for these features; outputs have a mean length of 1."""
    rows = features.double()
    scale = torch.ones(rows.shape[1], dtype=rows.dtype)
    if start.standardize:
        deviations = rows.std(dim=0)
        scale = 1 / torch.where(deviations > 0, deviations, 1)
    whitening = _whitening(rows * scale, labels, start)
    weight, bias = pca_head((rows * scale) @ whitening, dim)
    weight = weight @ whitening * scale
    length = F.linear(rows, weight, bias).norm(dim=1).mean()
    return weight / length, bias / length


def choose_start(
    features: Float[Tensor, "items features"], labels: Labels, starts: Sequence[Start], seed: int
) -> Start:
    """The start that retrieves items of held-out classes best, by cross-validation over classes.

    Judged in the whole width of the features; of starts within noise of the best, the first, which is the simplest.
    """
    scores = np.zeros((FOLDS, len(starts)))
    for fold, (train, held_out) in enumerate(class_folds(labels, seed)):
        for number, start in enumerate(starts):
            rows = features[train].double()
            scale = torch.ones(rows.shape[1], dtype=rows.dtype)
            if start.standardize:
                deviations = rows.std(dim=0)
                scale = 1 / torch.where(deviations > 0, deviations, 1)
            whitening = _whitening(rows * scale, labels[train], start)
            mean = (rows * scale).mean(dim=0)
            embedded = ((features[held_out].double() * scale - mean) @ whitening).float()
            scores[fold, number] = retrieval_score(embedded, labels[held_out])
    means = scores.mean(axis=0)
    best = int(means.argmax())
    # Paired over folds: what a start gains on the best must exceed the spread of that gain.
    for number in range(best):
        gain = scores[:, best] - scores[:, number]
        if gain.mean() <= gain.std(ddof=1) / np.sqrt(FOLDS):
            return starts[number]
    return starts[best]


class Length(NamedTuple):
    """How long to train and how far to go: the head is ``start + share * (end - start)`` after ``epochs``."""

    epochs: int
    share: float
    score: float  # on held-out classes
    start_score: float  # of the head that nothing was trained on


def choose_length(
    epochs: int, start: Head, train: Callable[[], Iterator[Head]], held_out: Tensor, labels: Labels
) -> Length:
    """The epoch and share that retrieve the held-out items best.

    ``train`` yields the head after each epoch of training on the other classes; ``held_out`` are the features of the
    held-out items as the head takes them.
    """
    zero = _score(start, held_out, labels)
    best = Length(0, 0.0, zero, zero)
    for epoch, end in enumerate(train(), start=1):
        for share in SHARES[1:]:
            score = _score(interpolate(start, end, share), held_out, labels)
            if score > best.score:
                best = Length(epoch, share, score, zero)
    return best


def interpolate(start: Head, end: Head, share: float) -> Head:
    """The head ``share`` of the way from ``start`` to ``end``."""
    weight, bias = (torch.lerp(one.double(), other.double(), share) for one, other in zip(start, end, strict=True))
    return weight, bias


def class_folds(labels: Labels, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows to train on and rows held out, for each of four parts of the classes."""
    classes = stream("class folds", seed).permutation(np.unique(labels))
    for part in np.array_split(classes, FOLDS):
        held_out = np.isin(labels, part)
        yield np.flatnonzero(~held_out), np.flatnonzero(held_out)


def retrieval_score(vectors: Float[Tensor, "items dim"], labels: Labels) -> float:
    """Mean of Recall@1 and MAP@R."""
    report = evaluate(vectors, torch.from_numpy(labels), recall_at=(1,), kmeans_restarts=0, bootstrap=0)
    return (report.recall[1] + report.map_at_r) / 2


def _score(head: Head, features: Tensor, labels: Labels) -> float:
    weight, bias = head
    return retrieval_score(F.linear(features.double(), weight.double(), bias.double()).float(), labels)


def _whitening(
    rows: Float[Tensor, "items features"], labels: Labels, start: Start
) -> Float[Tensor, "features features"]:
    """The map that equalises the variance within classes, to the power and shrinkage of ``start``."""
    identity = torch.eye(rows.shape[1], dtype=rows.dtype)
    if start.power == 0:
        return identity
    covariance = within_class_covariance(rows, torch.from_numpy(labels))
    mean_variance = covariance.diagonal().mean()
    if mean_variance == 0:
        return identity
    variances, directions = torch.linalg.eigh(covariance)
    variances = (1 - start.shrinkage) * variances + start.shrinkage * mean_variance
    variances = variances.clamp_min(1e-6 * mean_variance)
    return directions * variances ** (-start.power / 2) @ directions.T
