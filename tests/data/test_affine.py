import numpy as np
import torch

from softtriple.data.loader import MAX_SHIFT, affine_draws, displace
from softtriple.data.sampling import stream


def dot(size: int = 25) -> torch.Tensor:
    pixels = torch.zeros(1, size, size, 1, dtype=torch.uint8)
    pixels[0, size // 2, size // 2] = 255
    return pixels


def place(pixels: torch.Tensor) -> tuple[float, float]:
    """Centre of the ink, (down, right)."""
    weights = pixels[0, :, :, 0].double()
    along = torch.arange(len(weights), dtype=torch.float64)
    return float((weights.sum(1) @ along) / weights.sum()), float((weights.sum(0) @ along) / weights.sum())


def test_no_displacement_is_the_identity():
    pixels = torch.randint(0, 256, (3, 8, 8, 3), dtype=torch.uint8)
    assert torch.equal(displace(pixels, torch.zeros(3, 4)), pixels)


def test_the_middle_stays_when_turned_and_zoomed():
    assert place(displace(dot(), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))) == (12.0, 12.0)
    assert place(displace(dot(), torch.tensor([[0.0, 1.0, 0.0, 0.0]]))) == (12.0, 12.0)


def test_a_shift_moves_by_a_share_of_the_side():
    down, right = place(displace(dot(), torch.tensor([[0.0, 0.0, 1.0, 0.0]])))
    assert down == 12.0
    assert abs(abs(right - 12.0) - MAX_SHIFT * 25) < 0.01


def test_outside_the_border_repeats():
    white = torch.full((1, 8, 8, 1), 255, dtype=torch.uint8)
    assert torch.equal(displace(white, torch.ones(1, 4)), white)


def test_an_image_moves_alike_in_any_company():
    pixels = torch.randint(0, 256, (5, 9, 9, 1), dtype=torch.uint8)
    draws = torch.from_numpy(affine_draws(5, stream("test", 0)))
    together = displace(pixels, draws)
    alone = torch.cat([displace(pixels[i : i + 1], draws[i : i + 1]) for i in range(5)])
    assert torch.equal(together, alone)


def test_draws_of_a_row_do_not_depend_on_the_rows_after_it():
    np.testing.assert_array_equal(affine_draws(9, stream("test", 0))[:4], affine_draws(4, stream("test", 0)))
