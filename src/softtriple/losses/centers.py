"""Centres: new ones, which of the trained ones are still distinct, what is left when the others merge."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from softtriple.losses.checks import at_least_one, checked_embeddings, not_negative

# Centres closer than this (about 6 degrees on the unit sphere) count as merged: the regulariser pulls with constant
# force, so that merged centres tremble around each other by about a step of the optimiser and never coincide exactly.
MERGED = 0.1

# Numbers that are looked at in one go where all classes together would take too much memory.
AT_ONCE = 1 << 22


@dataclass(frozen=True)
class MergedCenters:
    """A compact, ragged set of centres: ``centers[m]`` of class ``classes[m]`` stands for ``counts[m]`` merged ones."""

    centers: Float[Tensor, "merged dim"]
    counts: Int[Tensor, " merged"]
    classes: Int[Tensor, " merged"]
    num_classes: int
    gamma: float

    def similarities(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch {self.num_classes}"]:
        """Relaxed similarity of each embedding to each class; a merged centre weighs as many as it stands for."""
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=False).to(self.centers.dtype)
        similarity = F.normalize(embeddings, dim=-1) @ self.centers.T
        logits = similarity / self.gamma + self.counts.log()
        owner = self.classes.expand_as(logits)
        by_class = logits.new_zeros(len(embeddings), self.num_classes)
        # Shifting by the best centre of a class keeps its exponentials in range for any gamma.
        best = by_class.scatter_reduce(1, owner, logits, "amax", include_self=False)
        weights = (logits - best.gather(1, owner)).exp()
        return by_class.scatter_add(1, owner, weights * similarity) / by_class.scatter_add(1, owner, weights)

    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """Most similar class of each embedding."""
        return self.similarities(embeddings).argmax(dim=1)


def new_centers(num_classes: int, centers_per_class: int, embedding_size: int) -> nn.Parameter:
    """Centres of random direction, a parameter of shape (num_classes, centers_per_class, embedding_size)."""
    shape = (
        at_least_one("num_classes", num_classes),
        at_least_one("centers_per_class", centers_per_class),
        at_least_one("embedding_size", embedding_size),
    )
    return nn.Parameter(draw_centers(num_classes, shape))


def draw_centers(count: int, shape: tuple[int, ...]) -> Float[Tensor, "{count} k dim"]:
    """Centres of the next ``count`` classes of all those that ``shape`` counts; one after the other, or at once."""
    num_classes, k, dim = shape
    # The bound of the authors' Kaiming initialisation of a (dim, C * K) matrix. Losses normalise the centres, but how
    # far a step of Adam turns them depends on their length.
    bound = (num_classes * k) ** -0.5
    return torch.empty(count, k, dim).uniform_(-bound, bound)


def merge_groups(centers: Float[Tensor, "classes k dim"], tolerance: float) -> Int[Tensor, "classes k"]:
    """For each unit centre the number of the centre that stands for it: itself, or one no farther than ``tolerance``.

    The centre with most others around it stands for those, then the next of the rest, and so on.
    """
    distance = torch.cdist(centers, centers, compute_mode="donot_use_mm_for_euclid_dist")
    near = distance <= not_negative("tolerance", tolerance)
    leader = torch.full(near.shape[:2], -1, device=centers.device)
    by_crowd = near.sum(dim=-1).argsort(dim=-1, descending=True, stable=True)
    for candidate in by_crowd.unbind(dim=1):
        claims = near[torch.arange(len(near)), candidate] & (leader < 0)
        free = leader.gather(1, candidate[:, None]) < 0
        leader = torch.where(claims & free, candidate[:, None], leader)
    return leader


def count_distinct(centers: Float[Tensor, "classes k dim"], tolerance: float) -> Int[Tensor, " classes"]:
    """How many centres of each class are left when those within ``tolerance`` of each other merge.

    In runs of classes, so that it takes no second copy of all centres.
    """
    _, k, dim = centers.shape
    itself = torch.arange(k, device=centers.device)
    runs = torch.split(centers, max(1, AT_ONCE // (k * dim)))
    leaders = (merge_groups(F.normalize(run, dim=-1), tolerance) for run in runs)
    return torch.cat([(leader == itself).sum(dim=-1) for leader in leaders])


def merge(centers: Float[Tensor, "classes k dim"], gamma: float, tolerance: float) -> MergedCenters:
    """The distinct centres of every class, each the mean direction of those that merged into it."""
    num_classes, k, _ = centers.shape
    unit = F.normalize(centers, dim=-1)
    member_of = F.one_hot(merge_groups(unit, tolerance), k)  # (classes, centre, the centre that stands for it)
    means = F.normalize(member_of.to(unit.dtype).mT @ unit, dim=-1)
    counts = member_of.sum(dim=1)
    kept = counts > 0
    owners = torch.arange(num_classes, device=centers.device)[:, None].expand_as(kept)
    return MergedCenters(means[kept], counts[kept], owners[kept], num_classes, gamma)


def centers_from_data(
    embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], num_new: int, k: int
) -> Float[Tensor, "{num_new} {k} dim"]:
    """``k`` unit centres for each of ``num_new`` classes: k-means of its embeddings on the unit sphere.

    A class with fewer different embeddings than ``k`` has some of its centres twice.
    """
    from sklearn.cluster import KMeans

    points, owners = F.normalize(embeddings, dim=-1).double().cpu().numpy(), labels.cpu().numpy()
    found = np.empty((num_new, k, points.shape[1]))
    for label in range(num_new):
        different = np.unique(points[owners == label], axis=0)
        if len(different) > k:
            different = KMeans(k, n_init=4, random_state=0).fit(different).cluster_centers_
        found[label] = np.resize(different, (k, points.shape[1]))
    return F.normalize(torch.from_numpy(found).to(embeddings), dim=-1)


def param_groups(
    loss: nn.Module, *modules: nn.Module, lr: float = 1e-4, center_lr: float = 1e-2
) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser, those of the loss among them: ``Adam(loss.param_groups(encoder))``.

    ``modules`` learn at ``lr``, the centres at ``center_lr``; the defaults are the paper's.
    """
    learned = [parameter for module in modules for parameter in module.parameters()]
    groups = [{"params": learned, "lr": lr}] if learned else []
    return [*groups, {"params": list(loss.parameters()), "lr": center_lr}]
