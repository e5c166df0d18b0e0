"""Which labels are probably wrong: every item is judged by a metric that has not seen its label.

Features are reduced by PCA, which knows no labels, and the items are dealt into folds. For each fold the other items
give a within-class whitening, the mean direction of each class, and a few centres of each class with the share of
its items that each holds. An item of the fold is then compared with

- the class means,
- the centres: a mixture, in which a minor centre, such as mislabelled items form, counts for little,
- its nearest neighbours among all other items, each with a vote that falls with its distance.

Each gives a probability of every class; their logarithms are added, and one temperature is fitted to the given labels.
A second pass leaves out of the metric, the centres and the votes what the first pass takes for mislabelled.

Wrong labels are seldom drawn from all classes alike: people confuse what is similar. So how often each class is given
for each other is estimated by expectation maximisation over the items, starting from uniform noise. It weighs the
evidence about each item, and the odds that follow rank the items. What they rank first is for a person to look at; what
may be left out unseen is decided by uniform noise, because classes that are hard to tell apart look like confused ones.
"""

import math
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
NOISE = 0.2  # prior share of wrong labels
CANDIDATES = 10  # other classes that an item may belong to
NOISE_WEIGHT, NOISE_STEPS = 10.0, 5  # items per class that the prior counts for, and steps of the estimate
AT_ONCE = 1 << 24  # numbers in one scratch tensor

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class LabelCheck:
    """What the other items say about the label of each item.

    ``odds`` rank the items: the log-odds of any other class against the given one. ``evidence`` are those of the
    likeliest other class from the item alone, before they are weighed by which labels are often confused. Both are
    minus infinity for an item whose class has no other item, which nothing can be said about. ``suggested`` is the
    likeliest other class, ``closeness`` the cosine to the nearest centre. ``wrong`` is the probability of a wrong label
    if wrong labels are drawn from all classes alike, which is cautious about classes that are easily confused.
    """

    odds: Float[Tensor, " items"]
    evidence: Float[Tensor, " items"]
    suggested: Int[Tensor, " items"]
    wrong: Float[Tensor, " items"]
    closeness: Float[Tensor, " items"]


@dataclass(frozen=True, eq=False)
class _Judgement:
    """The given class of each item and then its likeliest others, their log-likelihoods, and closeness to a centre."""

    classes: Int[Tensor, "items candidates"]
    log_likelihood: Float[Tensor, "items candidates"]
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
    rows, fold, num_classes = reduced(features), deal(labels, folds, seed), int(labels.max()) + 1
    everything = torch.ones(len(rows), dtype=torch.bool)
    first = _judge(rows, labels, fold, everything, partial(_half, progress, 0))
    trusted = _log_posterior(first, num_classes, steps=0)[:, 0] > math.log(0.5)
    found = _judge(rows, labels, fold, trusted, partial(_half, progress, 1))
    posterior = _log_posterior(found, num_classes, steps=NOISE_STEPS)
    # Relative to uniform noise, so that odds of 0 mean the same for every number of classes.
    prior = math.log(_hit(num_classes)) - math.log(1 - NOISE)
    place, likelihood = posterior[:, 1:].argmax(dim=1), found.log_likelihood
    check = LabelCheck(
        odds=posterior[:, 1:].logsumexp(dim=1) - posterior[:, 0] - prior,
        evidence=likelihood[:, 1:].amax(dim=1) - likelihood[:, 0],
        suggested=found.classes[:, 1:].gather(1, place[:, None])[:, 0],
        wrong=-torch.expm1(_log_posterior(found, num_classes, steps=0)[:, 0]),
        closeness=found.closeness,
    )
    alone = labels.bincount()[labels] < 2
    check.odds[alone], check.evidence[alone], check.wrong[alone] = -torch.inf, -torch.inf, 0.0
    return check


def _half(progress: Progress, done_before: int, done: int, total: int) -> None:
    progress(done_before * total + done, 2 * total)


def _judge(
    rows: Float[Tensor, "items width"],
    labels: Int[Tensor, " items"],
    fold: Int[Tensor, " items"],
    trusted: Bool[Tensor, " items"],
    progress: Progress,
) -> _Judgement:
    """Judge every item by the ``trusted`` ones."""
    num_classes = int(labels.max()) + 1
    others = min(CANDIDATES, max(num_classes - 1, 1))
    classes, likelihood = labels[:, None].repeat(1, 1 + others), torch.zeros(len(rows), 1 + others)
    closeness = torch.zeros(len(rows))
    given = torch.zeros(len(TEMPERATURES), len(rows))  # log-probability of the given class
    members, done = trusted.nonzero().flatten(), 0
    size = max(1, AT_ONCE // (num_classes * (CENTERS + 3)))
    for part in range(int(fold.max()) + 1):
        known = members[fold[members] != part]
        vectors = whitened(rows, rows[known], labels[known])
        model, gallery = _ClassModel.fit(vectors[known], labels[known], num_classes), vectors[members]
        for block in torch.split((fold == part).nonzero().flatten(), size):
            own = labels[block, None]
            log_probability, closeness[block] = model.log_probability(vectors[block])
            log_probability += _votes(vectors[block], block, gallery, members, labels, num_classes)
            likelihood[block, :1] = log_probability.gather(1, own)
            best = log_probability.scatter(1, own, -torch.inf).topk(min(others, num_classes), dim=1)
            likelihood[block, 1:], classes[block, 1:] = best
            for place, temperature in enumerate(TEMPERATURES):
                given[place, block] = F.log_softmax(temperature * log_probability, dim=1).gather(1, own)[:, 0]
            done += len(block)
            progress(done, len(rows))
    alone = labels.bincount()[labels] < 2
    fitted = int(given[:, ~alone].sum(dim=1).argmax())
    return _Judgement(classes, TEMPERATURES[fitted] * likelihood, closeness)


def _hit(num_classes: int) -> float:
    """Probability that uniform noise gives an item the label of one certain other class."""
    return NOISE / max(num_classes - 1, 1)


def _log_posterior(found: _Judgement, num_classes: int, steps: int) -> Float[Tensor, "items candidates"]:
    """Logarithm of the probability that an item is of each of its candidate classes.

    The noise, how often a class is given to items of another, starts uniform and is estimated in ``steps`` of
    expectation maximisation; the uniform one stays in it with the weight of `NOISE_WEIGHT` items per class.
    """
    given = found.classes[:, :1]
    prior = torch.where(found.classes == given, 1 - NOISE, _hit(num_classes))
    # Pairs of given and candidate class that occur, numbered: all pairs of many classes would not fit in memory.
    pairs: Tensor = torch.unique(given * num_classes + found.classes, return_inverse=True)[1]
    noise = prior
    for _ in range(steps):
        posterior = F.softmax(found.log_likelihood + noise.log(), dim=1).double()
        together = torch.zeros(int(pairs.max()) + 1, dtype=torch.float64).index_add_(
            0, pairs.flatten(), posterior.flatten()
        )
        of_class = torch.zeros(num_classes, dtype=torch.float64).index_add_(
            0, found.classes.flatten(), posterior.flatten()
        )
        noise = ((together[pairs] + NOISE_WEIGHT * prior) / (of_class[found.classes] + NOISE_WEIGHT)).float()
    return F.log_softmax(found.log_likelihood + noise.log(), dim=1)


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
