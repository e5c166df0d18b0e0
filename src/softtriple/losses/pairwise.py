"""Every two embeddings of a batch: how far apart they are, and whether they are of one class."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softtriple.losses.tiled import coincident


def squared_distances(embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch batch"]:
    """Squared Euclidean distances; 0, without a gradient, where rounding alone could have made them."""
    with torch.autocast(embeddings.device.type, enabled=False):
        lengths = embeddings.square().sum(dim=-1)
        both_lengths = lengths[:, None] + lengths
        squared = both_lengths - 2 * (embeddings @ embeddings.mT)
    return torch.where(squared > coincident(squared.dtype) * both_lengths / 2, squared, 0)


def distances(embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch batch"]:
    """Euclidean distances; two embeddings that coincide neither pull nor push, so that no slope is infinite."""
    squared = squared_distances(embeddings)
    apart = squared > 0
    return torch.where(apart, squared, 1).sqrt() * apart


def relations(labels: Int[Tensor, " batch"]) -> tuple[Bool[Tensor, "batch batch"], Bool[Tensor, "batch batch"]]:
    """Which two embeddings are of one class, leaving out an embedding and itself, and which are of two.

    Example:
        >>> positive, negative = relations(torch.tensor([7, 7, 3]))
        >>> positive.int().tolist(), negative.int().tolist()
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 0, 1], [1, 1, 0]])
    """
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same & ~itself, ~same


def brought_to(length: float | None, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """Embeddings of the given length each, or as they are if ``length`` is None."""
    return embeddings if length is None else length * F.normalize(embeddings, dim=-1)
