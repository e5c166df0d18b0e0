"""HardTriple (Eq. 5 and 6): the similarity to a class is the similarity to its nearest centre."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from softtriple.errors import UserError, did_you_mean
from softtriple.losses.base import Labels, Vectors, require_nonnegative, require_positive
from softtriple.losses.centers import CenterLoss
from softtriple.losses.functional import margin_softmax

RIDGE = 1e-4


def nearest_similarity(
    embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
) -> Float[Tensor, "batch classes"]:
    """Similarity of each example to the nearest centre of each class (Eq. 5)."""
    return torch.einsum("bd,ckd->bck", embeddings, centers).amax(dim=-1)


def span_similarity(
    embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
) -> Float[Tensor, "batch classes"]:
    """Negative distance of each example to the span of each class's centres, the alternative mentioned below Eq. 5.

    −min over z of ‖W_c z − x‖, with a small ridge on z so that centres may coincide.
    """
    products = torch.einsum("bd,ckd->ckb", embeddings, centers)
    ridge = RIDGE * torch.eye(centers.shape[1], dtype=centers.dtype, device=centers.device)
    within = (products * torch.linalg.solve(centers @ centers.mT + ridge, products)).sum(dim=1)
    # With the ridge the squared length within the span stays below one, so the root never reaches zero.
    distance: Tensor = (1 - within).sqrt().T
    return -distance


SIMILARITIES = {"nearest": nearest_similarity, "span": span_similarity}


class HardTripleLoss(CenterLoss):
    """HardTriple (Eq. 6): cross-entropy over the similarity to the nearest centre of each class.

    ``similarity="span"`` uses the distance to the span of the centres instead. ``SoftTripleLoss`` smooths the choice of
    the nearest centre and has this loss as its limit gamma -> 0. With one centre and no margin it is
    ``NormalizedSoftmaxLoss``.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        *,
        scale: float = 20.0,
        margin: float = 0.01,
        similarity: str = "nearest",
        validate: bool = True,
    ) -> None:
        super().__init__(num_classes, embedding_size, centers_per_class, validate=validate)
        if similarity not in SIMILARITIES:
            raise UserError(f"similarity = {similarity!r} is unknown; {did_you_mean(similarity, SIMILARITIES)}")
        self.scale, self.margin = require_positive("scale", scale), require_nonnegative("margin", margin)
        self.similarity = similarity

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` with classes ``labels``."""
        embeddings, labels = self.check_batch(embeddings, labels)
        return margin_softmax(self._compare(embeddings, self.centers), labels, self.scale, self.margin)

    def compare(
        self, embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
    ) -> Float[Tensor, "batch classes"]:
        """Similarity of each embedding to each class, by ``self.similarity``."""
        return SIMILARITIES[self.similarity](F.normalize(embeddings, dim=-1), F.normalize(centers, dim=-1))
