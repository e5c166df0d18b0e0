"""Exact nearest neighbours and ranks by cosine similarity, in bounded memory.

**Similarity.** The similarity of two rows is the inner product of their float32 vectors, summed in float64 in one fixed
order (`exact_pairs`). Copies of a vector therefore tie exactly, similarity is symmetric to the last bit, and no result
depends on tile sizes, threads or the BLAS. Neighbours are ordered by similarity, equal ones by row.

**Speed.** Float32 matrix products have none of these properties, but they are fast and their error is bounded. They
decide every comparison whose margin exceeds the bound; `exact_pairs` decides the others.

**The bound.** Let u = 2**-24, let x and y be float32 vectors of d numbers, and let s be their inner product.
A float32 product p, summed in any order, satisfies |p - s| <= d u / (1 - d u) * sum_i |x_i y_i| (Higham, *Accuracy and
Stability of Numerical Algorithms*, section 3.1), and sum_i |x_i y_i| <= |x| |y| by Cauchy-Schwarz. With d + 8 in place
of d the bound also covers the denominator and the float64 rounding of `exact_pairs`: it is `error_bound`.

**Why the k nearest are exact.** One pass over the products keeps a few more than k candidates per query and sorts them
by exact similarity. The product of any other row is at most that of the last candidate. If that is less than the
k-th exact similarity minus the bound, the exact similarity of every other row is below the k-th, and the query is
settled. For the few queries that are not, every row whose product reaches that limit is scored exactly: all others
are below the k-th by the same argument.

**Why ranks are exact.** The rank of a query's first hit is one plus the number of rows before its best positive, whose
exact similarity t is known. A product above t + bound proves that a row is before it and one below t - bound that it is
not; the rows between are scored exactly. The limits are rounded to float32, the type of the products. Rounding to
nearest is monotonic, so no product changes sides.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, overload

import faiss
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple.errors import UserError

# Candidates beyond k: float32 rarely misplaces a row by more than one or two places.
SPARE = 3
# Memory per candidate while it is scored and sorted, approximately.
CANDIDATE_BYTES = 100
# Large enough for a product at full speed, small enough that a tile stays in cache for its readers.
TILE = 1024
# Memory per tile entry in the worst case: a reader copies it, compares it twice and lists every pair.
ENTRY_BYTES = 96
# The most by which rounded unit vectors exceed a cosine of 1, with a margin for float16.
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
    check_k(k)
    if asked.shape[1] != items.shape[1]:
        raise UserError(f"queries have {asked.shape[1]} dimensions and the gallery {items.shape[1]}")
    if exclude_self and asked.shape != items.shape:
        raise UserError("exclude_self: pass the same vectors as queries and gallery")
    own = torch.arange(len(asked), device=asked.device) if exclude_self else None
    blocks = [
        top_rows(asked[part], items, k, own=None if own is None else own[part], memory_budget=memory_budget)
        for part in query_blocks(len(asked), min(k, len(items)), memory_budget)
    ]
    rows, scores = (torch.cat(column) for column in zip(*blocks, strict=True))
    # Unit vectors are rounded, which can carry the cosine of two copies past 1. Larger scores are no cosines.
    scores = scores.where(scores.abs() > 1 + _ROUNDING, scores.clamp(-1, 1))
    if isinstance(queries, np.ndarray):
        return NeighborArrays(rows.numpy(), scores.float().numpy())
    return Neighbors(rows, scores.float())


def check_k(k: int) -> None:
    """Require a positive number of neighbours."""
    if k < 1:
        raise UserError(f"k = {k}: ask for at least one neighbour")


def as_rows(vectors: Any, name: str) -> Float[Tensor, "rows dim"]:
    """``vectors`` (an array, tensor or list of rows) as a floating-point tensor without gradient."""
    try:
        rows = torch.as_tensor(vectors).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: expected rows of numbers, got {type(vectors).__name__} ({error})") from error
    if rows.ndim != 2 or rows.is_complex() or rows.dtype == torch.bool:
        raise UserError(f"{name}: expected rows of numbers, got shape {tuple(rows.shape)} of {rows.dtype}")
    return rows if rows.is_floating_point() else rows.float()


def first_hit_ranks(
    embeddings: Float[Tensor, "queries dim"],
    labels: Int[Tensor, " queries"],
    *,
    gallery: Float[Tensor, "gallery dim"] | None = None,
    gallery_labels: Int[Tensor, " gallery"] | None = None,
    own: Int[Tensor, " queries"] | None = None,
    memory_budget: int = 1 << 30,
) -> Int[Tensor, " queries"]:
    """Rank, from 1, of the first neighbour of each query that has the query's class; 0 where there is none.

    The rank is counted and not read off a neighbour list, so it may be any size. Without a gallery every item is
    searched among all the others. ``own[i]`` is the gallery row that is query i itself, which is left out. Vectors are
    float32 and of unit length.

    Example:
        Three items on a circle, at 0, 10 and 30 degrees; the first and the last are one class.

        >>> angle = torch.tensor([0.0, 10.0, 30.0]).deg2rad()
        >>> items = torch.stack([angle.cos(), angle.sin()], dim=1)
        >>> first_hit_ranks(items, torch.tensor([7, 8, 7]))
        tensor([2, 0, 2])
    """
    if (gallery is None) != (gallery_labels is None):
        raise UserError("gallery and gallery_labels: pass both or neither")
    if gallery is None or gallery_labels is None:
        gallery, gallery_labels = embeddings, labels
        own = torch.arange(len(labels), device=labels.device)
    bound = error_bound(embeddings, gallery)
    best, best_row = _best_positives(embeddings, labels, gallery, gallery_labels, own, memory_budget)
    surely, perhaps = ((best + margin).float()[:, None] for margin in (bound, -bound))
    before = torch.zeros_like(best_row)
    for rows, cols, values in tiles(embeddings, gallery, memory_budget, own=own):
        # No positive comes before the best one, so labels are not needed here. In most tiles few queries have anything
        # that could; a row's maximum tells.
        hot = (values.amax(dim=1, keepdim=True) >= perhaps[rows]).nonzero()[:, 0]
        values, asked = take_rows(values, hot), hot + rows.start
        above = values > surely[asked]
        before[asked] += above.sum(dim=1)
        pairs = ((values >= perhaps[asked]) ^ above).nonzero()
        asked, found = asked[pairs[:, 0]], pairs[:, 1] + cols.start
        scores = exact_pairs(embeddings, gallery, asked, found, memory_budget)
        tied = (scores == best[asked]) & (found < best_row[asked])
        before.index_add_(0, asked, ((scores > best[asked]) | tied).long())
    return torch.where(best < torch.inf, before + 1, 0)


def _best_positives(
    queries: Float[Tensor, "queries dim"],
    labels: Int[Tensor, " queries"],
    gallery: Float[Tensor, "gallery dim"],
    gallery_labels: Int[Tensor, " gallery"],
    own: Int[Tensor, " queries"] | None,
    memory_budget: int,
) -> tuple[Float[Tensor, " queries"], Int[Tensor, " queries"]]:
    """Exact similarity of each query to its first positive, and the row of that; infinity where it has none."""
    by_class, order = gallery_labels.sort(stable=True)
    first, last = (torch.searchsorted(by_class, labels, right=right) for right in (False, True))
    counts = last - first
    best = torch.full(labels.shape, torch.inf, dtype=torch.float64, device=labels.device)
    best_row = torch.full_like(labels, len(gallery), dtype=torch.int64)
    for part in query_blocks(len(labels), int(counts.amax()) if len(counts) else 0, memory_budget):
        # Query i of the block is paired with each of its counts[i] positives, which are adjacent in the order of class.
        count = counts[part]
        asked = torch.arange(len(count), device=labels.device).repeat_interleave(count)
        place = torch.arange(len(asked), device=labels.device) - (count.cumsum(0) - count)[asked]
        rows = order[first[part][asked] + place]
        if own is not None:
            other = rows != own[part][asked]
            asked, rows = asked[other], rows[other]
        scores = exact_pairs(queries[part], gallery, asked, rows, memory_budget)
        best[part].scatter_reduce_(0, asked, scores, "amax", include_self=False)
        tied = scores == best[part][asked]
        best_row[part].scatter_reduce_(0, asked[tied], rows[tied], "amin")
    return best, best_row


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
    k: int,
    *,
    own: Int[Tensor, " queries"] | None = None,
    memory_budget: int,
) -> Neighbors:
    """The ``k`` best gallery rows of each query, or all if there are fewer, with float64 scores.

    ``own[i]`` is the gallery row that is query i itself, which is left out; the rows ascend.
    """
    bound = error_bound(queries, gallery)
    available = len(gallery) - (own is not None)
    width, k = min(k + SPARE, available), min(k, available)
    if not k or not len(queries):
        empty = queries.new_empty(len(queries), k)
        return Neighbors(empty.long(), empty.double())
    # Among themselves half of the products will do. But selecting from tiles is slower than faiss, which selects while
    # it multiplies, unless candidates are few.
    halved = own is not None and len(queries) == len(gallery) and 16 * width <= queries.shape[1]
    candidates = _flat_candidates if queries.device.type == "cpu" and not halved else _tiled_candidates
    values, rows = candidates(queries, gallery, width, own, memory_budget)
    owners = torch.arange(len(rows), device=rows.device).repeat_interleave(width)
    scores = exact_pairs(queries, gallery, owners, rows.flatten(), memory_budget).view(rows.shape)
    rows, scores = (column[:, :k] for column in _sorted_by_score(rows, scores))
    limit = scores[:, -1] - bound
    unsettled = values[:, -1] >= limit if width < available else torch.zeros_like(limit, dtype=torch.bool)
    for query in unsettled.nonzero()[:, 0].tolist():
        with full_float32():
            products = gallery @ queries[query]
        if own is not None:
            products[own[query]] = -torch.inf
        perhaps = (products >= limit[query]).nonzero()[:, 0]
        exact = exact_pairs(queries, gallery, torch.full_like(perhaps, query), perhaps, memory_budget)
        rows[query], scores[query] = (column[:k] for column in _sorted_by_score(perhaps, exact))
    return Neighbors(rows, scores)


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


def error_bound(queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"]) -> float:
    """How far a float32 product of a query and a gallery row can be from `exact_pairs`; see the module."""
    bound = (queries.shape[1] + 8) * 2.0**-24
    for vectors in (queries, gallery):
        largest = float(torch.linalg.vector_norm(vectors, dim=1).amax()) if len(vectors) else 0.0
        if not math.isfinite(largest):
            raise UserError("vectors hold NaN or infinite numbers, or are too long: normalise them to unit length")
        bound *= 1.01 * largest  # the norm has an error of its own
    return bound


def tiles(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    memory_budget: int,
    *,
    own: Int[Tensor, " queries"] | None = None,
) -> Iterator[tuple[slice, slice, Float[Tensor, "rows cols"]]]:
    """Float32 products of all queries with all gallery rows: slices of both and their products, a tile at a time.

    A tile is valid until the next one is drawn. The product of query i with row ``own[i]``, itself, is -inf. If every
    row is a query, half of the products are computed, and a tile beside the diagonal is yielded again as its transpose.
    """
    among = own is not None and len(queries) == len(gallery)
    side = tile_side(memory_budget)
    # One buffer for all tiles: touching fresh memory costs more than reading a tile.
    buffer = queries.new_empty(min(side, len(queries)) * min(side, len(gallery)))
    for rows in _slices(0, len(queries), side):
        for cols in _slices(rows.start if among else 0, len(gallery), side):
            shape = (rows.stop - rows.start, cols.stop - cols.start)
            values = buffer[: shape[0] * shape[1]].view(shape)
            with full_float32():  # not around a yield: the reader of the tile has its own settings
                torch.mm(queries[rows], gallery[cols].T, out=values)
            if own is not None:
                here = ((own[rows] >= cols.start) & (own[rows] < cols.stop)).nonzero()[:, 0]
                values[here, own[rows][here] - cols.start] = -torch.inf
            yield rows, cols, values
            if among and rows != cols:
                yield cols, rows, values.T


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
    memory_budget: int,
) -> tuple[Float[Tensor, "queries width"], Int[Tensor, "queries width"]]:
    """The best ``width`` products of each query, best first, and their rows, by faiss."""
    asked, items = (vectors.contiguous().numpy() for vectors in (queries, gallery))
    found = faiss.knn(asked, items, width + (own is not None), metric=faiss.METRIC_INNER_PRODUCT)
    values, rows = (torch.from_numpy(column) for column in found)
    if own is not None:
        itself = rows == own[:, None]
        itself[~itself.any(dim=1), -1] = True  # copies can push a row off its own list: drop the last one instead
        values, rows = (column[~itself].view(-1, width) for column in (values, rows))
    return values, rows


def _tiled_candidates(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    width: int,
    own: Int[Tensor, " queries"] | None,
    memory_budget: int,
) -> tuple[Float[Tensor, "queries width"], Int[Tensor, "queries width"]]:
    """The same from tiles."""
    best = queries.new_full((len(queries), width), -torch.inf)
    best_rows = torch.zeros(len(queries), width, dtype=torch.int64, device=queries.device)
    for part, cols, products in tiles(queries, gallery, memory_budget // 2, own=own):
        values, rows = best[part], best_rows[part]
        worst = values[:, -1:]
        # Reading a row's maximum is far cheaper than selecting from it, and most rows have nothing new to offer.
        hot = (products.amax(dim=1, keepdim=True) > worst).nonzero()[:, 0]
        if not len(hot):
            continue
        offered = take_rows(products, hot).contiguous()
        better = int((offered > worst[hot]).sum(dim=1).amax())  # selecting fewer is several times as fast
        found = offered.topk(min(width, better), dim=1)
        merged_rows = torch.cat([rows[hot], found.indices + cols.start], dim=1)
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


def _slices(start: int, stop: int, step: int) -> Iterator[slice]:
    for first in range(start, stop, step):
        yield slice(first, min(first + step, stop))
