"""Which labels are probably wrong: every item is judged by a metric that has not seen its label.

Features are reduced by PCA, which knows no labels, and the items are dealt into folds. For each fold the other items
give a within-class whitening, the mean direction of each class, and a few centres of each class with the share of
its items that each holds. An item of the fold is then compared with

- the class means,
- the centres: a mixture, in which a minor centre, such as mislabelled items form, counts for little,
- its nearest neighbours among all other items, each with a vote that falls with its distance.

Each gives a probability of every class; their logarithms are added. The margin of the best other class over the given
one ranks the items. One temperature, fitted to the given labels, turns margins into odds. A second pass leaves out of
the metric, the centres and the votes what the first pass takes for mislabelled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softtriple.data.sampling import stream
from softtriple.losses.centers import moved_to_data, nearest_centers
from softtriple.models.heads import within_class_spread
from softtriple.search import nearest

# Chosen on the training halves of CUB, Omniglot, digits and glyphs (docs/audit.md).
FOLDS = 5
WIDTH = 512  # principal components
POWER, SHRINKAGE = 1.0, 0.3  # of the whitening
CENTERS = 3
SCALE = 20.0  # inverse temperature of similarities to centres
NEIGHBORS = 20
VOTE_TEMPERATURE = 0.1
LEAST_VOTE = 0.1  # of a class without a neighbour
TEMPERATURES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
NOISE = 0.2  # share of wrong labels reckoned with before looking
AT_ONCE = 1 << 24  # numbers in one scratch tensor

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class LabelCheck:
    """What the other items say about the label of each item.

    ``odds`` rank the items: the log-odds of the class ``suggested`` against the given one. They are minus infinity for
    an item whose class has no other item, which nothing can be said about. ``wrong`` is the probability that the label
    is wrong, if wrong labels are drawn from all classes alike. ``closeness`` is the cosine to the nearest centre of
    any class.
    """

    odds: Float[Tensor, " items"]
    suggested: Int[Tensor, " items"]
    wrong: Float[Tensor, " items"]
    closeness: Float[Tensor, " items"]


def check_labels(
    features: Float[Tensor, "items features"],
    labels: Int[Tensor, " items"],
    *,
    folds: int = FOLDS,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> LabelCheck:
    """Judge the label of every item by the other items; labels are numbered from 0 without gaps.

    Memory is bounded: similarities to classes are computed for a few items at a time.
    """
    rows, fold = reduced(features), deal(labels, folds, seed)
    everything = torch.ones(len(rows), dtype=torch.bool)
    first = _judge(rows, labels, fold, everything, partial(_half, progress, 0))
    return _judge(rows, labels, fold, first.wrong < 0.5, partial(_half, progress, 1))


def _half(progress: Progress, done_before: int, done: int, total: int) -> None:
    progress(done_before * total + done, 2 * total)


def _judge(
    rows: Float[Tensor, "items width"],
    labels: Int[Tensor, " items"],
    fold: Int[Tensor, " items"],
    trusted: Bool[Tensor, " items"],
    progress: Progress,
) -> LabelCheck:
    """Judge every item by the ``trusted`` ones."""
    num_classes, sizes = int(labels.max()) + 1, labels.bincount()
    check = LabelCheck(torch.zeros(len(rows)), torch.zeros_like(labels), *torch.zeros(2, len(rows)))
    given = torch.zeros(len(TEMPERATURES), len(rows))  # log-probability of the given class
    members, done = trusted.nonzero().flatten(), 0
    size = max(1, AT_ONCE // (num_classes * (CENTERS + 3)))
    for part in range(int(fold.max()) + 1):
        known = members[fold[members] != part]
        vectors = whitened(rows, rows[known], labels[known])
        model, gallery = _ClassModel.fit(vectors[known], labels[known], num_classes), vectors[members]
        for block in torch.split((fold == part).nonzero().flatten(), size):
            own = labels[block, None]
            log_probability, check.closeness[block] = model.log_probability(vectors[block])
            log_probability += _votes(vectors[block], block, gallery, members, labels, num_classes)
            best, check.suggested[block] = log_probability.scatter(1, own, -torch.inf).max(dim=1)
            check.odds[block] = best - log_probability.gather(1, own)[:, 0]
            for place, temperature in enumerate(TEMPERATURES):
                given[place, block] = F.log_softmax(temperature * log_probability, dim=1).gather(1, own)[:, 0]
            done += len(block)
            progress(done, len(rows))
    alone = sizes[labels] < 2
    fitted = int(given[:, ~alone].sum(dim=1).argmax())
    check.odds.mul_(TEMPERATURES[fitted])
    # Bayes' rule: a wrong label hits each class but the item's own with the same probability.
    right, hit = given[fitted].exp(), NOISE / max(num_classes - 1, 1)
    check.wrong.copy_(hit * (1 - right) / (hit * (1 - right) + (1 - NOISE) * right))
    check.odds[alone], check.wrong[alone] = -torch.inf, 0.0
    return check


def reduced(features: Float[Tensor, "items features"], width: int = WIDTH) -> Float[Tensor, "items width"]:
    """Centred features, cut to their first ``width`` principal components."""
    rows = features.float() - features.float().mean(dim=0)
    if rows.shape[1] <= width:
        return rows
    directions: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -width:]
    return rows @ directions


def whitened(
    rows: Float[Tensor, "items width"], known: Float[Tensor, "known width"], labels: Int[Tensor, " known"]
) -> Float[Tensor, "items width"]:
    """Unit vectors of ``rows``, whitened by how the ``known`` items with ``labels`` vary within their classes."""
    whitening = within_class_spread(known, labels).whitening(POWER, SHRINKAGE)
    return F.normalize((rows - known.mean(dim=0)) @ whitening.float(), dim=1)


def deal(labels: Int[Tensor, " items"], folds: int, seed: int) -> Int[Tensor, " items"]:
    """The fold of each item; the items of a class are dealt evenly."""
    order = torch.from_numpy(stream("folds", seed).permutation(len(labels)))
    order = order[labels[order].argsort(stable=True)]
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels)) % folds
    return fold


@dataclass(frozen=True, eq=False)
class _ClassModel:
    """Mean direction of each class, its centres, and the logarithm of the share of its items that each holds."""

    means: Float[Tensor, "classes dim"]
    centers: Float[Tensor, "classes k dim"]
    log_shares: Float[Tensor, "classes k"]
    empty: Tensor  # classes without an item

    @staticmethod
    def fit(vectors: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], num_classes: int) -> "_ClassModel":
        means = torch.zeros(num_classes, vectors.shape[1]).index_add_(0, labels, vectors)
        anywhere = F.normalize(torch.ones(num_classes, CENTERS, vectors.shape[1]), dim=-1)
        centers = moved_to_data(anywhere, vectors, labels)
        counts = nearest_centers(vectors, labels, centers).bincount(minlength=num_classes * CENTERS)
        shares = (counts.view(num_classes, CENTERS) + 0.5) / (counts.view(num_classes, CENTERS) + 0.5).sum(1)[:, None]
        return _ClassModel(
            F.normalize(means, dim=1), centers, shares.log(), labels.bincount(minlength=num_classes) == 0
        )

    def log_probability(self, vectors: Float[Tensor, "batch dim"]) -> tuple[Tensor, Tensor]:
        """Mean log-probability of each class by means and by centres, and the cosine to the nearest centre."""
        similarity = torch.einsum("bd,ckd->bck", vectors, self.centers)
        similarity[:, self.empty] = -torch.inf
        by_center = torch.logsumexp(SCALE * similarity + self.log_shares, dim=-1)
        by_mean = (SCALE * vectors @ self.means.T).masked_fill(self.empty, -torch.inf)
        both = (F.log_softmax(by_center, dim=1) + F.log_softmax(by_mean, dim=1)) / 2
        return both.clamp_min(-1e4), similarity.flatten(1).amax(dim=1)


def _votes(
    queries: Float[Tensor, "batch dim"],
    rows: Int[Tensor, " batch"],
    gallery: Float[Tensor, "members dim"],
    members: Int[Tensor, " members"],
    labels: Int[Tensor, " items"],
    num_classes: int,
) -> Float[Tensor, "batch classes"]:
    """Log-probability of each class by the neighbours of ``rows`` among the other ``members``."""
    neighbors = nearest(queries, gallery, NEIGHBORS + 1)
    voters = members[neighbors.rows]
    others = voters != rows[:, None]
    best = neighbors.scores.masked_fill(~others, -torch.inf).amax(dim=1, keepdim=True)
    votes = ((neighbors.scores - best) / VOTE_TEMPERATURE).exp() * others
    total = torch.zeros(len(rows), num_classes).scatter_add_(1, labels[voters], votes)
    shares = total / total.sum(dim=1, keepdim=True)
    return ((shares + LEAST_VOTE) / (1 + num_classes * LEAST_VOTE)).log()
