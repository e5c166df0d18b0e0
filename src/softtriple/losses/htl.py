"""HTL, hierarchical triplet loss (Ge et al., ECCV 2018): the margin grows with the distance of the classes.

Before each epoch a tree over the classes is built from the embeddings of the training set. Its leaves are the classes,
and two of them are one node from that level on whose threshold their distance is below. There is no public code; this
follows the formulas of the paper, and ``docs/methods.md`` says where they leave a choice.

===========  ====================  ============================================================
paper        code                  meaning
===========  ====================  ============================================================
d(p, q)      ``2 − 2 m_p · m_q``   mean squared distance of examples of classes p and q
s_c          ``spreads[c]``        mean squared distance of two examples of class c
d_l          ``thresholds[l]``     squared distance below which nodes merge at level l
H(p, q)      ``class_levels``      level at which classes p and q are one node
β            ``beta``              constant part of the margin
m            ``neighborhood``      classes that go into a batch together: one and its nearest
t            ``per_class``         examples of each class in a batch
===========  ====================  ============================================================
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int, Integer, UInt8
from torch import Tensor, nn

from softtriple.losses.checks import at_least_one, checked_batch, not_negative
from softtriple.losses.pairwise import distances, relations, squared_distances


class ClassStatistics(NamedTuple):
    """Means of unit embeddings by class, and the mean squared distance of two examples of each class."""

    means: Float64[Tensor, "classes dim"]
    spreads: Float64[Tensor, " classes"]


def class_statistics(
    embeddings: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], num_classes: int
) -> ClassStatistics:
    """Statistics of the classes 0 to ``num_classes - 1``, each of which must have examples.

    A class of one example has no two to compare: its spread is the mean of the others' (0 if there are none).
    """
    unit = F.normalize(embeddings.double(), dim=-1)
    counts = labels.bincount(minlength=num_classes)
    if not counts.all():
        missing = int((counts == 0).nonzero()[0])
        raise ValueError(f"class {missing} has no embeddings: the tree needs those of the whole training set")
    sums = unit.new_zeros(num_classes, unit.shape[1]).index_add_(0, labels, unit)
    squares = counts.double().square()
    spreads = 2 * (squares - sums.square().sum(dim=1)) / (squares - counts).clamp_min(1)
    compared = counts > 1
    mean = spreads[compared].mean() if compared.any() else spreads.new_zeros(())
    return ClassStatistics(sums / counts[:, None], torch.where(compared, spreads, mean))


def level_thresholds(spreads: Float64[Tensor, " classes"], levels: int) -> Float64[Tensor, " thresholds"]:
    """Squared distances d_0 to d_L at which the levels begin: evenly from the mean spread to 4, the largest."""
    lowest = spreads.mean()
    return lowest + torch.arange(levels + 1, device=spreads.device) * (4 - lowest) / levels


def merge_levels(
    means: Float64[Tensor, "classes dim"], thresholds: Float64[Tensor, " thresholds"]
) -> UInt8[Tensor, "classes classes"]:
    """Level H at which each two classes become one node of the tree; 0 for a class and itself.

    At level l those classes are one node that a chain of classes connects, each nearer than d_l to the next. That is
    the largest step on the path between them in a minimum spanning tree, which grows here class by class (Prim).
    """
    single = means.float()  # the one large matrix here: half the memory
    distance, bounds = (2 - 2 * single @ single.mT).cpu().numpy(), thresholds[1:].cpu().numpy()
    levels = np.zeros(distance.shape, dtype=np.uint8)
    inside = np.zeros(len(distance), dtype=bool)
    step, link, newest = np.full(len(distance), np.inf), np.zeros(len(distance), dtype=np.intp), 0
    for _ in range(len(distance) - 1):
        inside[newest] = True
        nearer = distance[newest] < step
        step[nearer], link[nearer] = distance[newest, nearer], newest
        newest = int(np.where(inside, np.inf, step).argmin())
        # Nothing is farther apart than the last threshold but by rounding.
        level = min(int(np.searchsorted(bounds, step[newest], side="right")) + 1, len(bounds))
        levels[newest, inside] = levels[inside, newest] = np.maximum(levels[link[newest], inside], level)
    return torch.from_numpy(levels).to(means.device)


class HTLLoss(nn.Module):
    """Triplet loss over all triplets of a batch, with a margin by the classes of anchor and negative.

    margin = beta + d_H(anchor, negative) − s_anchor; the loss is half the mean of
    max(0, D(anchor, positive) − D(anchor, negative) + margin).

    Args:
        num_classes: classes in the data; labels are 0 to ``num_classes - 1``. The tree takes num_classes² bytes,
            and five times that while it is built.
        embedding_size: width of the embeddings.
        beta: constant part of the margin.
        levels: of the tree above its leaves, at most 255.
        neighborhood: classes that ``choose_classes`` puts together: one and its nearest.
        per_class: examples of each class that its batches want.
        squared: D is the squared distance, in the units of the margin; the paper prints the distance itself.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    ``start_epoch`` builds the tree; before its first call there is none, and the margin is ``beta``. Lengths of the
    embeddings do not matter. A batch without a positive pair, or with one class only, has the value 0.
    """

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
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self.embedding_size = at_least_one("embedding_size", embedding_size)
        self.beta, self.levels = not_negative("beta", beta), at_least_one("levels", levels)
        if levels > 255:
            raise ValueError(f"levels = {levels} must be at most 255")
        self.neighborhood = at_least_one("neighborhood", neighborhood)
        self.per_class: int | None = at_least_one("per_class", per_class)
        self.squared, self.validate = squared, validate
        # Not in the state: every epoch, a resumed one too, starts with a new tree.
        no_tree = torch.zeros(num_classes, num_classes, dtype=torch.uint8)
        self.register_buffer("class_levels", no_tree, persistent=False)
        self.register_buffer("thresholds", torch.zeros(levels + 1), persistent=False)
        self.register_buffer("spreads", torch.zeros(num_classes), persistent=False)
        self.register_buffer("means", torch.empty(0, embedding_size), persistent=False)

    @torch.no_grad()
    def start_epoch(self, embeddings: Float[Tensor, "items dim"], labels: Integer[Tensor, " items"]) -> None:
        """Build the tree, and with it the margins and neighbourhoods, from the embeddings of the training set."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, True)
        statistics = class_statistics(embeddings, labels, self.num_classes)
        thresholds = level_thresholds(statistics.spreads, self.levels)
        self.class_levels = merge_levels(statistics.means, thresholds).to(self.class_levels.device)
        self.thresholds, self.spreads = thresholds.to(self.thresholds), statistics.spreads.to(self.spreads)
        self.means = statistics.means.to(self.means)

    def choose_classes(self, anchors: Integer[Tensor, " anchors"]) -> Int[Tensor, "anchors neighborhood"]:
        """For each anchor class a row of classes for a batch: itself, then its nearest, ``neighborhood`` in all."""
        if not len(self.means):
            raise ValueError("which classes are near is not known before start_epoch(embeddings, labels)")
        anchors = anchors.long()
        similarity = self.means[anchors] @ self.means.mT
        similarity.scatter_(1, anchors[:, None], torch.inf)
        return similarity.topk(min(self.neighborhood, self.num_classes)).indices

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Half the mean loss over all triplets of ``embeddings``."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, self.validate)
        unit = F.normalize(embeddings, dim=-1)
        distance = squared_distances(unit) if self.squared else distances(unit)
        merged_at = self.thresholds[self.class_levels[labels][:, labels].long()]
        margins = (self.beta + merged_at - self.spreads[labels][:, None]).to(distance.dtype)
        positive, negative = relations(labels)
        anchors, positives = positive.nonzero(as_tuple=True)
        violation = F.relu(distance[anchors, positives][:, None] + (margins - distance)[anchors])
        triplets = negative[anchors]
        return (violation * triplets).sum() / (2 * triplets.sum().clamp_min(1))
