"""Lifted structure (Song et al., CVPR 2016): each positive pair against all negatives of its two examples."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from softtriple.losses.checks import at_least_one, checked_batch, not_negative, positive
from softtriple.losses.pairwise import brought_to, distances, relations


class LiftedStructureLoss(nn.Module):
    """Half the mean of max(0, J)² over positive pairs, J the smooth violation of one pair by all of its negatives.

    J_ij = log(Σ_k exp(margin − D_ik) + Σ_l exp(margin − D_jl)) + D_ij, with k and l over the negatives of i and j.

    Args:
        num_classes: classes in the data; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        margin: how far away negatives should be.
        length: length that embeddings are brought to; None leaves it to the encoder, as published. The distances of
            unit vectors end at 2, where exp(−D) hardly tells near negatives from far ones.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    Wants batches of 4 examples a class (``per_class``). A batch without a positive pair, or with one class only, has
    the value 0.
    """

    per_class: ClassVar[int | None] = 4

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 1.0,
        length: float | None = 10.0,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self.embedding_size = at_least_one("embedding_size", embedding_size)
        self.margin, self.validate = not_negative("margin", margin), validate
        self.length = length if length is None else positive("length", length)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss over the pairs of ``embeddings`` of one class."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, self.validate)
        distance = distances(brought_to(self.length, embeddings))
        positives, negatives = relations(labels)
        # The lowest number instead of minus infinity: without any negative the slopes stay numbers.
        lowest = torch.finfo(distance.dtype).min
        pushes = (self.margin - distance).masked_fill(~negatives, lowest).logsumexp(dim=1)
        violation = F.relu(torch.logaddexp(pushes[:, None], pushes) + distance) * positives
        return violation.square().sum() / (2 * positives.sum().clamp_min(1))
