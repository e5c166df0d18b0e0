"""The promises that search and rank counting rest on."""

import numpy as np
import pytest
import torch

from softtriple.search.similarity import coarse_error_bound, error_bound, exact_pairs, tile_side, tiles


def unit(count, dim, seed=0):
    values = torch.from_numpy(np.random.default_rng(seed).normal(size=(count, dim))).float()
    return torch.nn.functional.normalize(values, dim=1)


@pytest.mark.parametrize("dim", [1, 2, 3, 31, 64, 1000])
def test_similarity_of_a_pair_does_not_depend_on_where_it_stands(dim):
    items = unit(50, dim)
    copies = items[torch.arange(700) % 50]
    rows, cols = torch.randint(700, (2, 5000), generator=torch.Generator().manual_seed(0))
    scores = exact_pairs(copies, copies, rows, cols, 1 << 30)
    assert scores.equal(exact_pairs(copies, copies, cols, rows, 1 << 30))
    assert scores.equal(exact_pairs(items, items, rows % 50, cols % 50, 1 << 12))
    alone = torch.cat(
        [
            exact_pairs(items, items, r, c, 1 << 30)
            for r, c in zip((rows % 50).split(1), (cols % 50).split(1), strict=True)
        ]
    )
    assert scores.equal(alone)


@pytest.mark.parametrize("dim", [2, 64, 1000])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_error_bound_holds(dim, scale):
    items = unit(200, dim) * scale
    exact = items.double() @ items.double().T
    error = float(((items @ items.T).double() - exact).abs().max())
    assert error <= error_bound(items, items) <= 1e-4 * scale**2


@pytest.mark.parametrize("dim", [2, 64, 1000])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_coarse_tiles_compare_to_rounded_thresholds_as_the_bound_says(dim, scale):
    items = unit(200, dim) * scale
    exact = (items.double() @ items.double().T).fill_diagonal_(-torch.inf)
    bound = coarse_error_bound(items, items)
    assert bound < 0.01 * scale**2
    for threshold in torch.linspace(-scale, scale, 21).double() * scale:
        surely, perhaps = ((threshold + sign * bound).bfloat16().float() for sign in (1, -1))
        for rows, cols, values in tiles(items, None, 1 << 20, coarse=True):
            assert (exact[rows, cols][values > surely] > threshold).all()
            assert (exact[rows, cols][values < perhaps] < threshold).all()


@pytest.mark.parametrize("budget", [1, 96 * 49, 1 << 30])
def test_tiles_cover_every_pair_once(budget):
    items, others = unit(20, 4), unit(13, 4, seed=1)
    among, across, shifted = torch.zeros(20, 20), torch.zeros(20, 13), torch.zeros(6, 20)
    for rows, cols, values in tiles(items, None, budget):
        among[rows, cols] += values
    for rows, cols, values in tiles(items, others, budget):
        across[rows, cols] += values
    for rows, cols, values in tiles(items[5:11], items, budget, self_at=5):
        shifted[rows, cols] += values
    expected = (items @ items.T).fill_diagonal_(-torch.inf)
    assert torch.allclose(among, expected, atol=1e-6)
    assert torch.allclose(across, items @ others.T, atol=1e-6)
    assert torch.allclose(shifted, expected[5:11], atol=1e-6)


def test_a_tile_and_its_pairs_fit_the_budget():
    for budget in (1 << 10, 1 << 20, 1 << 26):
        assert 96 * tile_side(budget) ** 2 <= budget


def test_readers_of_a_tile_have_the_precision_that_they_set():
    vectors = torch.eye(3)
    torch.set_float32_matmul_precision("medium")
    try:
        assert [torch.get_float32_matmul_precision() for _ in tiles(vectors, None, 0)] == ["medium"] * 9
    finally:
        torch.set_float32_matmul_precision("highest")
