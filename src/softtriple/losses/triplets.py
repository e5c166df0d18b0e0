"""Triplets of examples: the triplet loss (Eq. 1 and 2 of the SoftTriple paper), and semi-hard triplets.

Semi-hard triplets are those of FaceNet (Schroff et al., CVPR 2015), chosen by the rule of TensorFlow's reference
implementation: for an anchor and a positive, the nearest negative that is farther away than the positive, or the
farthest negative if none is.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from softtriple.losses.checks import at_least_one, checked_batch, not_negative
from softtriple.losses.pairwise import relations, squared_distances


def triplet_loss(
    anchor: Float[Tensor, "triplets dim"],
    positive: Float[Tensor, "triplets dim"],
    negative: Float[Tensor, "triplets dim"],
    margin: float,
) -> Float[Tensor, " triplets"]:
    """Loss of each triplet of unit vectors: by how much x_i·x_j − x_i·x_k ≥ margin is missed (Eq. 1 and 2)."""
    return F.relu(margin + (anchor * negative).sum(dim=-1) - (anchor * positive).sum(dim=-1))


def semi_hard_distances(
    distance: Float[Tensor, "batch batch"], negative: Bool[Tensor, "batch batch"]
) -> Float[Tensor, "batch batch"]:
    """For each anchor and other example the distance to the anchor's nearest negative beyond that example.

    If no negative is farther than the example, it is the distance to the farthest one; infinite if there is none.
    """
    ascending = distance.masked_fill(~negative, torch.inf).sort(dim=1).values
    beyond = torch.searchsorted(ascending.detach(), distance.detach(), right=True)
    farthest = negative.sum(dim=1, keepdim=True) - 1
    return ascending.gather(1, torch.minimum(beyond, farthest).clamp_min(0))


class SemiHardTripletLoss(nn.Module):
    """Triplet loss on squared distances, with one semi-hard negative for each ordered pair of a class.

    Args:
        num_classes: classes in the data; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        margin: by how much the squared distance to the negative must be larger; FaceNet has 0.2, the reference 1.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    Lengths of the embeddings do not matter. Wants batches of 4 examples a class (``per_class``). A batch without a
    positive pair, or with one class only, has the value 0.
    """

    per_class: ClassVar[int | None] = 4

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 1.0, validate: bool = True) -> None:
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self.embedding_size = at_least_one("embedding_size", embedding_size)
        self.margin, self.validate = not_negative("margin", margin), validate

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss over the ordered pairs of ``embeddings`` of one class."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, self.validate)
        distance = squared_distances(F.normalize(embeddings, dim=-1))
        positive, negative = relations(labels)
        losses = F.relu(self.margin + distance - semi_hard_distances(distance, negative))
        return (losses * positive).sum() / positive.sum().clamp_min(1)
