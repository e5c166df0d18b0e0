"""Products of queries and gallery rows, in bounded memory, and the largest of each query.

Nothing here is exact: `softtriple.search.knn` decides what the error of products leaves open.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

# The best products of each query, best first, and their rows.
Candidates = tuple[Float[Tensor, "queries width"], Int[Tensor, "queries width"]]

# With fewer queries reading the gallery takes the time, and faiss reads it best.
SEVERAL = 4
# Numbers in a group of which only the largest is looked at first: the larger, the fewer maxima there are to compare.
GROUPS = (128, 64, 32, 16, 8, 4)
# Bytes of products that stay in cache while the largest are selected, and how many there are of one query.
CACHE = 1 << 24
COLUMNS = 8192
# Large enough for a product at full speed, small enough that a tile stays in cache for its readers.
TILE = 1024
# Memory per tile entry in the worst case: a reader copies it, compares it twice and lists every pair.
ENTRY_BYTES = 96


def candidates(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    width: int,
    own: Int[Tensor, " queries"] | None,
    memory_budget: int,
) -> tuple[Float[np.ndarray, "queries width"], Int[np.ndarray, "queries width"]]:
    """The ``width`` best products of each query, best first, and their rows; a query is not its own candidate.

    The products have the type of the queries: float32, or float64.
    """
    if len(queries) < SEVERAL and queries.device.type == "cpu" and own is None and queries.dtype == gallery.dtype:
        one, other = (vectors.contiguous().numpy() for vectors in (queries, gallery))
        return faiss.knn(one, other, width, metric=faiss.METRIC_INNER_PRODUCT)
    span = _aligned(min(len(gallery), max(COLUMNS, 32 * width)))
    step = max(1, min(memory_budget // 16, CACHE) // (4 * span))
    buffer = queries.new_empty(min(step, len(queries)) * span)
    values, rows = queries.new_empty(len(queries), width), queries.new_empty(len(queries), width, dtype=torch.int64)
    for part in slices(0, len(queries), step):
        best: list[Candidates] = []
        for cols in slices(0, len(gallery), span):
            shape = (part.stop - part.start, _aligned(cols.stop - cols.start))
            products = buffer[: shape[0] * shape[1]].view(shape)
            products[:, cols.stop - cols.start :] = -torch.inf
            with full_float32():
                items = gallery[cols].to(queries.dtype)
                torch.mm(queries[part], items.T, out=products[:, : len(items)])
            leave_out(products, own, part, cols)
            found, places = _largest(products, min(width, shape[1]))
            best.append((found, places + cols.start))
        if len(best) == 1:
            values[part], rows[part] = best[0]
            continue
        found, places = (torch.cat(column, dim=1) for column in zip(*best, strict=True))
        values[part], chosen = found.topk(width, dim=1)
        rows[part] = places.gather(1, chosen)
    return values.cpu().numpy(), rows.cpu().numpy()


def leave_out(
    products: Float[Tensor, "some cols"],
    own: Int[Tensor, " queries"] | None,
    asked: slice | Int[Tensor, " some"],
    cols: slice,
) -> None:
    """Set the product of each of the queries ``asked`` with ``own``, its row among ``cols``, to -inf."""
    if own is not None:
        mine = own[asked]
        here = ((mine >= cols.start) & (mine < cols.stop)).nonzero()[:, 0]
        products[here, mine[here] - cols.start] = -torch.inf


def _aligned(count: int) -> int:
    """``count``, rounded up: a product into rows that begin at multiples of 128 numbers can be twice as fast."""
    return -(-count // 128) * 128


def _largest(products: Float[Tensor, "queries padded"], width: int) -> Candidates:
    """The largest ``width`` of each row, in descending order, and their places."""
    count = products.shape[1]
    group = next((size for size in GROUPS if 4 * width * size <= count), 1)
    if group == 1 or products.device.type != "cpu":
        return products.topk(width, dim=1)
    # The largest numbers of groups are some of the numbers of a row: at least ``width`` of the row reach the limit, and
    # few more do. NumPy partitions, lists and sorts many times as fast as torch.
    maxima = products.view(len(products), group, -1).amax(dim=1).numpy()
    limit = np.partition(maxima, -width, axis=1)[:, -width, None]
    numbers = products.numpy()
    large = np.flatnonzero(numbers >= limit)
    starts = np.arange(len(products) + 1) * count
    sizes = np.diff(np.searchsorted(large, starts))
    filled = np.arange(sizes.max()) < sizes[:, None]
    values = np.full(filled.shape, np.inf, dtype=numbers.dtype)
    places = np.zeros(filled.shape, dtype=np.int64)
    values[filled], places[filled] = -numbers.ravel()[large], large
    order = np.argsort(values, axis=1)[:, :width]
    values, places = (np.take_along_axis(column, order, axis=1) for column in (values, places))
    return torch.from_numpy(-values), torch.from_numpy(places - starts[:-1, None])


def tiles(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    memory_budget: int,
    *,
    own: Int[Tensor, " queries"] | None = None,
    coarse: "tuple[Codes, Codes] | None" = None,
) -> Iterator[tuple[slice, slice, Float[Tensor, "rows cols"]]]:
    """Float32 products of all queries with all gallery rows: slices of both and their products, a tile at a time.

    A tile is valid until the next one is drawn. The product of query i with row ``own[i]``, itself, is -inf. If every
    row is a query, half of the products are computed, and a tile beside the diagonal is yielded again as its transpose.
    With ``coarse`` codes of both the products are those of the codes.
    """
    among = own is not None and len(queries) == len(gallery)
    side = tile_side(memory_budget)
    # One buffer for all tiles: touching fresh memory costs more than reading a tile.
    buffer = queries.new_empty(min(side, len(queries)) * min(side, len(gallery)))
    for rows in slices(0, len(queries), side):
        for cols in slices(rows.start if among else 0, len(gallery), side):
            shape = (rows.stop - rows.start, cols.stop - cols.start)
            values = buffer[: shape[0] * shape[1]].view(shape)
            if coarse is not None:
                coarse_product(coarse[0], rows, coarse[1], cols, values)
            else:
                with full_float32():  # not around a yield: the reader of the tile has its own settings
                    torch.mm(queries[rows], gallery[cols].T, out=values)
            leave_out(values, own, rows, cols)
            yield rows, cols, values
            if among and rows != cols:
                yield cols, rows, values.T


class Codes(NamedTuple):
    """Rotated vectors, rounded to ``scales`` times 8-bit integers; lengths of these and of what rounding leaves."""

    integers: Int[Tensor, "rows dim"]
    scales: Float[Tensor, " rows"]
    lengths: Float[Tensor, " rows"]
    residuals: Float[Tensor, " rows"]


def encode(vectors: Float[Tensor, "rows dim"]) -> Codes:
    """The 8-bit codes of ``vectors``.

    A rotation changes no product, and spreads over all numbers what a few would otherwise hold: without it, the largest
    number of a vector would make the steps of all others coarse.
    """
    random = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(2 * [vectors.shape[1]], dtype=torch.float64, generator=random))
    integers, scales = torch.empty_like(vectors, dtype=torch.int8), vectors.new_empty(len(vectors))
    lengths, residuals = torch.empty(2, len(vectors), dtype=torch.float64)
    for part in slices(0, len(vectors), 4 * TILE):
        rotated = vectors[part].double() @ rotation
        scales[part] = rotated.abs().amax(dim=1).clamp(min=1e-30) / 127
        integers[part] = rounded = (rotated / scales[part, None]).round_().clamp_(-127, 127)
        rounded *= scales[part, None]
        lengths[part], residuals[part] = rounded.norm(dim=1), (rotated - rounded).norm(dim=1)
    return Codes(integers, scales, lengths, residuals)


def coarse_bound(queries: Codes, gallery: Codes) -> Float[Tensor, " queries"]:
    """How far products of the codes of each query can be from those of the vectors.

    Let x = a + e and y = b + f, where a and b are the coded vectors. Then x y - a b = e b + e f + a f, which is at most
    |e| |b| + |e| |f| + |a| |f| by Cauchy-Schwarz. The product of the integers is exact. Multiplying it by two scales in
    float32 adds less than 2**-22 |a| |b|, and so does the rotation, in float64, of up to a million dimensions.
    """
    a, e, b, f = queries.lengths, queries.residuals, gallery.lengths.amax(), gallery.residuals.amax()
    return e * b + e * f + a * f + 2.0**-21 * a * b


def coarse_product(
    queries: Codes, rows: slice, gallery: Codes, cols: slice, out: Float[Tensor, "rows cols"]
) -> Float[Tensor, "rows cols"]:
    """Products of the coded vectors, of at least two dimensions, of some rows, in ``out``."""
    integers = torch._int_mm(queries.integers[rows], gallery.integers[cols].T)
    return torch.mul(integers, gallery.scales[cols], out=out).mul_(queries.scales[rows, None])


@cache
def coarse_is_faster() -> bool:
    """Whether this processor multiplies 8-bit integers without saturation and twice as fast as float32 numbers.

    Measured once, in milliseconds. Instructions older than VNNI saturate sums of two products of large integers.
    """
    large = torch.full((512, 512), 127, dtype=torch.int8)
    large[::3] = -127
    if not torch._int_mm(large, large.T).double().equal(large.double() @ large.double().T):
        return False
    vectors = torch.linspace(-1, 1, 512 * 512).view(512, 512)
    codes, out, whole = encode(vectors), torch.empty(512, 512), slice(0, 512)

    def seconds(multiply: Callable[[], Tensor]) -> float:
        start = time.perf_counter()
        multiply()
        return time.perf_counter() - start

    slow = min(seconds(lambda: torch.mm(vectors, vectors.T, out=out)) for _ in range(5))
    return slow >= 2 * min(seconds(lambda: coarse_product(codes, whole, codes, whole, out)) for _ in range(5))


def tile_side(memory_budget: int) -> int:
    """Rows and columns of a tile such that the tile and the pairs drawn from it stay within ``memory_budget``."""
    return max(1, min(TILE, int((memory_budget / ENTRY_BYTES) ** 0.5)))


def take_rows(values: Float[Tensor, "rows cols"], chosen: Int[Tensor, " chosen"]) -> Float[Tensor, "chosen cols"]:
    """A copy of some rows of a tile in the tile's own memory layout; several times as fast as indexing."""
    if values.is_contiguous():
        return values.index_select(0, chosen)
    return values.T.index_select(1, chosen).T  # a transposed tile: columns of what lies in memory


@contextmanager
def full_float32() -> Iterator[None]:
    """Run matrix products in full float32 even where training has allowed TF32 or bfloat16 for them."""
    allowed = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(allowed)


def slices(start: int, stop: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most ``step`` from ``start`` to ``stop``."""
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))
