"""Where a linear head starts: principal components of features, perhaps whitened within classes first."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.errors import UserError

# Relative to the mean variance: directions with less are not amplified further.
_SMALLEST_VARIANCE = 1e-6


def pca_head(
    features: Float[Tensor, "items features"], dim: int
) -> tuple[Float[Tensor, "dim features"], Float[Tensor, " dim"]]:
    """Weight and bias of the projection on the ``dim`` principal components of ``features``, in float64.

    A head that starts there keeps most of what the features distinguish; a random projection loses part of it.
    """
    items, width = features.shape
    if dim > min(items - 1, width):
        raise UserError(
            f"PCA to dim = {dim} needs more than {dim} items and at least {dim} features; there are {items} and {width}"
        )
    rows = features.double()
    mean = rows.mean(dim=0)
    _, directions = torch.linalg.eigh((rows - mean).T @ (rows - mean))
    weight = directions[:, -dim:].flip(1).T
    return weight, -weight @ mean


def whitened_head(
    features: Float[Tensor, "items features"],
    labels: Int[Tensor, " items"],
    dim: int,
    *,
    power: float = 1.0,
    shrinkage: float = 0.1,
) -> tuple[Float[Tensor, "dim features"], Float[Tensor, " dim"]]:
    """Weight and bias that whiten ``features`` within classes, then project on ``dim`` principal components.

    Whitening is ``S^(-power/2)`` for ``S``, the within-class covariance shrunk towards a multiple of the identity:
    ``(1 - shrinkage) * S_w + shrinkage * mean eigenvalue * I``. Power 0 is `pca_head`; power 1 equalises the variance
    within classes in all directions. Without any such variance (one item per class) it is `pca_head` as well.
    """
    if not (power >= 0 and 0 <= shrinkage <= 1):
        raise UserError(f"power = {power} must be at least 0, and shrinkage = {shrinkage} from 0 to 1")
    if power == 0:
        return pca_head(features, dim)
    rows = features.double()
    covariance = within_class_covariance(rows, labels)
    mean_variance = covariance.diagonal().mean()
    if mean_variance == 0:
        return pca_head(features, dim)
    variances, directions = torch.linalg.eigh(covariance)
    variances = (1 - shrinkage) * variances + shrinkage * mean_variance
    variances = variances.clamp_min(_SMALLEST_VARIANCE * mean_variance)
    whitening = directions * variances ** (-power / 2) @ directions.T
    weight, bias = pca_head(rows @ whitening, dim)
    return weight @ whitening, bias


def within_class_covariance(
    features: Float[Tensor, "items features"], labels: Int[Tensor, " items"]
) -> Float[Tensor, "features features"]:
    """Covariance of ``features`` about the means of their classes."""
    classes: Tensor = torch.unique(labels, return_inverse=True)[1]
    counts = classes.bincount()
    sums = features.new_zeros(len(counts), features.shape[1]).index_add_(0, classes, features)
    deviations = features - (sums / counts[:, None])[classes]
    return deviations.T @ deviations / len(features)
