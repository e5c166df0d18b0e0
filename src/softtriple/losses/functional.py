"""SoftTriple (Qian et al., ICCV 2019, https://arxiv.org/abs/1909.05235) as pure functions.

===========  =======================  ===================================================
paper        code                     meaning
===========  =======================  ===================================================
x_i          ``embeddings[i]``        unit embedding of example i
y_i          ``labels[i]``            its class
w_c^k        ``centers[c, k]``        k-th unit centre of class c
λ            ``scale``                inverse temperature over classes
γ            ``gamma``                temperature over the centres of one class
δ            ``margin``               margin by which an example's own class must win
τ            ``tau``                  weight of the regulariser that merges centres (below 0: pushes them apart)
S'_{i,c}     ``soft_similarity``      relaxed similarity of example i to class c
===========  =======================  ===================================================

=================  ===================================================================
equation           code
=================  ===================================================================
1, 2               ``pairs.triplet_loss``
3                  ``softmax.NormalizedSoftmaxLoss``
4, Remark 3        ``margin_softmax`` with margin 0; ``proxies.proxy_nca``
5, 6               ``hardtriple.nearest_similarity``; ``margin_softmax`` of it
7, S'              ``soft_similarity``
8                  ``margin_softmax`` of ``soft_similarity``
9, 10              ``center_spread``; ``softtriple_objective``
=================  ===================================================================

This module imports nothing from the package. ``tiled.py`` computes the same objective faster.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


class Settings(NamedTuple):
    """Hyperparameters of the objective; ``smoothing`` is added under the square root of the regulariser."""

    scale: float
    gamma: float
    margin: float
    tau: float
    smoothing: float = 0.0


def soft_similarity(
    embeddings: Float[Tensor, "batch dim"], centers: Float[Tensor, "classes k dim"], gamma: float
) -> Float[Tensor, "batch classes"]:
    """Relaxed similarity of each example to each class, S' of the paper (from Eq. 7).

    A softmax-weighted mean over the centres of a class; gamma -> 0 gives the maximum.
    """
    similarity = torch.einsum("bd,ckd->bck", embeddings, centers)
    weights = F.softmax(similarity / gamma, dim=-1)
    return (weights * similarity).sum(dim=-1)


def margin_softmax(
    similarity: Float[Tensor, "batch classes"], labels: Int[Tensor, " batch"], scale: float, margin: float
) -> Float[Tensor, ""]:
    """Mean cross-entropy of scaled similarities, after subtracting ``margin`` from the true class (Eq. 6, Eq. 8)."""
    own = F.one_hot(labels, similarity.shape[1]).to(similarity.dtype)
    return F.cross_entropy(scale * (similarity - margin * own), labels)


def center_spread(centers: Float[Tensor, "classes k dim"], smoothing: float = 0.0) -> Float[Tensor, ""]:
    """Sum of distances between the centres of each class (Eq. 9), divided by C K (K − 1) as in Eq. 10.

    Two centres that rounding cannot tell apart have distance zero and no gradient, so merging is a stable end point.
    The authors' code uses ``smoothing=1e-5``; the paper has no such term.
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
    """The SoftTriple objective of a batch (Eq. 10); embeddings and centres are normalised first."""
    embeddings, centers = F.normalize(embeddings, dim=-1), F.normalize(centers, dim=-1)
    similarity = soft_similarity(embeddings, centers, settings.gamma)
    loss = margin_softmax(similarity, labels, settings.scale, settings.margin)
    return loss + settings.tau * center_spread(centers, settings.smoothing)


def mix_classes(
    embeddings: Float[Tensor, "batch dim"],
    labels: Int[Tensor, " batch"],
    centers: Float[Tensor, "classes k dim"],
    pairs: Int[Tensor, "2 mixed"],
    shares: Float[Tensor, " mixed"],
) -> tuple[Float[Tensor, "mixed dim"], Float[Tensor, "mixed k dim"]]:
    """Synthetic examples, each of a synthetic class of its own (Proxy Synthesis, Gu et al., AAAI 2021).

    ``pairs`` are rows of the batch. The unit embeddings of a pair, and the unit centres of its two classes one by one,
    are mixed in the proportion ``shares`` to ``1 - shares``: the point between two classes becomes a class of its own.
    """
    unit, unit_centers = F.normalize(embeddings, dim=-1), F.normalize(centers, dim=-1)
    one, other = pairs
    mixed = torch.lerp(unit[other], unit[one], shares[:, None])
    return mixed, torch.lerp(unit_centers[labels[other]], unit_centers[labels[one]], shares[:, None, None])


def coincident(dtype: torch.dtype) -> float:
    """Squared distance of two unit vectors that rounding error alone can produce."""
    return 4 * torch.finfo(dtype).eps
