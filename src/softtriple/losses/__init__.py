"""Losses for metric learning, each a module ``loss(embeddings, labels)``, chosen by name from one table."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from softtriple.losses.centers import MergedCenters as MergedCenters
from softtriple.losses.hardtriple import HardTripleLoss as HardTripleLoss
from softtriple.losses.softmax import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
from softtriple.losses.softmax import SoftmaxLoss as SoftmaxLoss
from softtriple.losses.softtriple import SoftTripleLoss as SoftTripleLoss

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "softtriple": SoftTripleLoss,
    "hard-triple": HardTripleLoss,
    "softmax-norm": NormalizedSoftmaxLoss,
    "softmax": SoftmaxLoss,
}


def build_loss(name: str, num_classes: int, embedding_size: int, **options: Any) -> nn.Module:
    """Build the loss called ``name``; its signature decides which ``options`` exist."""
    if name not in LOSSES:
        raise ValueError(f"unknown loss {name!r}; choose from {', '.join(sorted(LOSSES))}")
    constructor = LOSSES[name]
    known = inspect.signature(constructor).parameters.keys() - {"num_classes", "embedding_size"}
    unknown = options.keys() - known
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    return constructor(num_classes, embedding_size, **options)
