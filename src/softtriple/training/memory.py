"""How much memory training will take, said before it starts."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softtriple.losses import SampledSoftTripleLoss, SoftTripleLoss
from softtriple.losses.tiled import working_bytes
from softtriple.training.sharding import find_shard


class Memory(NamedTuple):
    """Bytes of one rank: what is known beforehand. Activations of the encoder and the data come on top."""

    parameters: int
    gradients: int
    optimizer: int  # Adam's two moments
    working: int  # tiles of the loss and, where classes are sampled, a copy of the centres drawn

    def __str__(self) -> str:
        named = zip(("parameters", "gradients", "optimiser", "tiles"), self, strict=True)
        parts = ", ".join(f"{name} {_size(count)}" for name, count in named)
        return f"{_size(sum(self))} ({parts}), besides activations and data"


def estimate_memory(encoder: nn.Module, loss: nn.Module, batch_size: int) -> Memory:
    """What this rank's state and a step of training take; ``batch_size`` counts the examples of all ranks."""
    parameters = [*encoder.parameters(), *loss.parameters()]
    learned = sum(_bytes(parameter) for parameter in parameters if parameter.requires_grad)
    gradients, working = learned, 0
    shard = find_shard(loss)
    if shard is not None:
        drawn = shard.centers.shape
        if isinstance(loss, SampledSoftTripleLoss):
            drawn = _drawn(drawn, loss.rate, batch_size)
            working = drawn.numel() * shard.centers.element_size()
            gradients += working - _bytes(shard.centers)
        working += working_bytes(batch_size, drawn, shard.settings.tau, shard.centers.element_size())
    elif isinstance(loss, SoftTripleLoss):
        working = working_bytes(batch_size, loss.centers.shape, loss.tau, loss.centers.element_size())
    return Memory(sum(map(_bytes, parameters)), gradients, 2 * learned, working)


def _drawn(shape: torch.Size, rate: float, batch_size: int) -> torch.Size:
    """Shape of the centres drawn in a step, should the classes of the batch be all different and all here."""
    num_classes, *rest = shape
    return torch.Size((min(num_classes, max(math.ceil(rate * num_classes), batch_size)), *rest))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
