"""Proxies: one learned vector a class takes the place of its examples.

ProxyNCA (Movshovitz-Attias et al., ICCV 2017), with its bounded form (Remark 3 of the SoftTriple paper), and Proxy
Anchor (Kim et al., CVPR 2020). A proxy is what other losses call a centre, and is stored as one.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple.losses.centers import new_centers, param_groups
from softtriple.losses.checks import checked_embeddings, checked_labels, not_negative, positive


def proxy_nca(
    similarity: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    scale: float,
    include_own: bool = False,
    bounded: bool = False,
) -> Float[Tensor, ""]:
    """Mean of −log(exp(−scale d(x, own proxy)) / Σ over the other proxies of exp(−scale d(x, proxy))).

    d is the squared distance of unit vectors, which is 2 − 2 cos: its constant cancels. ``include_own`` adds the own
    proxy to the sum; ``bounded`` takes the positive part for each example.
    """
    logits = 2 * scale * similarity
    own = labels[:, None]
    rivals = logits if include_own else logits.scatter(1, own, -torch.inf)
    losses = rivals.logsumexp(dim=1) - logits.gather(1, own)[:, 0]
    return (F.relu(losses) if bounded else losses).mean()


def proxy_anchor(
    similarity: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], scale: float, margin: float
) -> Float[Tensor, ""]:
    """Each proxy against all examples of the batch: a smooth maximum over its own and one over the others.

    log(1 + Σ exp(scale (margin − s))) over its own examples, averaged over the proxies that have any, plus
    log(1 + Σ exp(scale (margin + s))) over the others, averaged over all proxies.
    """
    own = F.one_hot(labels, similarity.shape[1]).bool()
    one = similarity.new_zeros(1, similarity.shape[1])  # log 1; a proxy without examples keeps this alone
    pull = (scale * (margin - similarity)).masked_fill(~own, -torch.inf)
    push = (scale * (margin + similarity)).masked_fill(own, -torch.inf)
    pulls, pushes = torch.cat([one, pull]).logsumexp(dim=0), torch.cat([one, push]).logsumexp(dim=0)
    return pulls.sum() / own.any(dim=0).sum() + pushes.mean()


def similarities(
    loss: "ProxyNCALoss | ProxyAnchorLoss", embeddings: Float[Tensor, "batch dim"]
) -> Float[Tensor, "batch classes"]:
    """Cosine of each embedding and the proxy of each class."""
    embeddings = checked_embeddings(embeddings, loss.centers, look_at_values=loss.validate)
    with torch.autocast(embeddings.device.type, enabled=False):
        proxies = F.normalize(loss.centers[:, 0].to(embeddings.dtype), dim=-1)
        return F.normalize(embeddings, dim=-1) @ proxies.mT


def predict(loss: "ProxyNCALoss | ProxyAnchorLoss", embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
    """Most similar class of each embedding."""
    return loss.similarities(embeddings).argmax(dim=1)


class ProxyNCALoss(nn.Module):
    """ProxyNCA: neighbourhood components analysis with one proxy a class, the own proxy not among the rivals.

    Without the own proxy in the sum the loss has no lower bound to speak of and may be negative.

    Args:
        num_classes: classes to tell apart; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        scale: factor of the squared distances. The paper prints none, which is 1 and too small for unit vectors; 9 is
            that of a public reproduction for CUB and Cars.
        include_own: put the own proxy among the rivals, as most implementations do.
        bounded: count only the positive part of each example's loss (Remark 3).
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    Any batches will do (``per_class`` is None). ``include_own`` makes it ``NormalizedSoftmaxLoss`` at twice the scale.
    """

    per_class: ClassVar[int | None] = None

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 9.0,
        include_own: bool = False,
        bounded: bool = False,
        validate: bool = True,
    ) -> None:
        super().__init__()
        if num_classes == 1 and not include_own:
            raise ValueError("num_classes = 1 leaves no rival proxy: at least 2 are needed, or include_own=True")
        if bounded and include_own:
            raise ValueError("bounded=True has no effect with include_own=True, whose loss is never negative: drop one")
        self.scale, self.validate = positive("scale", scale), validate
        self.include_own, self.bounded = include_own, bounded
        self.centers = new_centers(num_classes, 1, embedding_size)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` of classes ``labels``."""
        similarity = self.similarities(embeddings)
        labels = checked_labels(labels, len(embeddings), len(self.centers) if self.validate else None)
        return proxy_nca(similarity, labels, self.scale, self.include_own, self.bounded)

    similarities = similarities
    predict = predict
    param_groups = param_groups


class ProxyAnchorLoss(nn.Module):
    """Proxy Anchor: proxies are the anchors, so that examples of a batch are weighed against each other.

    Args:
        num_classes: classes to tell apart; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        scale: inverse temperature of the smooth maxima.
        margin: by how much similarities should be above, or below, zero.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    Any batches will do (``per_class`` is None), large ones best.
    """

    per_class: ClassVar[int | None] = None

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 32.0,
        margin: float = 0.1,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.scale, self.margin, self.validate = positive("scale", scale), not_negative("margin", margin), validate
        self.centers = new_centers(num_classes, 1, embedding_size)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Loss of the batch: mean over the proxies present, plus mean over all proxies."""
        similarity = self.similarities(embeddings)
        labels = checked_labels(labels, len(embeddings), len(self.centers) if self.validate else None)
        return proxy_anchor(similarity, labels, self.scale, self.margin)

    similarities = similarities
    predict = predict
    param_groups = param_groups
