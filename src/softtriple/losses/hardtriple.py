"""HardTriple loss (Eq. 5 and 6): a class is as similar as its nearest centre, without smoothing over centres."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple.losses.centers import new_centers, param_groups
from softtriple.losses.checks import checked_embeddings, checked_labels, not_negative, positive
from softtriple.losses.softtriple import margin_softmax

RIDGE = 1e-4


def nearest_similarity(
    embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
) -> Float[Tensor, "batch classes"]:
    """Similarity of each example to each class: that of the nearest centre (Eq. 5)."""
    return torch.einsum("bd,ckd->bck", embeddings, centers).amax(dim=-1)


def span_similarity(
    embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
) -> Float[Tensor, "batch classes"]:
    """Minus the distance of each example to the span of the centres of each class, the alternative below Eq. 5.

    −min over z of ‖W_c z − x‖, with a small ridge on z so that centres may coincide.
    """
    products = torch.einsum("bd,ckd->ckb", embeddings, centers)
    ridge = RIDGE * torch.eye(centers.shape[1], dtype=centers.dtype, device=centers.device)
    within = (products * torch.linalg.solve(centers @ centers.mT + ridge, products)).sum(dim=1)
    # With the ridge the part within the span is below one, so the root never meets zero.
    distance: Tensor = (1 - within).sqrt().T
    return -distance


SIMILARITIES = {"nearest": nearest_similarity, "span": span_similarity}


class HardTripleLoss(nn.Module):
    """HardTriple (Eq. 6): cross-entropy over the similarity to the nearest centre of each class.

    ``similarity="span"`` takes the distance to the span of the centres instead. ``SoftTripleLoss`` smooths the choice
    of the nearest centre; gamma -> 0 gives this loss again. One centre, no margin: ``NormalizedSoftmaxLoss``.
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
        super().__init__()
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity = {similarity!r} is unknown; choose from {', '.join(SIMILARITIES)}")
        self.scale, self.margin = positive("scale", scale), not_negative("margin", margin)
        self.similarity, self.validate = similarity, validate
        self.centers = new_centers(num_classes, centers_per_class, embedding_size)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` of classes ``labels``."""
        similarity = self.similarities(embeddings)
        labels = checked_labels(labels, len(embeddings), len(self.centers) if self.validate else None)
        return margin_softmax(similarity, labels, self.scale, self.margin)

    def similarities(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Similarity of each embedding to each class: no margin, no scale."""
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=self.validate)
        with torch.autocast(embeddings.device.type, enabled=False):
            centers = F.normalize(self.centers.to(embeddings.dtype), dim=-1)
            return SIMILARITIES[self.similarity](F.normalize(embeddings, dim=-1), centers)

    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """Most similar class of each embedding."""
        return self.similarities(embeddings).argmax(dim=1)

    param_groups = param_groups
