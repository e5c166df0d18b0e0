"""Closed-form initialisation of a linear head from features, in seconds and without a gradient step.

Within-class whitening, ``W = S^(-power/2)`` with ``S`` the within-class covariance, shrinks the directions in which
items of one class differ; the head then keeps the principal components of the whitened features. Power 0 is plain PCA.
Fewer items than ``dim`` span fewer components; random directions perpendicular to them fill up the rest, because items
of other classes may differ in directions in which these do not.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.errors import UserError

# Relative to the mean variance; smaller variances are not amplified further.
_SMALLEST_VARIANCE = 1e-6
# Larger matrices are decomposed in float32, which takes a tenth of the time and is accurate enough.
_MOST_DOUBLE = 512

Head = tuple[Float[Tensor, "dim features"], Float[Tensor, " dim"]]


class Start(NamedTuple):
    """A closed-form head: whitening to ``power`` of the covariance, shrunk towards a multiple of the identity."""

    power: float = 0.5
    shrinkage: float = 0.3
    center: float = 0.5  # share of the features' mean that is subtracted: unseen classes have another mean
    standardize: bool = False  # divide features by their standard deviation first


class Spread(NamedTuple):
    """Eigenvalues and eigenvectors of the within-class covariance."""

    variances: Float[Tensor, " features"]
    directions: Float[Tensor, "features features"]

    def whitening(self, power: float, shrinkage: float) -> Float[Tensor, "features features"]:
        """``((1 - shrinkage) * S + shrinkage * mean variance * I) ** (-power / 2)``, the identity if S is zero."""
        mean = self.variances.mean()
        if power == 0 or mean <= 0:
            return torch.eye(len(self.variances), dtype=self.variances.dtype)
        shrunk = (1 - shrinkage) * self.variances + shrinkage * mean
        shrunk = shrunk.clamp_min(_SMALLEST_VARIANCE * float(mean))
        result: Tensor = self.directions * shrunk ** (-power / 2) @ self.directions.T
        return result


def within_class_spread(features: Float[Tensor, "items features"], labels: Int[Tensor, " items"]) -> Spread:
    """The spread of ``features`` about the means of their classes."""
    classes: Tensor = torch.unique(labels, return_inverse=True)[1]
    counts = classes.bincount()
    sums = features.new_zeros(len(counts), features.shape[1]).index_add_(0, classes, features)
    deviations = features - (sums / counts[:, None])[classes]
    return Spread(*_eigh(deviations.T @ deviations / len(features)))


def pca_head(features: Float[Tensor, "items features"], dim: int) -> Head:
    """Weight and bias of the projection on the ``dim`` principal components of ``features``, in float64.

    Unlike a random projection, it preserves most of what the features distinguish.
    """
    check_width(features, dim)
    rows = features.double()
    mean = rows.mean(dim=0)
    weight = principal_components(rows, dim)
    return weight, -weight @ mean


def closed_form_head(
    features: Float[Tensor, "items features"], labels: Int[Tensor, " items"], dim: int, start: Start
) -> Head:
    """Weight and bias of the head ``start`` for these features.

    The weight is scaled to a root mean square of 1/√features, as in random initialisation, so that a learning rate
    means the same for every backbone.
    """
    if not (start.power >= 0 and 0 <= start.shrinkage <= 1 and 0 <= start.center <= 1):
        raise UserError(
            f"head_power = {start.power} must be at least 0, head_shrinkage = {start.shrinkage} and "
            f"head_center = {start.center} from 0 to 1"
        )
    check_width(features, dim)
    rows = features.double()
    scale = column_scale(rows, start)
    rows = rows * scale
    whitening = within_class_spread(rows, labels).whitening(start.power, start.shrinkage) if start.power else None
    whitened = rows if whitening is None else rows @ whitening
    weight = principal_components(whitened, dim)
    weight = (weight if whitening is None else weight @ whitening) * scale
    weight = weight / (weight.square().mean().sqrt() * weight.shape[1] ** 0.5)
    return weight, -weight @ (start.center * features.double().mean(dim=0))


def column_scale(rows: Float[Tensor, "items features"], start: Start) -> Float[Tensor, " features"]:
    """The factor of each feature before whitening: one over its standard deviation, or 1."""
    if not start.standardize or len(rows) < 2:
        return torch.ones(rows.shape[1], dtype=rows.dtype)
    deviations = rows.std(dim=0)
    return 1 / torch.where(deviations > 0, deviations, 1)


def check_width(features: Float[Tensor, "items features"], dim: int) -> None:
    """UserError unless there are at least ``dim`` features."""
    if dim > features.shape[1]:
        raise UserError(f"PCA to dim = {dim} needs at least as many features; there are {features.shape[1]}")


def principal_components(rows: Float[Tensor, "items features"], dim: int) -> Float[Tensor, "dim features"]:
    """The first ``dim`` principal components of ``rows``, filled up with random directions if rows are too few."""
    centered = rows - rows.mean(dim=0)
    _, directions = _eigh(centered.T @ centered)
    components = directions[:, -min(dim, max(len(rows) - 1, 1)) :].flip(1)
    missing = dim - components.shape[1]
    if not missing:
        return components.T
    generator = torch.Generator().manual_seed(0)
    others = torch.randn(len(components), missing, dtype=rows.dtype, generator=generator)
    # Twice, because the QR decomposition would amplify the rounding errors of the first subtraction.
    for _ in range(2):
        others = others - components @ (components.T @ others)
    return torch.cat([components, torch.linalg.qr(others).Q], dim=1).T


def _eigh(matrix: Float[Tensor, "size size"]) -> tuple[Float[Tensor, " size"], Float[Tensor, "size size"]]:
    if len(matrix) <= _MOST_DOUBLE:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    values, vectors = torch.linalg.eigh((matrix / matrix.diagonal().mean().clamp_min(1e-30)).float())
    return values.double() * matrix.diagonal().mean(), vectors.double()
