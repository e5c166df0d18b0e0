"""Tiles and candidates: every product is there once, and the largest are found."""

import numpy as np
import pytest
import torch
from tests.search.test_knn import by_the_book, crowded, unit

from softtriple.search import products
from softtriple.search.knn import nearest
from softtriple.search.products import (
    candidates,
    coarse_bound,
    coarse_is_faster,
    coarse_product,
    encode,
    tile_side,
    tiles,
)


@pytest.mark.parametrize("budget", [1, 96 * 49, 1 << 30])
def test_tiles_cover_every_pair_once(budget):
    items, others = unit(20, 4), unit(13, 4, seed=1)
    among, across, shifted = torch.zeros(20, 20), torch.zeros(20, 13), torch.zeros(6, 20)
    for rows, cols, values in tiles(items, items, budget, own=torch.arange(20)):
        among[rows, cols] += values
    for rows, cols, values in tiles(items, others, budget):
        across[rows, cols] += values
    for rows, cols, values in tiles(items[5:11], items, budget, own=torch.arange(5, 11)):
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
        assert [torch.get_float32_matmul_precision() for _ in tiles(vectors, vectors, 0)] == ["medium"] * 9
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("distinct", [2, 30, 1000])
@pytest.mark.parametrize("count", [127, 900])
def test_candidates_from_parts_of_long_rows(count, distinct, monkeypatch):
    monkeypatch.setattr(products, "COLUMNS", 16)
    gallery, queries = crowded(count, 6, distinct, 0), crowded(12, 6, distinct, 1)
    for k in (1, 3, 20):
        assert nearest(queries, gallery, k).rows.equal(by_the_book(queries, gallery, k))


@pytest.mark.parametrize("among", [True, False])
@pytest.mark.parametrize("width", [1, 5, 60])
@pytest.mark.parametrize("columns", [8192, 100])
def test_candidates_are_the_largest_products_in_descending_order(columns, width, among, monkeypatch):
    monkeypatch.setattr(products, "COLUMNS", columns)
    items = unit(700, 12)
    queries, own = (items, torch.arange(700)) if among else (items[:30], None)
    values, rows = candidates(queries, items, width, own, 1 << 26)
    expected = queries @ items.T
    if among:
        expected.fill_diagonal_(-torch.inf)
    np.testing.assert_allclose(values, expected.topk(width, dim=1).values, atol=1e-6)
    np.testing.assert_allclose(values, np.take_along_axis(expected.numpy(), rows, axis=1), atol=1e-6)
    assert all(len(np.unique(row)) == width for row in rows)


@pytest.mark.parametrize("dim", [2, 3, 64, 300])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
@pytest.mark.parametrize("decay", [0.0, 2.0])
def test_products_of_codes_are_within_their_bound(dim, scale, decay):
    spectrum = torch.arange(1, dim + 1) ** -decay
    queries, gallery = scale * unit(60, dim) * spectrum, unit(90, dim, seed=1) * spectrum
    gallery[7] = 0
    codes = encode(queries), encode(gallery)
    found = coarse_product(codes[0], slice(0, 60), codes[1], slice(0, 90), torch.empty(60, 90)).double()
    error = (found - queries.double() @ gallery.double().T).abs().amax(dim=1)
    assert (error <= coarse_bound(*codes)).all()
    if dim == 300:
        assert float(coarse_bound(*codes).amax()) <= 0.04 * float(
            queries.norm(dim=1).amax() * gallery.norm(dim=1).amax()
        )


def test_speed_of_codes_is_measured_once():
    assert coarse_is_faster() is coarse_is_faster()
    assert coarse_is_faster.cache_info().misses == 1
