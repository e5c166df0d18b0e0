"""Confidence intervals by bootstrap over classes."""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple.errors import UserError


def class_intervals(
    values: Float[Tensor, "queries metrics"],
    labels: Int[Tensor, " queries"],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """Percentile interval of the mean of each column, resampling whole classes.

    Queries of one class share their positives, so their results are correlated, and resampling single queries would
    give intervals that are too narrow. The interval covers the choice of test classes, not the training run.

    Example:
        Two classes, one always right and one always wrong: with two classes, anything is possible.

        >>> class_intervals(torch.tensor([[1.0], [1.0], [0.0], [0.0]]), torch.tensor([3, 3, 4, 4]))
        [(0.0, 1.0)]
    """
    _, classes = np.unique(labels.cpu().numpy(), return_inverse=True)
    columns = [*values.double().cpu().numpy().T, np.ones(len(classes))]  # the last column sums to the class sizes
    sums = np.stack([np.bincount(classes, weights=column) for column in columns], axis=1)
    return percentile_intervals(resampled_sums(sums, resamples, seed), level)


def resampled_sums(
    sums: Float[np.ndarray, "classes columns"], resamples: int, seed: int
) -> Float[np.ndarray, "resamples columns"]:
    """Column sums over classes drawn with replacement, as many as there are: counts of draws times ``sums``."""
    random = np.random.default_rng(seed)
    num_classes = len(sums)
    at_once = max(1, (1 << 20) // num_classes)  # eight megabytes of counts
    totals = []
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        drawn = random.integers(num_classes, size=(rows, num_classes)) + num_classes * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * num_classes).reshape(rows, num_classes)
        totals.append(counts.astype(np.float64) @ sums)
    return np.concatenate(totals)


def percentile_intervals(totals: Float[np.ndarray, "resamples columns"], level: float) -> list[tuple[float, float]]:
    """Interval of each column over the last one, which are sizes."""
    if not 0 < level < 1:
        raise UserError(f"level = {level}: choose a share between 0 and 1")
    means: NDArray[np.float64] = totals[:, :-1] / totals[:, -1:]
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
