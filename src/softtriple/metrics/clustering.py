"""Clustering quality: k-means, and how well its clusters agree with the classes (NMI, AMI).

k-means minimises the squared Euclidean distance of unit vectors to means that are not normalised, as in the papers that
report NMI. Every item counts (no subsampling), except that a start is chosen from a random sample. Runs are compared by
their objective alone, never by labels, and the run with the lowest objective is reported.

The start decides how low the objective ends: Lloyd's iterations do not move a centre from a group that has two to one
that has none. With few clusters centres are drawn one by one as in k-means++, with probability proportional to the
squared distance to the centres so far, and each is the best of several draws. With many, as on Stanford Online
Products, that takes too long: they are drawn in a few large rounds that together cost as much as one iteration. The
first iterations also move centres that contribute little to items that are far from any centre, where that lowers the
objective. A few iterations then reach a lower objective than twenty from random items.
"""

from typing import NamedTuple

import faiss
import numpy as np
import scipy  # loads scipy.special on first use: it takes a quarter of a second
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple.errors import UserError
from softtriple.search.products import full_float32

# With more clusters an iteration takes seconds, and runs differ little because chance averages out over thousands of
# clusters: the first centres are then drawn in so many rounds, and one run is enough.
MANY = 1000
ROUNDS = 16
# Items from which the first centres are drawn, for each of them. Of 10, 20 and all, tried on the synthetic sets of
# benchmarks/evaluate.py, 10 ended with as low an objective.
SAMPLED = 10
MOST_SAMPLED = 4096  # whose distances from each other take 64 MB


class Clustering(NamedTuple):
    """The cluster of each item, and the sum of squared distances to the cluster means."""

    clusters: Int[Tensor, " items"]
    objective: float


def kmeans(
    vectors: Float[Tensor, "items dim"],
    num_clusters: int,
    *,
    seed: int = 0,
    start: Float[Tensor, "clusters dim"] | None = None,
    iterations: int = 20,
    tolerance: float = 1e-4,
) -> Clustering:
    """Clusters of ``vectors``, found on the CPU by Lloyd's iterations from ``start`` or from items far apart.

    It stops after ``iterations``, or when an iteration without relocated centres lowers the objective by less than the
    share ``tolerance``.
    """
    if not 1 <= num_clusters <= len(vectors):
        raise UserError(f"num_clusters = {num_clusters}: choose between 1 and the number of items, {len(vectors)}")
    items = vectors.detach().float().cpu().contiguous()
    random = np.random.default_rng(seed)
    if start is None and num_clusters > MANY:
        served = _start_in_rounds(items, num_clusters, random)
    else:
        served = _assign(items, _best_draws(items, num_clusters, random) if start is None else start)
    served = _lloyd(items, served, num_clusters, iterations, tolerance)
    return Clustering(torch.from_numpy(served.nearest), served.objective)


def principal_components(vectors: Float[Tensor, "items dim"], count: int) -> Float[Tensor, "items count"]:
    """The coordinates of ``vectors`` that vary most, on the CPU."""
    items = vectors.detach().float().cpu()
    _, directions = torch.linalg.eigh(torch.cov(items.T))
    components: Tensor = items @ directions[:, -count:]
    return components.contiguous()


def cluster_means(
    vectors: Float[Tensor, "items dim"], clusters: Int[Tensor, " items"], num_clusters: int
) -> Float[Tensor, "clusters dim"]:
    """The mean of each cluster, on the CPU; 0 where it has no items."""
    sizes = torch.bincount(clusters, minlength=num_clusters).clamp(min=1)
    means = torch.zeros(num_clusters, vectors.shape[1]).index_add_(0, clusters, vectors.detach().float().cpu())
    return means.div_(sizes[:, None])


def _lloyd(
    items: Float[Tensor, "items dim"], served: "_Service", num_clusters: int, iterations: int, tolerance: float
) -> "_Service":
    """Lloyd's iterations from ``served``, with centres relocated where that lowers the objective."""
    relocate = True
    for _ in range(iterations):
        moves = _relocations(served, num_clusters) if relocate else []
        relocate = bool(moves)  # after an iteration without moves others hardly ever have any, and they take time
        centers = cluster_means(items, torch.from_numpy(served.nearest), num_clusters)
        for cluster, item in moves:
            centers[cluster] = items[item]
        better = _assign(items, centers, 2 if relocate else 1)
        gain = served.objective - better.objective
        if gain > 0:
            served = better
        if gain <= tolerance * served.objective:
            if not moves:
                break
            relocate = False  # the gain of a move is an estimate
    return served


def nmi(labels: Int[Tensor, " items"], clusters: Int[Tensor, " items"]) -> float:
    """Mutual information of classes and clusters over the mean of their entropies; 1 when they agree.

    Not adjusted for chance: random clusters score high when they are many, 0.81 for 11 316 clusters of 60 502 items.

    Example:
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> nmi(labels, torch.tensor([7, 7, 3, 3])), nmi(labels, torch.tensor([0, 1, 0, 1]))
        (1.0, 0.0)
    """
    return Agreement(labels).nmi(clusters)


def ami(labels: Int[Tensor, " items"], clusters: Int[Tensor, " items"]) -> float:
    """Mutual information in excess of chance, over its largest possible excess: 1 agreement, 0 chance.

    Chance is a random assignment with the same sizes of classes and clusters; its expectation is computed exactly.
    Equal to scikit-learn's, but sizes that occur many times are computed once.

    Example:
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> round(ami(labels, torch.tensor([7, 7, 3, 3])), 4), round(ami(labels, torch.tensor([0, 1, 0, 1])), 4)
        (1.0, -0.5)
    """
    return Agreement(labels).ami(clusters)


class Agreement:
    """`nmi` and `ami` of several clusterings with the same ``labels``; what they share is computed once."""

    def __init__(self, labels: Int[Tensor, " items"]) -> None:
        _, self._classes, self._sizes = np.unique(labels.cpu().numpy(), return_inverse=True, return_counts=True)
        self._entropy = _entropy(self._sizes)

    def nmi(self, clusters: Int[Tensor, " items"]) -> float:
        """Normalised mutual information with the labels."""
        information, sizes = self._information(clusters)
        if len(sizes) == len(self._sizes) == 1:
            return 1.0  # one class in one cluster always agree
        mean_entropy = (self._entropy + _entropy(sizes)) / 2
        return min(1.0, max(0.0, information / mean_entropy))  # rounding may carry it past either

    def ami(self, clusters: Int[Tensor, " items"]) -> float:
        """Adjusted mutual information with the labels."""
        information, sizes = self._information(clusters)
        if len(sizes) == len(self._sizes) == 1:
            return 1.0
        distinct, counts = np.unique(sizes, return_counts=True)
        chance = float(counts @ _information_by_chance(self._sizes, distinct))
        most = (self._entropy + _entropy(sizes)) / 2 - chance
        # Every class and every cluster of one item: chance already agrees perfectly, and so do they.
        if abs(most) < 1e-12:
            return 1.0
        return min(1.0, (information - chance) / most)  # rounding may carry it past 1

    def _information(self, clusters: Int[Tensor, " items"]) -> tuple[float, NDArray[np.int64]]:
        """Mutual information of classes and clusters, and the sizes of the clusters."""
        _, groups, sizes = np.unique(clusters.cpu().numpy(), return_inverse=True, return_counts=True)
        keys, cells = np.unique(self._classes * len(sizes) + groups, return_counts=True)
        rows, cols = np.divmod(keys, len(sizes))
        independent = self._sizes[rows] * sizes[cols] / len(groups)
        return float((cells * np.log(cells / independent)).sum() / len(groups)), sizes


class _Service(NamedTuple):
    """The nearest centre of each item, the next one, and the squared distances to both."""

    nearest: NDArray[np.int64]
    second: NDArray[np.int64]
    distance: NDArray[np.float64]
    second_distance: NDArray[np.float64]

    @property
    def objective(self) -> float:
        return float(self.distance.sum())


def _best_draws(
    items: Float[Tensor, "items dim"], num_clusters: int, random: np.random.Generator
) -> Float[Tensor, "clusters dim"]:
    """Some of the items, far apart: each is the one of several drawn that lowers the objective most.

    This is k-means++ with trials, as in scikit-learn, on a sample.
    """
    sample = items[random.permutation(len(items))[: min(SAMPLED * num_clusters, MOST_SAMPLED)]]
    squares = sample.square().sum(dim=1)
    with full_float32():
        between = torch.addmm(squares, sample, sample.T, alpha=-2).add_(squares[:, None]).clamp_(min=0).numpy()
    weights, distance = np.ones(len(sample)), np.full(len(sample), np.inf, dtype=np.float32)
    chosen: list[int] = []
    for draws in random.random((num_clusters, 2 + int(np.log(num_clusters)))):
        cumulative = weights.cumsum(dtype=np.float64)
        drawn = np.searchsorted(cumulative, draws * cumulative[-1], side="right")
        drawn = np.minimum(drawn, len(sample) - 1)  # past the end if only copies of centres are left
        distances = np.minimum(between[drawn], distance)
        best = distances.sum(axis=1).argmin()
        weights = distance = distances[best]
        chosen.append(int(drawn[best]))
    return sample[chosen]


def _start_in_rounds(items: Float[Tensor, "items dim"], num_clusters: int, random: np.random.Generator) -> _Service:
    """Items far apart as the first centres, many in a round."""
    count = len(items)
    chosen: list[NDArray[np.int64]] = []
    weights = np.ones(count)
    served = _Service(*np.zeros((2, count), dtype=np.int64), *np.full((2, count), np.inf))
    for part in np.array_split(np.arange(num_clusters), ROUNDS):
        # The smallest of exponential times with rates `weights`: a weighted draw without replacement.
        times = random.exponential(size=count) / weights
        chosen.append(np.argpartition(times, len(part) - 1)[: len(part)])
        served = _nearer(served, _assign(items, items[chosen[-1]]), int(part[0]))
        # Copies of a centre keep a tiny weight, so that enough items remain to be drawn.
        weights = np.maximum(served.distance, 1e-12)
        weights[np.concatenate(chosen)] = 1e-300
    return served


def _nearer(old: _Service, new: _Service, first: int) -> _Service:
    """The two nearest of four centres; those of ``new`` are numbered from ``first``."""
    closer = new.distance < old.distance
    nearest, distance = np.where(closer, new.nearest + first, old.nearest), np.minimum(new.distance, old.distance)
    second, second_distance = (
        np.where(closer, old.nearest, old.second),
        np.where(closer, old.distance, old.second_distance),
    )
    other, other_distance = (
        np.where(closer, new.second, new.nearest),
        np.where(closer, new.second_distance, new.distance),
    )
    closer = other_distance < second_distance
    return _Service(
        nearest, np.where(closer, other + first, second), distance, np.minimum(other_distance, second_distance)
    )


def _assign(items: Float[Tensor, "items dim"], centers: Float[Tensor, "clusters dim"], depth: int = 2) -> _Service:
    """The two nearest centres of each item; the second is infinitely far if ``depth`` or the number of centres is 1."""
    distance, nearest = faiss.knn(items.numpy(), centers.numpy(), min(depth, len(centers)))
    if nearest.shape[1] == 1:
        distance, nearest = np.insert(distance, 1, np.inf, axis=1), np.insert(nearest, 1, 0, axis=1)
    return _Service(*nearest.T, *distance.T.astype(np.float64))


def _relocations(served: _Service, num_clusters: int) -> list[tuple[int, int]]:
    """Clusters that cost less to give up than the item that they are moved to gains."""
    # Without its centre a cluster's items go to their second; an empty cluster costs nothing, and goes first.
    loss = np.bincount(served.nearest, served.second_distance - served.distance, minlength=num_clusters)
    cheapest = np.lexsort((np.bincount(served.nearest, minlength=num_clusters), loss))
    farthest = np.full(num_clusters, -np.inf)
    np.maximum.at(farthest, served.nearest, served.distance)
    [items] = np.nonzero(served.distance == farthest[served.nearest])
    worst = np.full(num_clusters, -1)
    worst[served.nearest[items]] = items  # one item of each cluster: a later write wins
    worst = worst[np.argsort(-farthest, kind="stable")][: int((worst >= 0).sum())]
    moves: list[tuple[int, int]] = []
    kept = np.zeros(num_clusters, dtype=bool)  # others rely on these
    given_up = np.zeros(num_clusters, dtype=bool)
    for cluster, item in zip(cheapest, worst, strict=False):
        if served.distance[item] <= loss[cluster]:
            break
        seconds = served.second[served.nearest == cluster]
        if not kept[cluster] and not given_up[served.nearest[item]] and not given_up[seconds].any():
            moves.append((int(cluster), int(item)))
            given_up[cluster] = True
            kept[seconds] = True
            kept[served.nearest[item]] = True
    return moves


def _information_by_chance(
    class_sizes: NDArray[np.int64], cluster_sizes: NDArray[np.int64]
) -> Float[np.ndarray, " sizes"]:
    """What a cluster of each size adds to the expected mutual information with classes (Vinh et al., JMLR 2010).

    A class of a and a cluster of b of the N items share n by chance, with hypergeometric probability and mean a b / N.
    They add the expectation of n / N log(N n / (a b)) = n / N log n + n / N log(N / (a b)).
    """
    total, largest = int(class_sizes.sum()), int(cluster_sizes.max(initial=0))
    # The reciprocal of the factorial of a negative number is 0: negative indices find the infinities at the end.
    log_factorial = np.append(scipy.special.gammaln(np.arange(total + 1) + 1.0), np.full(largest, np.inf))
    b, n = cluster_sizes[:, None], np.arange(1, min(int(class_sizes.max(initial=0)), largest) + 1)
    not_shared = b - n
    of_cluster = log_factorial[b] - log_factorial[total] + log_factorial[total - b] - log_factorial[not_shared]
    information = np.zeros(len(cluster_sizes))
    for a, count in zip(*np.unique(class_sizes, return_counts=True), strict=True):
        m = n[:a]
        of_class = log_factorial[a] - log_factorial[m] - log_factorial[a - m] + log_factorial[total - a]
        log_probability = of_cluster[:, :a] + of_class - log_factorial[total - a - not_shared[:, :a]]
        shared = np.exp(log_probability) @ (m * np.log(m))
        information += count * (shared + a * cluster_sizes / total * np.log(total / (a * cluster_sizes))) / total
    return information


def _entropy(sizes: NDArray[np.int64]) -> float:
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())
