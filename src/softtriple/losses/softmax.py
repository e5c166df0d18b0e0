"""Softmax losses: the plain one, and the normalised one (Eq. 3) that SoftTriple extends to several centres."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple.losses.centers import new_centers, param_groups
from softtriple.losses.checks import checked_embeddings, checked_labels, refuse_long
from softtriple.losses.softtriple import SoftTripleLoss


class NormalizedSoftmaxLoss(SoftTripleLoss):
    """Normalised softmax (Eq. 3): one unit centre a class; a smoothed triplet loss by Proposition 1.

    It is ``SoftTripleLoss`` with one centre, no margin and no regulariser, and uses its fast path.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, scale: float = 20.0, validate: bool = True) -> None:
        super().__init__(num_classes, embedding_size, 1, scale=scale, margin=0.0, tau=0.0, validate=validate)


class SoftmaxLoss(nn.Module):
    """Plain softmax: cross-entropy over products of embeddings and class vectors, neither of unit length."""

    def __init__(self, num_classes: int, embedding_size: int, *, validate: bool = True) -> None:
        super().__init__()
        self.validate = validate
        self.centers = new_centers(num_classes, 1, embedding_size)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` of classes ``labels``."""
        similarity = self.similarities(embeddings)
        labels = checked_labels(labels, len(embeddings), len(self.centers) if self.validate else None)
        return F.cross_entropy(similarity, labels)

    def similarities(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Product of each embedding with the vector of each class."""
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=self.validate)
        if self.validate:
            refuse_long(embeddings, self.centers.dtype)
        with torch.autocast(embeddings.device.type, enabled=False):
            return embeddings @ self.centers.to(embeddings.dtype)[:, 0].T

    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """Most similar class of each embedding."""
        return self.similarities(embeddings).argmax(dim=1)

    param_groups = param_groups
