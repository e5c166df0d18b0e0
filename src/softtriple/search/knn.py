"""Exact nearest neighbours by cosine similarity, in bounded memory.

**Similarity.** The similarity of two rows is the inner product of their float32 vectors, summed in float64 in one fixed
order (`exact_pairs`). Copies of a vector therefore tie exactly, similarity is symmetric to the last bit, and no result
depends on tile sizes, threads or the BLAS. Neighbours are ordered by similarity, equal ones by row.

**Speed.** Matrix products have none of these properties but are fast, and their error is bounded. They decide every
comparison whose margin exceeds the bound (`Margin`); `exact_pairs` decides the others.

**The bound.** Let u = 2**-24, let x and y be float32 vectors of d numbers, and let s be their inner product.
A float32 product p, summed in any order, satisfies |p - s| <= d u / (1 - d u) * sum_i |x_i y_i| (Higham, *Accuracy and
Stability of Numerical Algorithms*, section 3.1), and sum_i |x_i y_i| <= |x| |y| by Cauchy-Schwarz. With d + 8 in place
of d the bound also covers the denominator and the float64 rounding of `exact_pairs`.

A bfloat16 product multiplies x + a and y + b, where a and b are rounding errors whose norms are measured. Since
(x + a)(y + b) - x y = a y + (x + a) b, it adds |a| |y| + (|x| + |a|) |b| to the float32 bound of the slightly longer
vectors. The result is then itself rounded to bfloat16. Rounding never reverses an order: if p rounded is greater than a
threshold t rounded, then p > t. So products are compared with thresholds rounded to the same type, and the bound need
not contain that last rounding.

**Search.** A pass over all rows keeps a few more candidates than asked for, and they are sorted by exact similarity.
Every other row has a product no greater than that of the last candidate. If that product is below
(k-th exact similarity - bound), no other row can be among the k best, and the query is settled. The few unsettled
queries are searched again: first in float32 if the pass was in bfloat16, then exhaustively.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, overload

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple.errors import UserError

# Candidates beyond k. Float32 rarely misplaces a row by more than one or two places. Bfloat16 left 0.2 % of the queries
# unsettled at the size of Stanford Online Products.
SPARE = 3
COARSE_SPARE = 12
# Memory per candidate while it is scored and sorted, approximately.
CANDIDATE_BYTES = 100
# Large enough for a product at full speed, small enough that a tile stays in cache for its readers.
TILE = 1024
# Memory per tile entry in the worst case: a reader copies it, compares it twice and lists every pair.
ENTRY_BYTES = 96
# With fewer rows or dimensions than this, converting to bfloat16 gains nothing.
_COARSE_SIZE = 256
# The most by which rounded unit vectors exceed a cosine of 1, with room for float16.
_ROUNDING = 1e-3


class Neighbors(NamedTuple):
    """The ``k`` best gallery rows of each query, best first."""

    rows: Int[Tensor, "queries k"]
    scores: Float[Tensor, "queries k"]


class NeighborArrays(NamedTuple):
    """`Neighbors` as NumPy arrays."""

    rows: Int[np.ndarray, "queries k"]
    scores: Float[np.ndarray, "queries k"]


@overload
def nearest(
    queries: NDArray[Any],
    gallery: NDArray[Any],
    k: int,
    *,
    exclude_self: bool = False,
    memory_budget: int = 1 << 30,
) -> NeighborArrays: ...
@overload
def nearest(
    queries: Tensor | list[list[float]],
    gallery: Tensor | list[list[float]],
    k: int,
    *,
    exclude_self: bool = False,
    memory_budget: int = 1 << 30,
) -> Neighbors: ...
def nearest(
    queries: Any, gallery: Any, k: int, *, exclude_self: bool = False, memory_budget: int = 1 << 30
) -> Neighbors | NeighborArrays:
    """The ``k`` rows of ``gallery`` most similar to each of ``queries``.

    Both are rows of float32 vectors of unit length, so that their inner product is the cosine. NumPy arrays give NumPy
    arrays, tensors and lists give tensors, on the device of the queries. With ``exclude_self`` the queries are the
    gallery and row i is not a neighbour of query i; a copy of it in another row is. Where fewer than ``k`` rows are
    left to find, the result has fewer columns.

    Example:
        >>> east, north = [1.0, 0.0], [0.0, 1.0]
        >>> nearest(torch.tensor([east]), torch.tensor([north, east, east]), k=2).rows
        tensor([[1, 2]])
    """
    asked, items = as_rows(queries, "queries").float(), as_rows(gallery, "gallery").float()
    if k < 1:
        raise UserError(f"k = {k}: ask for at least one neighbour")
    if asked.shape[1] != items.shape[1]:
        raise UserError(f"queries have {asked.shape[1]} dimensions and the gallery {items.shape[1]}")
    if exclude_self and asked.shape != items.shape:
        raise UserError("exclude_self: pass the same vectors as queries and gallery")
    own = torch.arange(len(asked), device=asked.device) if exclude_self else None
    depth = torch.full((len(asked),), min(k, len(items)), device=asked.device)
    blocks = [
        top_rows(asked[part], items, depth[part], own=None if own is None else own[part], memory_budget=memory_budget)
        for part in query_blocks(len(asked), min(k, len(items)), memory_budget)
    ]
    rows, scores = (torch.cat(column) for column in zip(*blocks, strict=True))
    # Unit vectors are rounded, which can carry the cosine of two copies past 1. Larger scores are no cosines.
    scores = scores.where(scores.abs() > 1 + _ROUNDING, scores.clamp(-1, 1))
    if isinstance(queries, np.ndarray):
        return NeighborArrays(rows.numpy(), scores.float().numpy())
    return Neighbors(rows, scores.float())


def as_rows(vectors: Any, name: str) -> Float[Tensor, "rows dim"]:
    """``vectors`` (an array, tensor or list of rows) as a floating-point tensor without gradient."""
    try:
        rows = torch.as_tensor(vectors).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: expected rows of numbers, got {type(vectors).__name__} ({error})") from error
    if rows.ndim != 2 or rows.is_complex() or rows.dtype == torch.bool:
        raise UserError(f"{name}: expected rows of numbers, got shape {tuple(rows.shape)} of {rows.dtype}")
    return rows if rows.is_floating_point() else rows.float()


def query_blocks(count: int, k: int, memory_budget: int) -> list[slice]:
    """Runs of ``count`` queries whose candidates fit into half of ``memory_budget``; at least one, which may be empty.

    Example:
        >>> query_blocks(5, k=97, memory_budget=60_000)
        [slice(0, 3, None), slice(3, 5, None)]
    """
    size = max(1, memory_budget // (2 * CANDIDATE_BYTES * (k + SPARE)))
    return [slice(start, min(start + size, count)) for start in range(0, max(1, count), size)]


def top_rows(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    depth: Int[Tensor, " queries"],
    *,
    own: Int[Tensor, " queries"] | None = None,
    ids: Int[Tensor, " gallery"] | None = None,
    memory_budget: int,
    coarse: bool | None = None,
) -> Neighbors:
    """The ``depth[i]`` best gallery rows of query i, with float64 scores; what follows them in row i is arbitrary.

    ``own[i]`` is the gallery row that is query i itself, which is left out. ``ids`` are the row numbers to return, and
    to order equal similarities by, of a gallery that has been rearranged. ``coarse`` forces or forbids bfloat16.
    """
    available = len(gallery) - (own is not None)
    depth = depth.clamp(max=available)
    k = int(depth.amax()) if len(depth) else 0
    # Selecting from tiles is slower than faiss, which selects while it multiplies, unless candidates are few.
    few = 16 * (k + SPARE) <= queries.shape[1]
    if coarse is None:
        coarse = few and coarse_pays(queries, gallery)
    margin = Margin.of(queries, gallery, coarse=coarse)
    spare = COARSE_SPARE if coarse else SPARE
    width = min(k + spare, available)
    if width == 0:
        return Neighbors(depth.new_empty(len(queries), 0), queries.new_empty(len(queries), 0).double())
    last = (depth + spare - 1).clamp(max=width - 1)[:, None]  # column of the last candidate that a query needs
    among = own is not None and len(queries) == len(gallery)  # half of the products will do
    if queries.device.type == "cpu" and not coarse and not (few and among):
        values, found = _flat_candidates(queries, gallery, width, own)
    else:
        drawn = tiles(queries, None if among else gallery, memory_budget // 2, own=own, coarse=coarse)
        values, found = _tiled_candidates(drawn, queries, last, width)
    owners = torch.arange(len(found), device=found.device).repeat_interleave(width)
    scores = exact_pairs(queries, gallery, owners, found.flatten(), memory_budget).view(found.shape)
    rows, scores = _sorted_by_score(found if ids is None else ids[found], scores)
    if k and width < available:
        needed = scores.gather(1, (depth - 1).clamp(min=0)[:, None])[:, 0]
        excluded = values.gather(1, last)[:, 0]
        unsettled = ((excluded >= margin.below(needed)) & (depth > 0)).nonzero()[:, 0]
        if coarse and len(unsettled):
            itself = None if own is None else own[unsettled]
            again = top_rows(
                queries[unsettled],
                gallery,
                depth[unsettled],
                own=itself,
                ids=ids,
                memory_budget=memory_budget,
                coarse=False,
            )
            columns = again.rows.shape[1]
            rows[unsettled, :columns], scores[unsettled, :columns] = again
        elif len(unsettled):
            for query in unsettled.tolist():
                with full_float32():
                    products = gallery @ queries[query]
                if own is not None:
                    products[own[query]] = -torch.inf
                perhaps = (products >= margin.below(needed[query])).nonzero()[:, 0]
                exact = exact_pairs(queries, gallery, torch.full_like(perhaps, query), perhaps, memory_budget)
                best = _sorted_by_score(perhaps if ids is None else ids[perhaps], exact)
                count = int(depth[query])
                rows[query, :count], scores[query, :count] = (column[:count] for column in best)
    return Neighbors(rows[:, :k], scores[:, :k])


def exact_pairs(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    rows: Int[Tensor, " pairs"],
    cols: Int[Tensor, " pairs"],
    memory_budget: int,
) -> Float[Tensor, " pairs"]:
    """Similarity of the query ``rows[p]`` to the gallery row ``cols[p]`` in float64, for every pair ``p``."""
    # A megabyte at a time stays in cache and in reused buffers. index_select is twice as fast as [].
    step = max(1, min(memory_budget // 64, 1 << 17) // max(1, queries.shape[1]))
    scores = torch.empty(len(rows), dtype=torch.float64, device=queries.device)
    for part in _slices(0, len(rows), step):
        # A product and a sum over the last dimension, not a matrix product: every pair is summed in the same order.
        product = queries.index_select(0, rows[part]).double().mul_(gallery.index_select(0, cols[part]))
        scores[part] = product.sum(dim=1)
    return scores


class Margin(NamedTuple):
    """How far a product of two rows can be from `exact_pairs` before it is rounded to ``dtype``."""

    dtype: torch.dtype
    bound: float

    @staticmethod
    def of(queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"], *, coarse: bool) -> "Margin":
        """The margin of float32 products of these rows, or of bfloat16 products if ``coarse``; see the module."""
        x, y = _largest_norm(queries), _largest_norm(gallery)
        bound = (queries.shape[1] + 8) * 2.0**-24 * x * y
        if not coarse:
            return Margin(torch.float32, bound)
        a, b = (_largest_norm(vectors - vectors.bfloat16().float()) for vectors in (queries, gallery))
        return Margin(torch.bfloat16, a * y + (x + a) * b + 1.01 * bound)

    def above(self, threshold: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """A product greater than this proves that the similarity is greater than ``threshold``."""
        return (threshold + self.bound).to(self.dtype).float()

    def below(self, threshold: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """A product less than this proves that the similarity is less than ``threshold``."""
        return (threshold - self.bound).to(self.dtype).float()


def coarse_pays(queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"]) -> bool:
    """Whether bfloat16 products of these rows are faster; affects the time, never the result."""
    sizes = len(queries), len(gallery), queries.shape[1]
    return queries.device.type == "cpu" and min(sizes) >= _COARSE_SIZE and _cpu_has_bfloat16()


@cache
def _cpu_has_bfloat16() -> bool:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in older versions of torch
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class Tile(NamedTuple):
    """Products of the queries ``rows`` and the gallery ``cols``, as float32; valid until the next tile is drawn."""

    rows: slice
    cols: slice
    values: Float[Tensor, "rows cols"]


def tiles(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"] | None,
    memory_budget: int,
    *,
    own: Int[Tensor, " queries"] | None = None,
    coarse: bool = False,
) -> Iterator[Tile]:
    """Every query against every gallery row, one tile at a time; ``coarse`` multiplies in bfloat16.

    The product of query i with row ``own[i]``, itself, is -inf. Without a gallery the queries are compared among
    themselves: half of the products are computed, and a tile beside the diagonal is yielded again as its transpose.
    """
    columns = queries if gallery is None else gallery
    if gallery is None:
        own = torch.arange(len(queries), device=queries.device)
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
            with full_float32():  # not around a yield: the reader of the tile has its own settings
                torch.mm(queries[rows], columns[cols].T, out=multiplied)
            if coarse:
                values.copy_(multiplied)
            if own is not None:
                here = ((own[rows] >= cols.start) & (own[rows] < cols.stop)).nonzero()[:, 0]
                values[here, own[rows][here] - cols.start] = -torch.inf
            yield Tile(rows, cols, values)
            if gallery is None and rows != cols:
                yield Tile(cols, rows, values.T)


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


def _flat_candidates(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    width: int,
    own: Int[Tensor, " queries"] | None,
) -> tuple[Float[Tensor, "queries width"], Int[Tensor, "queries width"]]:
    """The best ``width`` products of each query and their rows, by faiss."""
    if not len(queries):
        return queries.new_empty(0, width), torch.empty(0, width, dtype=torch.int64)
    asked, items = (vectors.detach().contiguous().numpy() for vectors in (queries, gallery))
    found = faiss.knn(asked, items, width + (own is not None), metric=faiss.METRIC_INNER_PRODUCT)
    values, rows = (torch.from_numpy(column) for column in found)
    if own is not None:
        itself = rows == own[:, None]
        itself[~itself.any(dim=1), -1] = True  # copies can push a row off its own list: drop the last one instead
        values, rows = (column[~itself].view(-1, width) for column in (values, rows))
    return values, rows


def _tiled_candidates(
    drawn: Iterator[Tile], queries: Float[Tensor, "queries dim"], last: Int[Tensor, "queries 1"], width: int
) -> tuple[Float[Tensor, "queries width"], Int[Tensor, "queries width"]]:
    """The best products of each query and their rows, best first, at least as far as column ``last``."""
    best = queries.new_full((len(queries), width), -torch.inf)
    best_rows = torch.zeros(len(queries), width, dtype=torch.int64, device=queries.device)
    for tile in drawn:
        values, rows = best[tile.rows], best_rows[tile.rows]
        worst = values.gather(1, last[tile.rows])
        # Reading a row's maximum is far cheaper than selecting from it, and most rows have nothing new to offer.
        hot = (tile.values.amax(dim=1, keepdim=True) > worst).nonzero()[:, 0]
        if not len(hot):
            continue
        offered = take_rows(tile.values, hot).contiguous()
        better = int((offered > worst[hot]).sum(dim=1).amax())  # selecting fewer is several times as fast
        found = offered.topk(min(width, better), dim=1)
        merged_rows = torch.cat([rows[hot], found.indices + tile.cols.start], dim=1)
        values[hot], kept = torch.cat([values[hot], found.values], dim=1).topk(width, dim=1)
        rows[hot] = merged_rows.gather(1, kept)
    return best, best_rows


def _sorted_by_score(
    rows: Int[Tensor, "... rows"], scores: Float[Tensor, "... rows"]
) -> tuple[Int[Tensor, "... rows"], Float[Tensor, "... rows"]]:
    """Best score first; sorting by row before the stable sort by score leaves equal scores in the order of rows."""
    rows, by_row = rows.sort(dim=-1)
    scores, by_score = scores.gather(-1, by_row).sort(dim=-1, descending=True, stable=True)
    return rows.gather(-1, by_score), scores


def _largest_norm(vectors: Float[Tensor, "rows dim"]) -> float:
    """An upper bound of the lengths of the rows, including float32's own error."""
    largest = float(torch.linalg.vector_norm(vectors, dim=1).amax()) if len(vectors) else 0.0
    if not math.isfinite(largest):
        raise UserError("vectors hold NaN or infinite numbers, or are too long: normalise them to unit length")
    return 1.01 * largest


def _slices(start: int, stop: int, step: int) -> Iterator[slice]:
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))
