"""Losses for metric learning, each a module ``loss(embeddings, labels)``, chosen by name from one table."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from softtriple.losses.centers import MergedCenters as MergedCenters
from softtriple.losses.checks import KINDS
from softtriple.losses.clustering import ClusteringLoss as ClusteringLoss
from softtriple.losses.hardtriple import HardTripleLoss as HardTripleLoss
from softtriple.losses.htl import HTLLoss as HTLLoss
from softtriple.losses.lifted import LiftedStructureLoss as LiftedStructureLoss
from softtriple.losses.pairs import MarginLoss as MarginLoss
from softtriple.losses.pairs import NPairsLoss as NPairsLoss
from softtriple.losses.pml import PREFIX, build_external_loss
from softtriple.losses.proxies import ProxyAnchorLoss as ProxyAnchorLoss
from softtriple.losses.proxies import ProxyNCALoss as ProxyNCALoss
from softtriple.losses.sampled import SampledSoftTripleLoss as SampledSoftTripleLoss
from softtriple.losses.sampled import sample_classes as sample_classes
from softtriple.losses.sharded import ShardedSoftTripleLoss as ShardedSoftTripleLoss
from softtriple.losses.sharded import shard as shard
from softtriple.losses.softmax import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
from softtriple.losses.softmax import SoftmaxLoss as SoftmaxLoss
from softtriple.losses.softtriple import SoftTripleLoss as SoftTripleLoss
from softtriple.losses.triplets import SemiHardTripletLoss as SemiHardTripletLoss

LOSSES: dict[str, Callable[..., nn.Module]] = {
    "softtriple": SoftTripleLoss,
    "hard-triple": HardTripleLoss,
    "softmax-norm": NormalizedSoftmaxLoss,
    "softmax": SoftmaxLoss,
    "semi-hard": SemiHardTripletLoss,
    "lifted": LiftedStructureLoss,
    "clustering": ClusteringLoss,
    "n-pairs": NPairsLoss,
    "proxy-nca": ProxyNCALoss,
    "margin": MarginLoss,
    "htl": HTLLoss,
    "proxy-anchor": ProxyAnchorLoss,
}


def build_loss(name: str, num_classes: int, embedding_size: int, **options: Any) -> nn.Module:
    """Build the loss called ``name``; its signature decides which ``options`` exist and what they may be.

    ``pml:NAME`` or ``pml:NAME+MINER`` is a loss of pytorch-metric-learning.
    """
    if name.startswith(PREFIX):
        return build_external_loss(name, num_classes, embedding_size, options)
    if name not in LOSSES:
        raise ValueError(f"unknown loss {name!r}; choose from {', '.join(sorted(LOSSES))}")
    constructor = LOSSES[name]
    parameters = inspect.signature(constructor).parameters
    known = parameters.keys() - {"num_classes", "embedding_size"}
    unknown = options.keys() - known
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    for option, value in options.items():
        wanted, fits = KINDS[parameters[option].annotation]
        if not fits(value):
            raise ValueError(f"{name}: {option} = {value!r} is not {wanted}")
    return constructor(num_classes, embedding_size, **options)
