"""Heads at three depths of a backbone, each to unit length, side by side: the encoder of HDC (Yuan et al., ICCV 2017).

What is inside a network is a map of local features, not yet a description of the whole: a shallow head is a small
network of its own, which sees where in the image something is. The deepest head is linear, like that of other encoders.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# The authors average their maps of 14×14 by 5×5 with stride 3, which gives a grid of 4×4 cells.
GRID = 4
CHANNELS, HIDDEN = 128, 1024


class Tap(NamedTuple):
    """The size of what a shallow head takes: numbers in each cell, and cells."""

    channels: int
    cells: int


def in_cells(x: Float[Tensor, "batch channels ..."]) -> Float[Tensor, "batch features"]:
    """A map averaged over a grid of cells, in one row; a vector is a map of one cell and stays as it is."""
    return x if x.ndim == 2 else F.adaptive_avg_pool2d(x, GRID).flatten(1)


class TappedHeads(nn.Module):
    """The heads of a cascade: shallow ones with the layers of the authors', and a linear one on pooled features.

    Their dropout is left out: on held-out classes of glyphs R@1 after four epochs was 38 without and 11 with it.
    Takes the rows that ``in_cells`` makes at the shallow depths and the pooled ``features`` of the last, side by side.
    """

    def __init__(self, shallow: Sequence[Tap], features: int, dim: int) -> None:
        super().__init__()
        part = dim // (len(shallow) + 1)
        self.widths = [*(tap.channels * tap.cells for tap in shallow), features]
        self.heads = nn.ModuleList([*(_shallow_head(tap, part) for tap in shallow), nn.Linear(features, part)])

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        """The unit vectors of the heads in one row."""
        parts = features.split_with_sizes(self.widths, dim=1)
        return torch.cat([F.normalize(f(part), dim=-1) for f, part in zip(self.heads, parts, strict=True)], dim=1)


def _shallow_head(tap: Tap, dim: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (tap.channels, tap.cells)),
        nn.Conv1d(tap.channels, CHANNELS, 1),  # a 1×1 convolution of the map, whose cells stand in a row
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(CHANNELS * tap.cells, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, dim),
    )
