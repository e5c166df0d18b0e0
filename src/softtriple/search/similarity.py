"""Exact similarities: what a float32 product can decide, and what it must leave to float64.

The similarity of two rows is the inner product of their float32 vectors, accumulated in float64 in one fixed
order (`exact_pairs`). So copies of a vector tie exactly, the similarity is symmetric to the last bit, and no result
depends on tile sizes, threads or the BLAS in use. Matrix products have none of these properties, but they
are fast and their error has a bound (`error_bound`). Search and rank counting therefore decide by float32 tiles
(`tiles`) wherever the margin exceeds the bound, and by `exact_pairs` for the few pairs where it does not.

Processors with bfloat16 instructions multiply such numbers twice as fast or more. Tiles of them leave more pairs to
`exact_pairs`, so they suit readers with one threshold a row (`coarse_pays`, ``coarse=True``).
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Large enough that a product runs at full speed, small enough that a tile stays in cache for its readers.
TILE = 1024

# Fewer rows or dimensions than this are quick in any case.
_TRIED = 256

# A reader may copy the entries of a tile, compare the copy twice and list every pair of it, at worst.
ENTRY_BYTES = 96


class Tile(NamedTuple):
    """Similarities of the queries ``rows`` to the gallery ``cols``, in float32; valid until the next tile is drawn."""

    rows: slice
    cols: slice
    values: Float[Tensor, "rows cols"]


def take_rows(values: Float[Tensor, "rows cols"], chosen: Int[Tensor, " chosen"]) -> Float[Tensor, "chosen cols"]:
    """A copy of some rows of a tile, laid out in memory as the tile is; several times as fast as indexing."""
    if values.is_contiguous():
        return values.index_select(0, chosen)
    # A transposed tile: pick columns of what lies in memory.
    return values.T.index_select(1, chosen).T


def tiles(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"] | None,
    memory_budget: int,
    *,
    self_at: int | None = None,
    coarse: bool = False,
) -> Iterator[Tile]:
    """Every query against every gallery row, a tile at a time; ``coarse``: products of bfloat16, as float32.

    Where query i is the gallery row ``self_at + i``, its similarity to that row is -inf. Without a gallery the
    queries are compared among themselves: half of the products are computed, an off-diagonal tile is handed out a
    second time as its transpose, and ``self_at`` is 0.
    """
    columns = queries if gallery is None else gallery
    side = tile_side(memory_budget)
    # One buffer for all tiles: touching fresh memory costs more than reading a tile.
    buffer = queries.new_empty(min(side, len(queries)) * min(side, len(columns)))
    if coarse:
        queries, columns = queries.bfloat16(), columns.bfloat16()
    product = queries.new_empty(buffer.shape) if coarse else buffer
    for rows in _slices(0, len(queries), side):
        for cols in _slices(rows.start if gallery is None else 0, len(columns), side):
            shape = (rows.stop - rows.start, cols.stop - cols.start)
            values, multiplied = (part[: shape[0] * shape[1]].view(shape) for part in (buffer, product))
            with full_float32():  # not around a yield: whoever reads the tile has settings of their own
                torch.mm(queries[rows], columns[cols].T, out=multiplied)
            if coarse:
                values.copy_(multiplied)
            if gallery is None or self_at is not None:
                _hide_self(values, rows.start + (self_at or 0) - cols.start)
            yield Tile(rows, cols, values)
            if gallery is None and rows != cols:
                yield Tile(cols, rows, values.T)


def tile_side(memory_budget: int) -> int:
    """Rows and columns of a tile such that the tile and the pairs drawn from it stay within ``memory_budget``."""
    return max(1, min(TILE, int((memory_budget / ENTRY_BYTES) ** 0.5)))


def error_bound(queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"]) -> float:
    """How far a float32 product of any of these rows, summed in any order, can be from `exact_pairs`."""
    # |error| <= d u / (1 - d u) * sum |x_i y_i|, and that sum is at most |x| |y|; u = 2**-24. The 8 pays for
    # the denominator, for float64's own rounding and for rounding thresholds to float32.
    return (queries.shape[1] + 8) * 2.0**-24 * _largest_norm(queries) * _largest_norm(gallery)


def coarse_error_bound(queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"]) -> float:
    """How far a product of these rows in bfloat16 can be from `exact_pairs`, before it is itself rounded.

    Rounding keeps order: a product that comes out above (below) a threshold rounded to bfloat16 was above (below) it.
    """
    # (x + a)(y + b) - x y = a y + (x + a) b; the sum of products has float32's own error, of slightly longer vectors.
    lost = [_largest_norm(vectors - vectors.bfloat16().float()) for vectors in (queries, gallery)]
    longest = [_largest_norm(vectors) for vectors in (queries, gallery)]
    return lost[0] * longest[1] + (longest[0] + lost[0]) * lost[1] + 1.01 * error_bound(queries, gallery)


def coarse_pays(queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"]) -> bool:
    """Whether this machine multiplies these vectors much faster in bfloat16, by trying it on a few of them.

    What is computed does not depend on the answer, only how long it takes.
    """
    few = queries[:_TRIED], gallery[:_TRIED]
    if queries.device.type != "cpu" or min(map(len, few)) < _TRIED or queries.shape[1] < _TRIED:
        return False
    seconds = []
    for left, right in ((part.bfloat16() for part in few), few):
        torch.mm(left, right.T)
        start = time.perf_counter()
        torch.mm(left, right.T)
        seconds.append(time.perf_counter() - start)
    return 1.5 * seconds[0] < seconds[1]


def exact_pairs(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    rows: Int[Tensor, " pairs"],
    cols: Int[Tensor, " pairs"],
    memory_budget: int,
) -> Float[Tensor, " pairs"]:
    """Similarity of the query ``rows[p]`` to the gallery row ``cols[p]`` in float64, for every pair ``p``."""
    # A megabyte at a time stays in cache, and in buffers that are used again. index_select is twice as fast as [].
    step = max(1, min(memory_budget // 64, 1 << 17) // max(1, queries.shape[1]))
    scores = torch.empty(len(rows), dtype=torch.float64, device=queries.device)
    for part in _slices(0, len(rows), step):
        # A product and a sum over the last dimension, not a matrix product: every pair is summed in the same order.
        product = queries.index_select(0, rows[part]).double().mul_(gallery.index_select(0, cols[part]))
        scores[part] = product.sum(dim=1)
    return scores


@contextmanager
def full_float32() -> Iterator[None]:
    """Run matrix products in full float32 even where training has allowed TF32 or bfloat16 for them."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def _hide_self(values: Float[Tensor, "rows cols"], offset: int) -> None:
    """Set the entries (i, i + offset) to -inf."""
    if -values.shape[0] < offset < values.shape[1]:
        values.diagonal(offset).fill_(-torch.inf)


def _largest_norm(vectors: Float[Tensor, "rows dim"]) -> float:
    """An upper bound of the lengths of the rows, float32's own error included."""
    largest = float(torch.linalg.vector_norm(vectors, dim=1).amax()) if len(vectors) else 0.0
    if not math.isfinite(largest):
        raise ValueError("vectors hold NaN or infinite numbers, or are too long: bring them to unit length")
    return 1.01 * largest


def _slices(start: int, stop: int, step: int) -> Iterator[slice]:
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))
