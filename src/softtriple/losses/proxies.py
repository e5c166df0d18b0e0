"""Proxy losses: one learned vector per class represents its examples.

ProxyNCA (Movshovitz-Attias et al., ICCV 2017), with its bounded form (Remark 3 of the SoftTriple paper), and Proxy
Anchor (Kim et al., CVPR 2020). Proxies are stored as the centres of other losses.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.errors import UserError
from softtriple.losses.base import Labels, Vectors, require_nonnegative, require_positive
from softtriple.losses.centers import CenterLoss


def proxy_nca(
    similarity: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    scale: float,
    include_own: bool = False,
    bounded: bool = False,
) -> Float[Tensor, ""]:
    """Mean of −log(exp(−scale d(x, own proxy)) / Σ over the other proxies of exp(−scale d(x, proxy))).

    d is the squared distance of unit vectors, 2 − 2 cos; its constant cancels. ``include_own`` adds the own proxy to
    the sum; ``bounded`` takes the positive part of each example's loss.
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
    one = similarity.new_zeros(1, similarity.shape[1])  # the logarithm of the 1 in both sums
    pull = (scale * (margin - similarity)).masked_fill(~own, -torch.inf)
    push = (scale * (margin + similarity)).masked_fill(own, -torch.inf)
    pulls, pushes = torch.cat([one, pull]).logsumexp(dim=0), torch.cat([one, push]).logsumexp(dim=0)
    return pulls.sum() / own.any(dim=0).sum() + pushes.mean()


class ProxyLoss(CenterLoss):
    """A loss over the cosines of embeddings and proxies."""

    def compare(
        self, embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
    ) -> Float[Tensor, "batch classes"]:
        """Cosine of each embedding and each class's proxy."""
        return F.normalize(embeddings, dim=-1) @ F.normalize(centers[:, 0], dim=-1).mT


class ProxyNCALoss(ProxyLoss):
    """ProxyNCA: neighbourhood components analysis with one proxy per class; the own proxy is not among the rivals.

    Without the own proxy in the sum, the loss can be negative and has no useful lower bound.

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``.
        scale: factor of the squared distances. The paper has none, that is 1, which is too small for unit vectors; 9 is
            the value of a public reproduction for CUB and Cars.
        include_own: add the own proxy to the rivals, as most implementations do.
        bounded: use only the positive part of each example's loss (Remark 3).

    With ``include_own`` it is ``NormalizedSoftmaxLoss`` at twice the scale.
    """

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
        super().__init__(num_classes, embedding_size, validate=validate)
        if num_classes == 1 and not include_own:
            raise UserError("num_classes = 1 leaves no rival proxy; use at least 2 classes, or include_own=True")
        if bounded and include_own:
            raise UserError(
                "bounded=True has no effect with include_own=True, which is never negative; drop one of them"
            )
        self.scale, self.include_own, self.bounded = require_positive("scale", scale), include_own, bounded

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` with classes ``labels``."""
        embeddings, labels = self.check_batch(embeddings, labels)
        similarity = self._compare(embeddings, self.centers)
        return proxy_nca(similarity, labels, self.scale, self.include_own, self.bounded)


class ProxyAnchorLoss(ProxyLoss):
    """Proxy Anchor: proxies are the anchors, so the examples of a batch are weighted against each other.

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``.
        scale: inverse temperature of the smooth maxima.
        margin: how far above (own proxy) or below (others) zero the similarities should be.

    Works with any batch, best with large ones.
    """

    def __init__(
        self, num_classes: int, embedding_size: int, *, scale: float = 32.0, margin: float = 0.1, validate: bool = True
    ) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        self.scale, self.margin = require_positive("scale", scale), require_nonnegative("margin", margin)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Loss of the batch: mean over the proxies with examples, plus mean over all proxies."""
        embeddings, labels = self.check_batch(embeddings, labels)
        return proxy_anchor(self._compare(embeddings, self.centers), labels, self.scale, self.margin)
