"""Confidence intervals by bootstrap over classes."""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor


def class_intervals(
    values: Float[Tensor, "queries metrics"],
    labels: Int[Tensor, " queries"],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """Percentile interval of the mean of each column, resampling whole classes.

    Queries of a class share their positives and stand or fall together, so that resampling single queries would
    give intervals that are too narrow. What the interval covers is the choice of test classes, not the training run.

    Example:
        Two classes, one always right and one always wrong: with two classes, anything is possible.

        >>> class_intervals(torch.tensor([[1.0], [1.0], [0.0], [0.0]]), torch.tensor([3, 3, 4, 4]))
        [(0.0, 1.0)]
    """
    if not 0 < level < 1:
        raise ValueError(f"level = {level}: choose a share between 0 and 1")
    _, classes = np.unique(labels.cpu().numpy(), return_inverse=True)
    num_classes = int(classes.max()) + 1
    sizes = np.bincount(classes).astype(np.float64)
    columns = values.double().cpu().numpy().T
    sums = np.stack([np.bincount(classes, weights=column).astype(np.float64) for column in columns], axis=1)
    means = _resampled_means(sums, sizes, num_classes, resamples, np.random.default_rng(seed))
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _resampled_means(
    sums: NDArray[np.float64],
    sizes: NDArray[np.float64],
    num_classes: int,
    resamples: int,
    random: np.random.Generator,
) -> NDArray[np.float64]:
    means = np.empty((resamples, sums.shape[1]))
    for row in means:
        times = np.bincount(random.integers(num_classes, size=num_classes), minlength=num_classes)
        row[:] = times @ sums / (times @ sizes)
    return means
