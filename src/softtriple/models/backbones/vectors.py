"""Backbones for vectors: features of another network, measurements, text embeddings."""

from collections.abc import Sequence

from torch import nn

from softtriple.errors import UserError
from softtriple.models.backbones.stages import Chain


def linear(in_features: int) -> Chain:
    """The identity, without stages, so that the encoder's linear head is the whole model."""
    if in_features < 1:
        raise UserError(f"linear: in_features = {in_features} must be positive")
    return Chain({}, num_features=in_features, preprocess=None)


def mlp(in_features: int, hidden: Sequence[int] = (512, 512)) -> Chain:
    """A linear layer, layer norm and ReLU for each width in ``hidden``.

    Layer norm rather than batch norm: the output of a row does not depend on the rest of its batch, so training on
    batches of few classes computes the same function as inference.
    """
    sizes = (in_features, *hidden)
    if not hidden or min(sizes) < 1:
        raise UserError(f"mlp: in_features = {in_features} and hidden = {tuple(hidden)} must be positive sizes")
    stages = {
        f"layer{number}": nn.Sequential(
            nn.Linear(sizes[number - 1], sizes[number]), nn.LayerNorm(sizes[number]), nn.ReLU(inplace=True)
        )
        for number in range(1, len(sizes))
    }
    return Chain(stages, num_features=sizes[-1], preprocess=None)
