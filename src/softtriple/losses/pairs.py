"""Losses over pairs and triplets of a batch: triplet loss, semi-hard, lifted structure, n-pairs, margin.

The triplet loss is Eq. 1 and 2 of the SoftTriple paper. Semi-hard triplets are FaceNet's (Schroff et al., CVPR 2015),
lifted structure is Song et al. (CVPR 2016), n-pairs is Sohn (NIPS 2016), and the margin loss with distance-weighted
sampling is Wu et al. (ICCV 2017).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.losses.base import Labels, Loss, Vectors, check_lengths, require_nonnegative, require_positive
from softtriple.losses.functional import coincident


def squared_distances(embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch batch"]:
    """Squared Euclidean distances; those within rounding error of 0 are 0 and have no gradient."""
    with torch.autocast(embeddings.device.type, enabled=False):
        lengths = embeddings.square().sum(dim=-1)
        both_lengths = lengths[:, None] + lengths
        squared = both_lengths - 2 * (embeddings @ embeddings.mT)
    return torch.where(squared > coincident(squared.dtype) * both_lengths / 2, squared, 0)


def distances(embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch batch"]:
    """Euclidean distances; coincident embeddings have no gradient, where it would be infinite."""
    squared = squared_distances(embeddings)
    apart = squared > 0
    return torch.where(apart, squared, 1).sqrt() * apart


def relations(labels: Int[Tensor, " batch"]) -> tuple[Bool[Tensor, "batch batch"], Bool[Tensor, "batch batch"]]:
    """Which pairs are positive (same class, different examples) and which are negative (different classes).

    Example:
        >>> positive, negative = relations(torch.tensor([7, 7, 3]))
        >>> positive.int().tolist(), negative.int().tolist()
        ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 0, 1], [1, 1, 0]])
    """
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same & ~itself, ~same


def scaled_to(length: float | None, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """Embeddings rescaled to ``length``, or unchanged if it is None."""
    return embeddings if length is None else length * F.normalize(embeddings, dim=-1)


def triplet_loss(
    anchor: Float[Tensor, "triplets dim"],
    positive: Float[Tensor, "triplets dim"],
    negative: Float[Tensor, "triplets dim"],
    margin: float,
) -> Float[Tensor, " triplets"]:
    """Loss of each triplet of unit vectors: the violation of x_i·x_j − x_i·x_k ≥ margin (Eq. 1 and 2)."""
    return F.relu(margin + (anchor * negative).sum(dim=-1) - (anchor * positive).sum(dim=-1))


def semi_hard_distances(
    distance: Float[Tensor, "batch batch"], negative: Bool[Tensor, "batch batch"]
) -> Float[Tensor, "batch batch"]:
    """For each anchor and example, the distance to the anchor's nearest negative that is farther than the example.

    If no negative is farther, the distance to the farthest negative; infinite if there is none.
    """
    ascending = distance.masked_fill(~negative, torch.inf).sort(dim=1).values
    beyond = torch.searchsorted(ascending.detach(), distance.detach(), right=True)
    farthest = negative.sum(dim=1, keepdim=True) - 1
    return ascending.gather(1, torch.minimum(beyond, farthest).clamp_min(0))


class SemiHardTripletLoss(Loss):
    """Triplet loss on squared distances, with one semi-hard negative for each ordered positive pair.

    The rule is that of TensorFlow's reference implementation: the nearest negative that is farther away than the
    positive, or the farthest negative if there is none.

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``.
        margin: required difference of the squared distances; FaceNet uses 0.2, the reference 1.

    Embeddings are normalised. Batches should contain 4 examples per class (``per_class``). A batch without a positive
    pair, or with a single class, has the value 0.
    """

    per_class = 4

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 1.0, validate: bool = True) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        self.margin = require_nonnegative("margin", margin)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss over the ordered positive pairs."""
        embeddings, labels = self.check_batch(embeddings, labels)
        distance = squared_distances(F.normalize(embeddings, dim=-1))
        positive, negative = relations(labels)
        losses = F.relu(self.margin + distance - semi_hard_distances(distance, negative))
        return (losses * positive).sum() / positive.sum().clamp_min(1)


class LiftedStructureLoss(Loss):
    """Lifted structure: half the mean of max(0, J)² over positive pairs.

    J_ij = log(Σ_k exp(margin − D_ik) + Σ_l exp(margin − D_jl)) + D_ij, with k and l over the negatives of i and j, is
    the smooth violation of one pair by all of its negatives.

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``.
        margin: how far away negatives should be.
        length: rescale embeddings to this length; None leaves them unchanged, as published. Distances of unit vectors
            are at most 2, where exp(−D) hardly distinguishes near from far negatives.

    Batches should contain 4 examples per class (``per_class``). A batch without a positive pair, or with a single
    class, has the value 0.
    """

    per_class = 4

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 1.0,
        length: float | None = 10.0,
        validate: bool = True,
    ) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        self.margin = require_nonnegative("margin", margin)
        self.length = length if length is None else require_positive("length", length)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss over the positive pairs."""
        embeddings, labels = self.check_batch(embeddings, labels)
        distance = distances(scaled_to(self.length, embeddings))
        positives, negatives = relations(labels)
        # Not minus infinity: gradients must stay finite if there are no negatives.
        lowest = torch.finfo(distance.dtype).min
        pushes = (self.margin - distance).masked_fill(~negatives, lowest).logsumexp(dim=1)
        violation = F.relu(torch.logaddexp(pushes[:, None], pushes) + distance) * positives
        return violation.square().sum() / (2 * positives.sum().clamp_min(1))


def pair_up(labels: Int[Tensor, " batch"]) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"]]:
    """Rows of anchors and of their positives: first and second example of each class, third and fourth, and so on.

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


class NPairsLoss(Loss):
    """N-pairs: each anchor must find its positive among the positives of all pairs, by softmax over inner products.

    If several pairs belong to one class, its positives share the target probability.

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``.
        length: rescale embeddings to this length; None leaves them unchanged, as published. Inner products of unit
            vectors lie between −1 and 1, too close for a softmax; √20 ≈ 4.5 makes its scale 20.
        l2: weight of a quarter of the mean squared lengths of anchors and of positives, before any rescaling.

    Batches should contain 2 examples per class (``per_class``): the first is the anchor, the second the positive. A
    batch without two examples of any class has the value 0. ``NormalizedSoftmaxLoss`` has learned centres in place of
    the positives.
    """

    per_class = 2

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        length: float | None = 4.5,
        l2: float = 0.002,
        validate: bool = True,
    ) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        self.length = length if length is None else require_positive("length", length)
        self.l2 = require_nonnegative("l2", l2)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss over the pairs of the batch."""
        embeddings, labels = self.check_batch(embeddings, labels)
        if self.validate and (self.length is None or self.l2):  # otherwise lengths do not matter
            check_lengths(embeddings, embeddings.dtype)
        anchors, positives = pair_up(labels)
        num_pairs = max(len(anchors), 1)
        vectors = scaled_to(self.length, embeddings)
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
    """Probability, up to a factor, that each anchor draws each negative: the inverse density of its distance.

    The density is that of distances between random points on the unit sphere, so distances are drawn uniformly. Those
    below ``nearest`` count as ``nearest``. Negatives at ``farthest`` or beyond are drawn only if there are no others,
    and then uniformly.
    """
    clipped = distance.clamp_min(nearest)
    log_density = (embedding_size - 2) * clipped.log() + (embedding_size - 3) / 2 * (1 - clipped.square() / 4).log()
    allowed = negative & (distance < farthest)
    log_weights = (-log_density).masked_fill(~allowed, -torch.inf)
    weights = (log_weights - log_weights.amax(dim=1, keepdim=True)).exp()
    return torch.where(allowed.any(dim=1, keepdim=True), weights, negative.to(weights.dtype))


def draw_triplets(same: Bool[Tensor, "batch batch"], weights: Float[Tensor, "batch batch"]) -> Triplets:
    """Every ordered pair of the ``same`` class with a negative drawn by ``weights``, from torch's generator."""
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
    """Sum of violations divided by their number; positives must be ``margin`` inside the boundary, negatives outside.

    ``nu`` is the weight of the boundaries themselves.
    """
    inside = F.relu(distance[triplets.anchors, triplets.positives] - boundaries + margin)
    outside = F.relu(boundaries - distance[triplets.anchors, triplets.negatives] + margin)
    violations = (inside > 0).sum() + (outside > 0).sum()
    return ((inside + outside).sum() + nu * boundaries.sum()) / violations.clamp_min(1)


class MarginLoss(Loss):
    """Margin loss: a learned boundary between near and far for each class, and negatives sampled by distance.

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``.
        margin: how far inside or outside the boundary examples should be.
        beta: initial value of all boundaries (``betas``).
        nu: weight of the boundaries in the loss.
        beta_lr: learning rate of the boundaries in ``param_groups``.
        nearest: negatives nearer than this are drawn as if they were at this distance.
        farthest: negatives at this distance or beyond are not drawn; 1.4 is the default margin + beta, where their
            loss ends.

    Embeddings are normalised. Batches should contain 5 examples per class (``per_class``). Negatives are drawn from
    torch's generator, so ``torch.manual_seed`` makes them repeatable. A batch without a positive pair, or with a single
    class, has the value 0.
    """

    per_class = 5

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
        super().__init__(num_classes, embedding_size, validate=validate)
        self.margin, self.beta = require_nonnegative("margin", margin), require_positive("beta", beta)
        self.nu, self.beta_lr = require_nonnegative("nu", nu), require_nonnegative("beta_lr", beta_lr)
        if not 0 < nearest < farthest <= 2:
            raise UserError(
                f"nearest = {nearest!r} and farthest = {farthest!r} must satisfy 0 < nearest < farthest <= 2"
            )
        self.nearest, self.farthest = nearest, farthest
        self.betas = nn.Parameter(torch.full((num_classes,), float(beta)))

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss over the pairs that violate their margin, with new negatives drawn in each call."""
        embeddings, labels = self.check_batch(embeddings, labels)
        distance = distances(F.normalize(embeddings, dim=-1))
        same, different = relations(labels)
        with torch.no_grad():
            weights = negative_weights(distance, different, self.embedding_size, self.nearest, self.farthest)
            triplets = draw_triplets(same, weights)
        boundaries = self.betas.to(distance.dtype)[labels[triplets.anchors]]
        return margin_loss(distance, triplets, boundaries, self.margin, self.nu)

    def param_groups(self, *modules: nn.Module, lr: float = 1e-4, center_lr: float = 1e-2) -> list[dict[str, Any]]:
        """Like every loss, but with ``beta_lr`` instead of ``center_lr``: there are boundaries, not centres."""
        return super().param_groups(*modules, lr=lr, center_lr=self.beta_lr)
