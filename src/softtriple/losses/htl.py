"""HTL, hierarchical triplet loss (Ge et al., ECCV 2018): the margin depends on how close two classes are.

Before each epoch a tree over the classes is built from the embeddings of the training set. Its leaves are the classes;
two classes merge at the first level whose threshold exceeds their distance. The authors published no code; this follows
the formulas of the paper; ``docs/methods.md`` lists the choices they leave open.

===========  ====================  ============================================================
paper        code                  meaning
===========  ====================  ============================================================
d(p, q)      ``2 − 2 m_p · m_q``   mean squared distance of examples of classes p and q
s_c          ``spreads[c]``        mean squared distance of two examples of class c
d_l          ``thresholds[l]``     squared distance below which nodes merge at level l
H(p, q)      ``class_levels``      level at which classes p and q merge
β            ``beta``              constant part of the margin
m            ``neighborhood``      classes put into a batch together: one and its nearest
t            ``per_class``         examples per class in a batch
===========  ====================  ============================================================
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int, UInt8
from torch import Tensor

from softtriple.errors import UserError
from softtriple.losses.base import (
    Labels,
    Loss,
    Vectors,
    check_embeddings,
    check_labels,
    require_count,
    require_nonnegative,
)
from softtriple.losses.pairs import distances, relations, squared_distances


class ClassStatistics(NamedTuple):
    """Mean unit embedding of each class, and the mean squared distance between two of its examples."""

    means: Float64[Tensor, "classes dim"]
    spreads: Float64[Tensor, " classes"]


def class_statistics(
    embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], num_classes: int
) -> ClassStatistics:
    """Statistics of classes 0 to ``num_classes - 1``, each of which must have an example.

    A class with a single example gets the mean spread of the others (0 if there are none).
    """
    unit = F.normalize(embeddings.double(), dim=-1)
    counts = labels.bincount(minlength=num_classes)
    if not counts.all():
        missing = int((counts == 0).nonzero()[0])
        raise UserError(f"class {missing} has no embeddings; start_epoch needs those of the whole training set")
    sums = unit.new_zeros(num_classes, unit.shape[1]).index_add_(0, labels, unit)
    squares = counts.double().square()
    spreads = 2 * (squares - sums.square().sum(dim=1)) / (squares - counts).clamp_min(1)
    compared = counts > 1
    mean = spreads[compared].mean() if compared.any() else spreads.new_zeros(())
    return ClassStatistics(sums / counts[:, None], torch.where(compared, spreads, mean))


def level_thresholds(spreads: Float64[Tensor, " classes"], levels: int) -> Float64[Tensor, " thresholds"]:
    """Thresholds d_0 to d_L of the levels: squared distances, evenly spaced from the mean spread to 4, the maximum."""
    lowest = spreads.mean()
    return lowest + torch.arange(levels + 1, device=spreads.device) * (4 - lowest) / levels


def merge_levels(
    means: Float64[Tensor, "classes dim"], thresholds: Float64[Tensor, " thresholds"]
) -> UInt8[Tensor, "classes classes"]:
    """Level H at which each pair of classes merges into one node of the tree; 0 for a class and itself.

    At level l, classes connected by a chain of distances below d_l are one node (single linkage). The distance that
    decides is the largest edge on their path in a minimum spanning tree, which is grown class by class (Prim).
    """
    single = means.float()  # halves the memory of the one large matrix
    distance, bounds = (2 - 2 * single @ single.mT).cpu().numpy(), thresholds[1:].cpu().numpy()
    levels = np.zeros(distance.shape, dtype=np.uint8)
    inside = np.zeros(len(distance), dtype=bool)
    step, link, newest = np.full(len(distance), np.inf), np.zeros(len(distance), dtype=np.intp), 0
    for _ in range(len(distance) - 1):
        inside[newest] = True
        nearer = distance[newest] < step
        step[nearer], link[nearer] = distance[newest, nearer], newest
        newest = int(np.where(inside, np.inf, step).argmin())
        # Only rounding errors exceed the last threshold.
        level = min(int(np.searchsorted(bounds, step[newest], side="right")) + 1, len(bounds))
        levels[newest, inside] = levels[inside, newest] = np.maximum(levels[link[newest], inside], level)
    return torch.from_numpy(levels).to(means.device)


class HTLLoss(Loss):
    """Triplet loss over all triplets of a batch, with a margin that depends on the classes of anchor and negative.

    margin = beta + d_H(anchor, negative) − s_anchor; the loss is half the mean of
    max(0, D(anchor, positive) − D(anchor, negative) + margin).

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``. The tree takes num_classes² bytes, and five times
            that while it is built.
        beta: constant part of the margin.
        levels: levels of the tree above its leaves, at most 255.
        neighborhood: number of classes that ``choose_classes`` groups: one and its nearest.
        per_class: examples per class that a batch should contain.
        squared: D is the squared distance, in the units of the margin; the paper prints the plain distance.

    ``start_epoch`` builds the tree; before its first call the margin is ``beta``. Embeddings are normalised. A batch
    without a positive pair, or with a single class, has the value 0.
    """

    looks_ahead = True

    class_levels: Tensor
    thresholds: Tensor
    spreads: Tensor
    means: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        beta: float = 0.1,
        levels: int = 16,
        neighborhood: int = 4,
        per_class: int = 4,
        squared: bool = True,
        validate: bool = True,
    ) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        self.beta, self.levels = require_nonnegative("beta", beta), require_count("levels", levels)
        if levels > 255:
            raise UserError(f"levels = {levels} must be at most 255")
        self.neighborhood = require_count("neighborhood", neighborhood)
        self.per_class = require_count("per_class", per_class)
        self.squared = squared
        # Not part of the state: every epoch, including a resumed one, builds a new tree.
        no_tree = torch.zeros(num_classes, num_classes, dtype=torch.uint8)
        self.register_buffer("class_levels", no_tree, persistent=False)
        self.register_buffer("thresholds", torch.zeros(levels + 1), persistent=False)
        self.register_buffer("spreads", torch.zeros(num_classes), persistent=False)
        self.register_buffer("means", torch.empty(0, embedding_size), persistent=False)

    @torch.no_grad()
    def start_epoch(self, embeddings: Vectors, labels: Labels) -> None:
        """Build the tree, and with it margins and neighbourhoods, from the embeddings of the training set."""
        embeddings = check_embeddings(embeddings, self.embedding_size, None, check_values=True)
        labels = check_labels(labels, embeddings, self.num_classes)
        statistics = class_statistics(embeddings, labels, self.num_classes)
        thresholds = level_thresholds(statistics.spreads, self.levels)
        self.class_levels = merge_levels(statistics.means, thresholds).to(self.class_levels.device)
        self.thresholds, self.spreads = thresholds.to(self.thresholds), statistics.spreads.to(self.spreads)
        self.means = statistics.means.to(self.means)

    def choose_classes(self, anchors: Int[Tensor, " anchors"]) -> Int[Tensor, "anchors group"]:
        """For each anchor class, the ``neighborhood`` classes for a batch: itself, then its nearest."""
        if not len(self.means):
            raise UserError("choose_classes needs a tree; call start_epoch(embeddings, labels) first")
        anchors = anchors.long()
        similarity = self.means[anchors] @ self.means.mT
        similarity.scatter_(1, anchors[:, None], torch.inf)
        return similarity.topk(min(self.neighborhood, self.num_classes)).indices

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Half the mean loss over all triplets of ``embeddings``."""
        embeddings, labels = self.check_batch(embeddings, labels)
        unit = F.normalize(embeddings, dim=-1)
        distance = squared_distances(unit) if self.squared else distances(unit)
        merged_at = self.thresholds[self.class_levels[labels][:, labels].long()]
        margins = (self.beta + merged_at - self.spreads[labels][:, None]).to(distance.dtype)
        positive, negative = relations(labels)
        anchors, positives = positive.nonzero(as_tuple=True)
        violation = F.relu(distance[anchors, positives][:, None] + (margins - distance)[anchors])
        triplets = negative[anchors]
        return (violation * triplets).sum() / (2 * triplets.sum().clamp_min(1))
