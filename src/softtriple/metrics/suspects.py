"""Which labels are probably wrong: every item is judged by a metric that has not seen its label.

Features are reduced by PCA, which knows no labels, and the items are dealt into folds. For each fold the other items
give a within-class whitening, the mean direction of each class, and a few centres of each class with the share of
its items that each holds. An item of the fold is then compared with

- the class means,
- the centres: a mixture, in which a minor centre, such as mislabelled items form, counts for little,
- its nearest neighbours among all other items, each with a vote that falls with its distance.

Each gives a probability of every class, and their logarithms are added up. A second pass leaves out of the metric, the
centres and the votes what the first pass takes for mislabelled.

By Bayes' rule the probability that an item labelled g is of class c is proportional to p(c | item) · p(g | c). The
second factor is a mixture of where labels come from:

- the true class,
- any other class, each as likely: slips, shuffled files,
- a class that is easily confused with the true one, in proportion to the square of their overlap, which is the sum over
  the items of the product of both probabilities. Labels do not enter it, so wrong ones do not look like overlap.

How many labels come from each source, and the temperature of the probabilities, are estimated by maximum likelihood of
the given labels. So the data say whether wrong labels are confusions, which is strong evidence about labels of similar
classes, or whether these classes are merely hard to tell apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array
from torch import Tensor

from softtriple.data.sampling import stream
from softtriple.losses.centers import moved_to_data, nearest_centers
from softtriple.models.heads import within_class_spread
from softtriple.search import nearest

# Chosen on training halves, mostly of CUB, digits and glyphs (docs/audit.md).
FOLDS = 5
WIDTH = 512  # principal components
LONGEST = 4.0  # row, in median lengths
POWER, SHRINKAGE = 1.0, 0.3  # of the whitening
CENTERS = 3
SCALE = 20.0  # inverse temperature of similarities to centres
NEIGHBORS = 20
VOTE_TEMPERATURE = 0.1
LEAST_VOTE = 0.1  # of a class without a neighbour
TEMPERATURES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
CANDIDATES = 10  # other classes that an item may belong to
SHARPNESS = 2  # power of the overlap of two classes
PRIOR = (18.0, 1.0, 1.0)  # items with a right, a random and a confused label, added to the data
STEPS = 50  # of the estimate of their shares
TINY = 1e-300
AT_ONCE = 1 << 24  # numbers in one scratch tensor

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class LabelCheck:
    """What the other items say about the label of each item.

    ``odds`` rank the items: the log-odds of a wrong label. ``evidence`` compares the likeliest other class with the
    given one by the item alone; it is positive if that class fits better. Both are minus infinity for an item whose
    class has no other item, which nothing can be said about. ``suggested`` is the likeliest other class, ``closeness``
    the cosine to the nearest centre.
    """

    odds: Float[Tensor, " items"]
    evidence: Float[Tensor, " items"]
    suggested: Int[Tensor, " items"]
    closeness: Float[Tensor, " items"]

    @property
    def wrong(self) -> Float[Tensor, " items"]:
        """Probability of a wrong label."""
        return self.odds.sigmoid()


@dataclass(frozen=True, eq=False)
class _Judgement:
    """The given class of each item, then its likeliest others, with their scores, and closeness to a centre.

    A temperature times the scores, less its normaliser, is the log-probability of the classes.
    """

    classes: Int[Tensor, "items candidates"]
    scores: Float[Tensor, "items candidates"]
    normalizers: Float[Tensor, "temperatures items"]
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
    has_others = labels.bincount()[labels] > 1
    first = _judge(rows, labels, fold, torch.ones_like(has_others), partial(_half, progress, 0))
    trusted = _log_odds(_log_posterior(first, has_others, num_classes)) < 0
    trusted |= labels[trusted].bincount(minlength=num_classes)[labels] < 2  # a class needs items to compare with
    second = _judge(rows, labels, fold, trusted, partial(_half, progress, 1))
    posterior = _log_posterior(second, has_others, num_classes)
    odds = _log_odds(posterior)
    likeliest = 1 + posterior[:, 1:-1].argmax(dim=1)
    return LabelCheck(
        odds=odds.float().where(has_others, -torch.inf),
        evidence=(second.scores[:, 1:].amax(dim=1) - second.scores[:, 0]).where(has_others, -torch.inf),
        suggested=second.classes.gather(1, likeliest[:, None])[:, 0],
        closeness=second.closeness,
    )


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
    classes, scores = labels[:, None].repeat(1, 1 + others), torch.zeros(len(rows), 1 + others)
    normalizers, closeness = torch.zeros(len(TEMPERATURES), len(rows)), torch.zeros(len(rows))
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
            scores[block, :1] = log_probability.gather(1, own)
            best = log_probability.scatter(1, own, -torch.inf).topk(min(others, num_classes), dim=1)
            scores[block, 1:], classes[block, 1:] = best
            for place, temperature in enumerate(TEMPERATURES):
                normalizers[place, block] = (temperature * log_probability).logsumexp(dim=1)
            done += len(block)
            progress(done, len(rows))
    return _Judgement(classes, scores, normalizers, closeness)


def _log_posterior(
    judgement: _Judgement, has_others: Bool[Tensor, " items"], num_classes: int
) -> Float[Tensor, "items columns"]:
    """Log-probabilities of the candidate classes of each item, given its label; the last column is all other classes.

    The temperature and the shares of the sources of labels are those that make the given labels most likely.
    """
    best, result = -math.inf, torch.empty(0)
    for temperature, normalizer in zip(TEMPERATURES, judgement.normalizers, strict=True):
        log_probability = (temperature * judgement.scores - normalizer[:, None]).double()
        unlisted = (1 - log_probability.exp().sum(dim=1, keepdim=True)).clamp_min(TINY).log()
        sources = _sources(log_probability.exp(), judgement.classes, num_classes)
        log_probability = torch.cat([log_probability, unlisted], dim=1)
        given = torch.einsum("sic,ic->si", sources, log_probability.exp()).clamp_min(TINY)
        shares = _shares(given[:, has_others])
        likelihood = float((shares @ given[:, has_others]).log().sum())
        if likelihood > best:
            noise = torch.einsum("s,sic->ic", shares, sources)
            best, result = likelihood, F.log_softmax(log_probability + noise.log(), dim=1)
    return result


def _log_odds(log_posterior: Float[Tensor, "items columns"]) -> Float[Tensor, " items"]:
    return log_posterior[:, 1:].logsumexp(dim=1) - log_posterior[:, 0]


def _sources(
    probability: Float[Tensor, "items candidates"], classes: Int[Tensor, "items candidates"], num_classes: int
) -> Float[Tensor, "sources items columns"]:
    """Probability of the given label if an item is of each candidate class, or of another, by source of labels.

    The sources: the true class, any other class, and the classes that are easily confused with the true one.
    """
    count, width = classes.shape
    result = torch.zeros(3, count, width + 1, dtype=torch.float64)
    result[0, :, 0] = 1
    result[1, :, 1:] = 1 / max(num_classes - 1, 1)
    candidates, given = classes.numpy().flatten(), classes[:, 0].numpy().repeat(width)
    items = np.arange(count).repeat(width)
    memberships = csr_array((probability.flatten().numpy(), (items, candidates)), shape=(count, num_classes))
    overlap = (memberships.T @ memberships).tocsr().power(SHARPNESS)
    overlap.setdiag(0)
    confused = overlap[candidates, given] / overlap.sum(axis=1).clip(TINY)[candidates]
    result[2, :, :width] = torch.from_numpy(confused).view(count, width)
    return result


def _shares(likelihood: Float[Tensor, "sources items"]) -> Float[Tensor, " sources"]:
    """Shares of the sources in a mixture by expectation maximisation."""
    prior = torch.tensor(PRIOR, dtype=likelihood.dtype)
    shares = prior / prior.sum()
    for _ in range(STEPS):
        joint = shares[:, None] * likelihood
        counts = (joint / joint.sum(dim=0)).sum(dim=1) + prior
        shares = counts / counts.sum()
    return shares


def reduced(features: Float[Tensor, "items features"], width: int = WIDTH) -> Float[Tensor, "items width"]:
    """Centred features, cut to their first ``width`` principal components; far longer rows than usual are shortened.

    A single row of a wrong scale would otherwise determine the components and the whitening.
    """
    rows = features.float() - features.float().median(dim=0).values
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    rows = rows * (LONGEST * lengths.median() / lengths.clamp_min(1e-30)).clamp_max(1)
    rows = rows - rows.mean(dim=0)
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
    """Mean direction of each class, its centres, and the share of its items that each holds."""

    means: Float[Tensor, "classes dim"]
    centers: Float[Tensor, "classes k dim"]
    shares: Float[Tensor, "classes k"]
    empty: Tensor  # classes without an item

    @staticmethod
    def fit(vectors: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], num_classes: int) -> "_ClassModel":
        means = torch.zeros(num_classes, vectors.shape[1]).index_add_(0, labels, vectors)
        anywhere = F.normalize(torch.ones(num_classes, CENTERS, vectors.shape[1]), dim=-1)
        centers = moved_to_data(anywhere, vectors, labels)
        counts = nearest_centers(vectors, labels, centers).bincount(minlength=num_classes * CENTERS)
        counts = counts.view(num_classes, CENTERS) + 0.5
        shares = counts / counts.sum(dim=1, keepdim=True)
        return _ClassModel(F.normalize(means, dim=1), centers, shares, labels.bincount(minlength=num_classes) == 0)

    def log_probability(self, vectors: Float[Tensor, "batch dim"]) -> tuple[Tensor, Tensor]:
        """Mean log-probability of each class by means and by centres, and the cosine to the nearest centre."""
        by_center = torch.zeros(len(vectors), len(self.means))
        closeness = torch.full((len(vectors),), -1.0)
        for centers, shares in zip(self.centers.unbind(dim=1), self.shares.T, strict=True):
            similarity = (vectors @ centers.T).masked_fill_(self.empty, -torch.inf)
            closeness = torch.maximum(closeness, similarity.amax(dim=1))
            by_center += similarity.mul_(SCALE).exp_().mul_(shares)  # at most e to the power of SCALE
        by_mean = (SCALE * vectors @ self.means.T).masked_fill_(self.empty, -torch.inf)
        both = (F.log_softmax(by_center.log_(), dim=1) + F.log_softmax(by_mean, dim=1)) / 2
        return both.clamp_min_(-1e4), closeness


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
