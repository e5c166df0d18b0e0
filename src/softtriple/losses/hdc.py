"""HDC, hard-aware deeply cascaded embedding (Yuan et al., ICCV 2017): deeper heads learn from harder pairs.

An encoder with three heads at growing depth gives their unit vectors side by side as one embedding. Each head has a
contrastive loss over the hardest share of the pairs of the batch.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from softtriple.losses.checks import at_least_one, checked_batch, not_negative, positive
from softtriple.losses.pairwise import squared_distances

HEADS = 3  # of the encoders that are tapped for it


def contrastive(
    squared: Float[Tensor, " pairs"], same: Bool[Tensor, " pairs"], margin: float, negative_factor: float
) -> Float[Tensor, " pairs"]:
    """Contrastive loss of each pair from its squared distance: that itself, or what is missing to ``margin``."""
    return torch.where(same, squared, negative_factor * F.relu(margin - squared))


def hardest(hardness: Float[Tensor, " all"], pairs: Int[Tensor, " some"], share: float) -> Int[Tensor, " kept"]:
    """The ``share`` of ``pairs`` that are the hardest, rounded up."""
    return pairs[hardness[pairs].topk(math.ceil(share * len(pairs))).indices]


class HDCLoss(nn.Module):
    """Sum over the heads of a contrastive loss on all pairs of a batch, each head on its hardest share of them.

    Positive and negative pairs are ranked separately, positive ones by their distance and negative ones by their
    nearness, so that those without a loss have an order too. A head's loss is the sum over the pairs it keeps, divided
    by how many of them have a loss.

    Args:
        num_classes: classes in the data; labels are 0 to ``num_classes - 1``.
        embedding_size: width of all heads together; each has a third of it.
        shares: what each head keeps of the pairs it ranks, from the first head to the last.
        cascade: a head ranks only the pairs that the head before it has kept, as published; the authors' code lets
            every head rank all pairs.
        margin: squared distance from which a negative pair has no loss.
        negative_factor: weight of negative pairs.
        per_class: examples of each class that its batches want.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    Each head's part is brought to unit length. A batch of one example has the value 0; one class only has positive
    pairs alone, different classes only negative ones.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        shares: Sequence[float] = (1.0, 0.5, 0.2),
        cascade: bool = True,
        margin: float = 1.0,
        negative_factor: float = 10.0,
        per_class: int = 10,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self.embedding_size = at_least_one("embedding_size", embedding_size)
        if len(shares) != HEADS or not all(0 < share <= 1 for share in shares):
            raise ValueError(f"shares = {shares!r} must be {HEADS} numbers above 0 and at most 1, one for each head")
        if embedding_size % HEADS:
            raise ValueError(
                f"embedding_size = {embedding_size} does not divide into {HEADS} equal heads: "
                f"choose a multiple of {HEADS}"
            )
        self.per_class: int | None = at_least_one("per_class", per_class)
        self.shares, self.cascade, self.validate = shares, cascade, validate
        self.margin, self.negative_factor = positive("margin", margin), not_negative("negative_factor", negative_factor)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Sum of the mean losses of the heads, whose vectors ``embeddings`` hold side by side."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, self.validate)
        first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
        same = labels[first] == labels[second]
        kinds = [same.nonzero().flatten(), (~same).nonzero().flatten()]
        total = embeddings.new_zeros(())
        for head, share in zip(embeddings.chunk(HEADS, dim=1), self.shares, strict=True):
            squared = squared_distances(F.normalize(head, dim=-1))[first, second]
            losses = contrastive(squared, same, self.margin, self.negative_factor)
            hardness = torch.where(same, squared, -squared).detach()
            hard = [hardest(hardness, pairs, share) for pairs in kinds]
            kept = losses[torch.cat(hard)]
            total = total + kept.sum() / (kept > 0).sum().clamp_min(1)
            if self.cascade:
                kinds = hard
        return total
