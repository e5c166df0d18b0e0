"""SoftTriple loss (Qian et al., ICCV 2019, https://arxiv.org/abs/1909.05235): the paper, top to bottom.

===========  =======================  ==================================================
paper        code                     meaning
===========  =======================  ==================================================
x_i          ``embeddings[i]``        embedding of example i, of unit length
y_i          ``labels[i]``            its class
w_c^k        ``centers[c, k]``        k-th centre of class c, of unit length
λ            ``scale``                inverse temperature over classes
γ            ``gamma``                temperature over the centres of one class
δ            ``margin``               by how much the own class must win
τ            ``tau``                  weight of the regulariser that merges centres
S'_{i,c}     ``soft_similarity``      similarity of example and class, relaxed
===========  =======================  ==================================================

First the mathematics, three functions and the objective they make, then the module that owns the centres. The module
computes the same objective in tiles of classes (``tiled.py``): a test holds the two equal in value and gradient.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple.losses.centers import (
    AT_ONCE,
    MERGED,
    MergedCenters,
    centers_from_data,
    count_distinct,
    merge,
    new_centers,
    param_groups,
)
from softtriple.losses.checks import checked_embeddings, checked_labels, not_negative, positive
from softtriple.losses.tiled import RecycledMemory, Settings, coincident, tiled_objective


def soft_similarity(
    embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"], gamma: float
) -> Float[Tensor, "batch classes"]:
    """Relaxed similarity of each example to each class, S' of the paper (from Eq. 7).

    A softmax-weighted mean over the centres of a class; gamma -> 0 gives the nearest one.
    """
    similarity = torch.einsum("bd,ckd->bck", embeddings, centers)
    weights = F.softmax(similarity / gamma, dim=-1)
    return (weights * similarity).sum(dim=-1)


def margin_softmax(
    similarity: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], scale: float, margin: float
) -> Float[Tensor, ""]:
    """Mean cross-entropy when the own class counts ``margin`` less similar than it is (Eq. 6, Eq. 8)."""
    own = F.one_hot(labels, similarity.shape[1]).to(similarity.dtype)
    return F.cross_entropy(scale * (similarity - margin * own), labels)


def center_spread(centers: Float[Tensor, "classes k dim"], smoothing: float = 0.0) -> Float[Tensor, ""]:
    """Distances between the centres of one class (Eq. 9), summed and divided as in Eq. 10: Σ_c R_c / (C K (K − 1)).

    Two centres that rounding cannot tell apart have distance zero and pull no more, so that merging is a stable end.
    ``smoothing`` is added under the root; the authors' code has 1e-5 there, the paper nothing.
    """
    num_classes, k, _ = centers.shape
    if k == 1:
        return centers.new_zeros(())
    squared = 2 + smoothing - 2 * (centers @ centers.mT)
    itself = torch.eye(k, dtype=torch.bool, device=centers.device)
    apart = (squared > coincident(squared.dtype)) & ~itself
    distances = torch.where(apart, squared, 1).sqrt() * apart
    return distances.sum() / 2 / (num_classes * k * (k - 1))


def softtriple_objective(
    embeddings: Float[Tensor, "batch dim"],
    labels: Int[Tensor, " batch"],
    centers: Float[Tensor, "classes k dim"],
    settings: Settings,
) -> Float[Tensor, ""]:
    """What SoftTriple minimises over a batch (Eq. 10); lengths of embeddings and centres do not matter."""
    embeddings, centers = F.normalize(embeddings, dim=-1), F.normalize(centers, dim=-1)
    similarity = soft_similarity(embeddings, centers, settings.gamma)
    loss = margin_softmax(similarity, labels, settings.scale, settings.margin)
    return loss + settings.tau * center_spread(centers, settings.smoothing)


class SoftTripleLoss(nn.Module):
    """SoftTriple: a class has several centres, and nothing is sampled (Eq. 8 and 10).

    Args:
        num_classes: classes to tell apart; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        centers_per_class: K, enough for the modes of a class and below its number of examples; tau merges the rest.
        scale: λ, inverse temperature over classes.
        gamma: γ, temperature over the centres of a class.
        margin: δ, by how much the own class must win.
        tau: τ, weight of the regulariser.
        smoothing: added under the root of the regulariser; 1e-5 is what the authors' code has.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    ``HardTripleLoss`` is the limit gamma -> 0; ``NormalizedSoftmaxLoss`` is K = 1 with no margin. The transforms of
    ``torch.func`` do not see through its hand-written gradient: give them ``softtriple_objective``, the same function.

    Example:
        >>> loss = SoftTripleLoss(num_classes=3, embedding_size=8, centers_per_class=2)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 1, 2, 0])).backward()
        >>> loss.centers.grad.shape
        torch.Size([3, 2, 8])
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        centers_per_class: int = 10,
        *,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        smoothing: float = 0.0,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.scale, self.gamma = positive("scale", scale), positive("gamma", gamma)
        self.margin, self.tau = not_negative("margin", margin), not_negative("tau", tau)
        self.smoothing, self.validate = not_negative("smoothing", smoothing), validate
        self.centers = new_centers(num_classes, centers_per_class, embedding_size)
        self._memory = RecycledMemory()

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"],
        indices_tuple: tuple[Tensor, ...] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean loss of ``embeddings`` of classes ``labels``, plus tau times the spread of the centres.

        The trainers of pytorch-metric-learning give every loss an ``indices_tuple``: None, or what a miner has chosen,
        which is refused, because nothing is sampled here.
        """
        if indices_tuple is not None:
            raise ValueError("indices_tuple: SoftTriple compares examples with centres, not with each other; no miner")
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=self.validate)
        labels = checked_labels(labels, len(embeddings), len(self.centers) if self.validate else None)
        settings = Settings(self.scale, self.gamma, self.margin, self.tau, self.smoothing)
        with torch.autocast(embeddings.device.type, enabled=False):  # centres and their sums stay in float32
            centers = self.centers.to(embeddings.dtype)
            if torch.compiler.is_compiling():
                return softtriple_objective(embeddings, labels, centers, settings)
            return tiled_objective(embeddings, labels, centers, settings, softtriple_objective, self._memory)

    def similarities(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Relaxed similarity S' of each embedding to each class: no margin, no scale."""
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=self.validate)
        return self._similarities(embeddings, self.centers)

    @torch.no_grad()
    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """Most similar class of each embedding, the first of those equally similar; in memory for a run of classes."""
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=self.validate)
        num_classes, k, _ = self.centers.shape
        size = max(1, AT_ONCE // max(1, k * len(embeddings)))
        best = embeddings.new_full((len(embeddings),), -torch.inf)
        found = torch.zeros_like(best, dtype=torch.int64)
        for start in range(0, num_classes, size):
            similarity, row = self._similarities(embeddings, self.centers[start : start + size]).max(dim=1)
            found = torch.where(similarity > best, start + row, found)
            best = torch.maximum(similarity, best)
        return found

    def _similarities(
        self, embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"]
    ) -> Float[Tensor, "batch classes"]:
        with torch.autocast(embeddings.device.type, enabled=False):
            centers = F.normalize(centers.to(embeddings.dtype), dim=-1)
            return soft_similarity(F.normalize(embeddings, dim=-1), centers, self.gamma)

    @torch.no_grad()
    def distinct_centers(self, tolerance: float = MERGED) -> Int[Tensor, " classes"]:
        """How many centres each class has left when those within ``tolerance`` of each other count as one."""
        return count_distinct(self.centers, tolerance)

    @torch.no_grad()
    def merge_centers(self, tolerance: float = MERGED) -> MergedCenters:
        """The distinct centres alone: a compact set that gives the same similarities, within ``tolerance``."""
        return merge(self.centers, self.gamma, tolerance)

    @torch.no_grad()
    def add_classes(
        self, embeddings: Float[Tensor, "items dim"], labels: Integer[Tensor, " items"]
    ) -> "SoftTripleLoss":
        """A loss with more classes: the old ones as they are, the new ones with centres found in their ``embeddings``.

        ``labels`` go on where the old ones end: num_classes, num_classes + 1, and so on. The loss itself stays as it
        is, because an optimiser may hold its centres.
        """
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=True)
        num_classes, k, _ = self.centers.shape
        new = checked_labels(labels, len(embeddings)) - num_classes
        found = sorted(set(new.tolist()))
        if found != list(range(len(found))):
            raise ValueError(
                f"labels of new classes must be {num_classes}, {num_classes + 1}, ... without a gap, "
                f"not {', '.join(str(label + num_classes) for label in found[:10])}"
            )
        # As long as the old centres, so that a later optimiser step turns old and new by the same angle.
        length = torch.linalg.vector_norm(self.centers, dim=-1).mean()
        added = length * centers_from_data(embeddings, new, len(found), k)
        grown = copy.deepcopy(self)
        grown.centers = nn.Parameter(torch.cat([self.centers, added.to(self.centers)]), self.centers.requires_grad)
        return grown

    param_groups = param_groups

    def extra_repr(self) -> str:
        """Shape and settings, as ``print(loss)`` shows them."""
        num_classes, k, dim = self.centers.shape
        options = ", ".join(f"{name}={value}" for name, value in self._options().items())
        return f"num_classes={num_classes}, embedding_size={dim}, centers_per_class={k}, {options}"

    def _options(self) -> dict[str, Any]:
        names = ("scale", "gamma", "margin", "tau", "smoothing", "validate")
        return {name: getattr(self, name) for name in names}
