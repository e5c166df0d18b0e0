"""Softmax losses: the plain one, and the normalised one (Eq. 3) that SoftTriple extends to several centres."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from softtriple.losses.base import Labels, Vectors, check_lengths
from softtriple.losses.centers import CenterLoss
from softtriple.losses.softtriple import SoftTripleLoss


class NormalizedSoftmaxLoss(SoftTripleLoss):
    """Normalised softmax (Eq. 3): one unit centre per class; a smoothed triplet loss by Proposition 1.

    It is ``SoftTripleLoss`` with one centre, no margin and no regulariser, and uses its fast path.
    """

    def __init__(self, num_classes: int, embedding_size: int, *, scale: float = 20.0, validate: bool = True) -> None:
        super().__init__(num_classes, embedding_size, 1, scale=scale, margin=0.0, tau=0.0, validate=validate)


class SoftmaxLoss(CenterLoss):
    """Plain softmax: cross-entropy over inner products of embeddings and class vectors, neither normalised."""

    def __init__(self, num_classes: int, embedding_size: int, *, validate: bool = True) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` with classes ``labels``."""
        embeddings, labels = self.check_batch(embeddings, labels)
        return F.cross_entropy(self._compare(embeddings, self.centers), labels)

    def compare(
        self, embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
    ) -> Float[Tensor, "batch classes"]:
        """Inner product of each embedding and each class vector."""
        if self.validate:
            check_lengths(embeddings, self.centers.dtype)
        return embeddings @ centers[:, 0].T
