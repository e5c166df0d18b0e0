"""Small random turns, zooms and shifts of a whole batch of small images at once."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, UInt8
from torch import Tensor

MAX_DEGREES = 10.0
MAX_ZOOM = 0.15
MAX_SHIFT = 0.08  # of the side


def affine_draws(num_rows: int, generator: np.random.Generator) -> Float32[np.ndarray, "rows 4"]:
    """Four numbers in [-1, 1) for each row: turn, zoom, right, down. A row's do not depend on how many follow."""
    return 2 * generator.random((num_rows, 4), dtype=np.float32) - 1


def displace(
    pixels: UInt8[Tensor, "batch height width channels"], draws: Float32[Tensor, "batch 4"]
) -> UInt8[Tensor, "batch height width channels"]:
    """``pixels`` turned, zoomed and shifted about their middle as ``draws`` say; the border repeats outside."""
    turn, zoom, right, down = draws.unbind(dim=1)
    angle, scale = turn * math.radians(MAX_DEGREES), 1 + zoom * MAX_ZOOM
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    inverse = torch.stack(
        [torch.stack([cos, sin, right * 2 * MAX_SHIFT], 1), torch.stack([-sin, cos, down * 2 * MAX_SHIFT], 1)], 1
    )
    images = pixels.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(inverse, list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return moved.round_().byte().permute(0, 2, 3, 1).contiguous()
