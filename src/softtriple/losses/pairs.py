"""N-pairs (Sohn, NIPS 2016), and the margin loss with negatives drawn by distance (Wu et al., ICCV 2017)."""

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from softtriple.losses.centers import param_groups
from softtriple.losses.checks import at_least_one, checked_batch, not_negative, positive, refuse_long
from softtriple.losses.pairwise import brought_to, distances, relations


def pair_up(labels: Int[Tensor, " batch"]) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Rows of anchors and of their positives: of each class the first and second example, third and fourth, and so on.

    Example:
        >>> anchors, positives = pair_up(torch.tensor([5, 2, 5, 2, 5]))
        >>> anchors.tolist(), positives.tolist()
        ([1, 0], [3, 2])
    """
    order = labels.argsort(stable=True)
    ordered = labels[order]
    place = torch.arange(len(labels), device=labels.device) - torch.searchsorted(ordered, ordered)
    leads = (place[:-1] % 2 == 0) & (ordered[:-1] == ordered[1:])
    return order[:-1][leads], order[1:][leads]


class NPairsLoss(nn.Module):
    """N-pairs: each anchor must find its positive among the positives of all pairs, by softmax over products.

    Where several pairs are of one class, its positives share the probability. ``l2`` keeps embeddings short.

    Args:
        num_classes: classes in the data; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        length: length that embeddings are brought to; None leaves it to the encoder, as published. Products of unit
            vectors lie between −1 and 1, too close for a softmax; √20 ≈ 4.5 makes its scale 20.
        l2: weight of a quarter of the mean squared lengths of anchors and of positives, before any ``length``.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    Wants batches of 2 examples a class (``per_class``): the first in the batch is the anchor, the second the
    positive. A batch without two examples of any class has the value 0. ``NormalizedSoftmaxLoss`` has learned centres
    in place of the positives.
    """

    per_class: ClassVar[int | None] = 2

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        length: float | None = 4.5,
        l2: float = 0.002,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self.embedding_size = at_least_one("embedding_size", embedding_size)
        self.length = length if length is None else positive("length", length)
        self.l2, self.validate = not_negative("l2", l2), validate

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss over the pairs of ``embeddings`` of one class."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, self.validate)
        if self.validate and (self.length is None or self.l2):  # else nothing depends on how long they are
            refuse_long(embeddings, embeddings.dtype)
        anchors, positives = pair_up(labels)
        num_pairs = max(len(anchors), 1)
        vectors = brought_to(self.length, embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            products = vectors[anchors] @ vectors[positives].mT
        same = (labels[anchors][:, None] == labels[positives]).to(products.dtype)
        targets = same / same.sum(dim=1, keepdim=True)
        cross_entropy = -(targets * products.log_softmax(dim=1)).sum() / num_pairs
        squared_lengths = embeddings[torch.cat([anchors, positives])].square().sum() / num_pairs
        return cross_entropy + self.l2 / 4 * squared_lengths


class Triplets(NamedTuple):
    """Rows of a batch, three for each triplet."""

    anchors: Int[Tensor, " triplets"]
    positives: Int[Tensor, " triplets"]
    negatives: Int[Tensor, " triplets"]


def negative_weights(
    distance: Float[Tensor, "batch batch"],
    negative: Bool[Tensor, "batch batch"],
    embedding_size: int,
    nearest: float,
    farthest: float,
) -> Float[Tensor, "batch batch"]:
    """How likely each anchor draws each negative: inversely to the density of its distance on the unit sphere.

    So distances are drawn evenly. Below ``nearest`` all count as equally near, from ``farthest`` on none is drawn,
    unless there is no other: then all are equally likely.
    """
    clipped = distance.clamp_min(nearest)
    log_density = (embedding_size - 2) * clipped.log() + (embedding_size - 3) / 2 * (1 - clipped.square() / 4).log()
    allowed = negative & (distance < farthest)
    log_weights = (-log_density).masked_fill(~allowed, -torch.inf)
    weights = (log_weights - log_weights.amax(dim=1, keepdim=True)).exp()
    return torch.where(allowed.any(dim=1, keepdim=True), weights, negative.to(weights.dtype))


def draw_triplets(same: Bool[Tensor, "batch batch"], weights: Float[Tensor, "batch batch"]) -> Triplets:
    """Every ordered pair of the ``same`` class with a negative drawn by ``weights``, from torch's random numbers."""
    anchors, positives = same.nonzero(as_tuple=True)
    if not len(anchors) or not weights.any():
        nothing = anchors[:0]
        return Triplets(nothing, nothing, nothing)
    place = same.cumsum(dim=1)[anchors, positives] - 1
    drawn = torch.multinomial(weights, int(place.max()) + 1, replacement=True)
    return Triplets(anchors, positives, drawn[anchors, place])


def margin_loss(
    distance: Float[Tensor, "batch batch"],
    triplets: Triplets,
    boundaries: Float[Tensor, " triplets"],
    margin: float,
    nu: float,
) -> Float[Tensor, ""]:
    """Positives ``margin`` inside, negatives ``margin`` outside the boundary: misses, summed, over their number.

    ``nu`` is the weight of the boundaries themselves.
    """
    inside = F.relu(distance[triplets.anchors, triplets.positives] - boundaries + margin)
    outside = F.relu(boundaries - distance[triplets.anchors, triplets.negatives] + margin)
    misses = (inside > 0).sum() + (outside > 0).sum()
    return ((inside + outside).sum() + nu * boundaries.sum()) / misses.clamp_min(1)


class MarginLoss(nn.Module):
    """Margin loss: a learned boundary between near and far for each class, and negatives drawn by distance.

    Args:
        num_classes: classes in the data; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        margin: how far inside and outside the boundary examples should be.
        beta: where all boundaries (``betas``) start.
        nu: weight of the boundaries in the loss.
        beta_lr: learning rate that ``param_groups`` asks for the boundaries.
        nearest: negatives nearer than this are drawn as if they were so far away.
        farthest: negatives this far away are not drawn; margin + beta, from where they have no loss.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    Lengths of the embeddings do not matter. Wants batches of 5 examples a class (``per_class``). Negatives are drawn
    with torch's random numbers, so ``torch.manual_seed`` repeats them. A batch without a positive pair, or with one
    class only, has the value 0.
    """

    per_class: ClassVar[int | None] = 5

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        beta_lr: float = 0.1,
        nearest: float = 0.5,
        farthest: float = 1.4,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self.embedding_size = at_least_one("embedding_size", embedding_size)
        self.margin, self.beta, self.nu = not_negative("margin", margin), positive("beta", beta), not_negative("nu", nu)
        self.beta_lr, self.validate = not_negative("beta_lr", beta_lr), validate
        if not 0 < nearest < farthest <= 2:
            raise ValueError(f"nearest = {nearest!r} and farthest = {farthest!r} must be 0 < nearest < farthest <= 2")
        self.nearest, self.farthest = nearest, farthest
        self.betas = nn.Parameter(torch.full((num_classes,), float(beta)))

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss over the pairs of ``embeddings`` that have one, with negatives drawn anew in each call."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, self.validate)
        distance = distances(F.normalize(embeddings, dim=-1))
        same, different = relations(labels)
        with torch.no_grad():
            weights = negative_weights(distance, different, self.embedding_size, self.nearest, self.farthest)
            triplets = draw_triplets(same, weights)
        boundaries = self.betas.to(distance.dtype)[labels[triplets.anchors]]
        return margin_loss(distance, triplets, boundaries, self.margin, self.nu)

    def param_groups(self, *modules: nn.Module, lr: float = 1e-4, center_lr: float = 1e-2) -> list[dict[str, Any]]:
        """As every loss has them, but with ``beta_lr`` in place of ``center_lr``: there are boundaries, no centres."""
        return param_groups(self, *modules, lr=lr, center_lr=self.beta_lr)
