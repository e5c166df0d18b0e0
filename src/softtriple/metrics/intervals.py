"""Confidence intervals by bootstrap over classes."""

from collections.abc import Iterator

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
    columns = [*values.double().cpu().numpy().T, np.ones(len(classes))]
    # The last column are the sizes.
    sums = np.stack([np.bincount(classes, weights=column) for column in columns], axis=1)
    totals = np.concatenate([times @ sums for times in _resampled(num_classes, resamples, seed)])
    means = totals[:, :-1] / totals[:, -1:]
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail], axis=0)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _resampled(num_classes: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each sample has each class, some samples at a time."""
    random = np.random.default_rng(seed)
    some = max(1, (1 << 20) // num_classes)  # eight megabytes of them
    for start in range(0, resamples, some):
        rows = min(some, resamples - start)
        drawn = random.integers(num_classes, size=(rows, num_classes)) + num_classes * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * num_classes)
        yield times.reshape(rows, num_classes).astype(np.float64)
