"""Backbones for data that are vectors already: features of another network, measurements, text embeddings."""

from collections.abc import Sequence

from torch import nn

from softtriple.models.backbones.stages import Chain


def linear(in_features: int) -> Chain:
    """The vectors themselves, in no stages: the encoder's linear head is then the whole model."""
    if in_features < 1:
        raise ValueError(f"linear: in_features = {in_features} is not positive")
    return Chain({}, num_features=in_features, taps=(0, 0, 0), preprocess=None)


def mlp(in_features: int, hidden: Sequence[int] = (512, 512)) -> Chain:
    """A stage of linear map, layer norm and ReLU for each size in ``hidden``.

    Layer norm, not batch norm: a row's output then does not depend on the rows beside it, so that batches of few
    classes train as shuffled ones do, and training and inference compute the same function.
    Tapped at its last three depths; depth 0, the input, stands in where there are fewer than three layers.
    """
    sizes = (in_features, *hidden)
    if not hidden or min(sizes) < 1:
        raise ValueError(f"mlp: in_features = {in_features} and hidden = {tuple(hidden)} must be positive sizes")
    stages = {
        f"layer{number}": nn.Sequential(
            nn.Linear(sizes[number - 1], sizes[number]), nn.LayerNorm(sizes[number]), nn.ReLU(inplace=True)
        )
        for number in range(1, len(sizes))
    }
    depth = len(stages)
    taps = (max(depth - 2, 0), max(depth - 1, 0), depth)
    return Chain(stages, num_features=sizes[-1], taps=taps, preprocess=None)
