"""Losses with learned centres, merging centres after training, and initialising them from data."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from softtriple.losses.base import Labels, Loss, Vectors, check_embeddings, require_count, require_nonnegative

# Centres within this distance (about 6 degrees on the unit sphere) count as merged. The regulariser pulls with constant
# force, so merged centres keep moving around each other by about one optimiser step and never coincide exactly.
MERGED = 0.1

# Number of values in a scratch tensor when looping over classes.
AT_ONCE = 1 << 22

KMEANS_STEPS = 10
KMEANS_CANDIDATES = 4  # for each seed of greedy k-means++


class CenterLoss(Loss, ABC):
    """A loss that compares embeddings with learned centres of each class.

    A subclass defines ``forward`` and ``compare``; ``centers`` has the shape (classes, centres per class, dimension).
    """

    centers: nn.Parameter

    def __init__(
        self, num_classes: int, embedding_size: int, centers_per_class: int = 1, *, validate: bool = True
    ) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        shape = (self.num_classes, require_count("centers_per_class", centers_per_class), self.embedding_size)
        self.centers = nn.Parameter(draw_centers(self.num_classes, shape))

    @abstractmethod
    def compare(
        self, embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
    ) -> Float[Tensor, "batch classes"]:
        """Similarity of each embedding to each class of ``centers``, which may be a slice of all centres."""

    def similarities(self, embeddings: Vectors) -> Float[Tensor, "batch classes"]:
        """Similarity of each embedding to each class, without margin or scale."""
        return self._compare(self.check_embeddings(embeddings), self.centers)

    @torch.no_grad()
    def predict(self, embeddings: Vectors) -> Int[Tensor, " batch"]:
        """Most similar class of each embedding, the first in case of a tie; computed in bounded memory."""
        embeddings = self.check_embeddings(embeddings)
        num_classes, k, _ = self.centers.shape
        size = max(1, AT_ONCE // (k * len(embeddings)))
        best = embeddings.new_full((len(embeddings),), -torch.inf)
        predicted = torch.zeros_like(best, dtype=torch.int64)
        for start in range(0, num_classes, size):
            similarity, row = self._compare(embeddings, self.centers[start : start + size]).max(dim=1)
            predicted = torch.where(similarity > best, start + row, predicted)
            best = torch.maximum(similarity, best)
        return predicted

    @torch.no_grad()
    def distinct_centers(self, tolerance: float = MERGED) -> Int[Tensor, " classes"]:
        """Number of centres left in each class when those within ``tolerance`` of each other count as one."""
        return count_distinct(self.centers, tolerance)

    @torch.no_grad()
    def initialize_centers(self, embeddings: Vectors, labels: Labels) -> None:
        """Set the directions of the centres by k-means on the ``embeddings`` of each class.

        Deterministic. The lengths of centres do not change, nor do centres of classes without embeddings.
        """
        embeddings, labels = self.check_batch(embeddings, labels)
        self.centers.copy_(moved_to_data(self.centers, embeddings, labels))

    def _compare(
        self, embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
    ) -> Float[Tensor, "batch classes"]:
        """``compare`` in the precision of ``embeddings``, under autocast too."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.compare(embeddings, centers.to(embeddings.dtype))


@dataclass(frozen=True)
class MergedCenters:
    """A compact, ragged set of centres: ``centers[m]`` of class ``classes[m]`` replaces ``counts[m]`` merged ones."""

    centers: Float[Tensor, "merged dim"]
    counts: Int[Tensor, " merged"]
    classes: Int[Tensor, " merged"]
    num_classes: int
    gamma: float

    def similarities(self, embeddings: Vectors) -> Float[Tensor, "batch {self.num_classes}"]:
        """Relaxed similarity of each embedding to each class; a merged centre is weighted by its count."""
        embeddings = check_embeddings(embeddings, self.centers.shape[1], self.centers, check_values=False)
        similarity = F.normalize(embeddings.to(self.centers.dtype), dim=-1) @ self.centers.T
        logits = similarity / self.gamma + self.counts.log()
        owner = self.classes.expand_as(logits)
        by_class = logits.new_zeros(len(embeddings), self.num_classes)
        # Subtracting the largest logit of a class keeps its exponentials in range for any gamma.
        best = by_class.scatter_reduce(1, owner, logits, "amax", include_self=False)
        weights = (logits - best.gather(1, owner)).exp()
        return by_class.scatter_add(1, owner, weights * similarity) / by_class.scatter_add(1, owner, weights)

    def predict(self, embeddings: Vectors) -> Int[Tensor, " batch"]:
        """Most similar class of each embedding."""
        return self.similarities(embeddings).argmax(dim=1)


def draw_centers(count: int, shape: tuple[int, ...]) -> Float[Tensor, "{count} k dim"]:
    """Random initial centres of the next ``count`` classes, for centres of ``shape`` in all.

    Several calls draw the same values as one call for all classes.
    """
    num_classes, k, dim = shape
    # As in the authors' Kaiming initialisation of a (dim, C * K) matrix. Losses normalise the centres, but the angle by
    # which a step of Adam turns them depends on their length.
    bound = (num_classes * k) ** -0.5
    return torch.empty(count, k, dim).uniform_(-bound, bound)


def merge_groups(centers: Float[Tensor, "classes k dim"], tolerance: float) -> Int[Tensor, "classes k"]:
    """For each unit centre, the index of the leader of its group, which is at most ``tolerance`` away.

    Greedy: the centre with the most neighbours leads the first group, then the next one that is still free, and so on.
    """
    distance = torch.cdist(centers, centers, compute_mode="donot_use_mm_for_euclid_dist")
    near = distance <= require_nonnegative("tolerance", tolerance)
    leader = torch.full(near.shape[:2], -1, device=centers.device)
    by_crowd = near.sum(dim=-1).argsort(dim=-1, descending=True, stable=True)
    for candidate in by_crowd.unbind(dim=1):
        claims = near[torch.arange(len(near)), candidate] & (leader < 0)
        free = leader.gather(1, candidate[:, None]) < 0
        leader = torch.where(claims & free, candidate[:, None], leader)
    return leader


def count_distinct(centers: Float[Tensor, "classes k dim"], tolerance: float) -> Int[Tensor, " classes"]:
    """Number of groups (`merge_groups`) that the centres of each class form; computed in bounded memory."""
    _, k, dim = centers.shape
    itself = torch.arange(k, device=centers.device)
    runs = torch.split(centers, max(1, AT_ONCE // (k * dim)))
    leaders = (merge_groups(F.normalize(run, dim=-1), tolerance) for run in runs)
    return torch.cat([(leader == itself).sum(dim=-1) for leader in leaders])


def merge(centers: Float[Tensor, "classes k dim"], gamma: float, tolerance: float) -> MergedCenters:
    """The distinct centres of every class; each is the mean direction of a group."""
    num_classes, k, _ = centers.shape
    unit = F.normalize(centers, dim=-1)
    member_of = F.one_hot(merge_groups(unit, tolerance), k)  # (classes, centre, its leader)
    means = F.normalize(member_of.to(unit.dtype).mT @ unit, dim=-1)
    counts = member_of.sum(dim=1)
    kept = counts > 0
    owners = torch.arange(num_classes, device=centers.device)[:, None].expand_as(kept)
    return MergedCenters(means[kept], counts[kept], owners[kept], num_classes, gamma)


def nearest_centers(
    embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], centers: Float[Tensor, "classes k dim"]
) -> Int[Tensor, " items"]:
    """The nearest centre of each embedding within its class, as ``class * k + centre``; merged centres count as one.

    Computed in bounded memory.
    """
    _, k, dim = centers.shape
    classes, owners = torch.unique(labels, return_inverse=True)
    unit = F.normalize(centers[classes], dim=-1)
    leaders = merge_groups(unit, MERGED)
    size = max(1, AT_ONCE // (k * dim))
    nearest = [
        leaders[owner, torch.einsum("nd,nkd->nk", vectors, unit[owner]).argmax(dim=1)]
        for vectors, owner in zip(torch.split(embeddings, size), torch.split(owners, size), strict=True)
    ]
    return labels * k + torch.cat(nearest)


def moved_to_data(
    centers: Float[Tensor, "classes k dim"], embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"]
) -> Float[Tensor, "classes k dim"]:
    """``centers`` with the directions of k-means centres of each class, and their own lengths.

    Centres of classes without embeddings are unchanged.
    """
    num_classes, k, dim = centers.shape
    points = F.normalize(embeddings, dim=-1).to(centers)
    labels = labels.to(centers.device)
    counts = labels.bincount(minlength=num_classes)
    starts, rows = counts.cumsum(dim=0) - counts, labels.argsort(stable=True)
    lengths = torch.linalg.vector_norm(centers, dim=-1, keepdim=True)
    moved = centers.clone()
    for size in torch.unique(counts[counts > 0]).tolist():  # classes of equal size form one tensor
        of_size = (counts == size).nonzero().flatten()
        for classes in of_size.split(max(1, AT_ONCE // (size * max(dim, k, KMEANS_CANDIDATES)))):
            items = rows[starts[classes][:, None] + torch.arange(size, device=rows.device)]
            directions = spherical_kmeans(points[items], k)
            known = directions.any(dim=-1, keepdim=True)  # a zero vector has no direction
            moved[classes] = torch.where(known, lengths[classes] * directions, centers[classes])
    return moved


def spherical_kmeans(points: Float[Tensor, "classes items dim"], k: int) -> Float[Tensor, "classes {k} dim"]:
    """``k`` unit centres of each class's unit ``points``: greedy k-means++ seeds, then a few Lloyd steps.

    If a class has fewer than ``k`` different points, some of its centres coincide.
    """
    classes = torch.arange(len(points), device=points.device)
    # All classes use the same random numbers, so the result for one does not depend on the others.
    draws = torch.rand(k, KMEANS_CANDIDATES, generator=torch.Generator().manual_seed(0)).to(points)
    distance, seeds = points.new_full(points.shape[:2], 2.0), []  # 1 − cosine to the nearest seed so far
    for draw in draws:
        cumulative = distance.cumsum(dim=1)
        candidates = torch.searchsorted(cumulative, draw * cumulative[:, -1:])
        # Never zero, so that there is always a point to draw.
        to_candidates = (1 - points[classes[:, None], candidates] @ points.mT).clamp_min(1e-6)
        remaining = torch.minimum(distance[:, None], to_candidates)
        best = remaining.sum(dim=2).argmin(dim=1)
        distance = remaining[classes, best]
        seeds.append(points[classes, candidates[classes, best]])
    centers = torch.stack(seeds, dim=1)
    for _ in range(KMEANS_STEPS):
        nearest = (points @ centers.mT).argmax(dim=2)
        sums = F.one_hot(nearest, k).to(points.dtype).mT @ points
        centers = torch.where(sums.any(dim=-1, keepdim=True), F.normalize(sums, dim=-1), centers)
    return centers
