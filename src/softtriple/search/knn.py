"""Exact nearest neighbours by cosine similarity, in bounded memory; `softtriple.search.ranks` builds on it.

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
"""

import math
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple.errors import UserError
from softtriple.search.products import Search, candidates, full_float32, slices

# Candidates beyond k: float32 rarely misplaces a row by more than one or two places.
SPARE = 3
# Memory per candidate while it is scored and sorted, approximately.
CANDIDATE_BYTES = 100
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
    scores = as_cosines(scores)
    if isinstance(queries, np.ndarray):
        return NeighborArrays(rows.numpy(), scores.numpy())
    return Neighbors(rows, scores)


def as_cosines(scores: Float[Tensor, "queries k"]) -> Float[Tensor, "queries k"]:
    """Exact similarities as they are returned, in float32."""
    # Unit vectors are rounded, which can carry the cosine of two copies past 1. Larger scores are no cosines.
    return scores.where(scores.abs() > 1 + _ROUNDING, scores.clamp(-1, 1)).float()


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
    longest: float | None = None,
) -> Neighbors:
    """The ``k`` best gallery rows of each query, or all if there are fewer, with float64 scores.

    ``own[i]`` is the gallery row that is query i itself, which is left out; the rows ascend. ``longest`` is the length
    of the longest gallery row, if known: finding it takes as long as searching for one query.
    """
    bound = error_bound(queries, gallery, longest)
    available = len(gallery) - (own is not None)
    width, k = min(k + SPARE, available), min(k, available)
    if not k or not len(queries):
        empty = queries.new_empty(len(queries), k)
        return Neighbors(empty.long(), empty.double())
    values, rows = candidates(Search(queries, gallery, width, own, memory_budget))
    owners = torch.arange(len(rows), device=rows.device).repeat_interleave(width)
    scores = exact_pairs(queries, gallery, owners, rows.flatten(), memory_budget).view(rows.shape)
    rows, scores = (column[:, :k] for column in sorted_by_score(rows, scores))
    limit = scores[:, -1] - bound
    unsettled = values[:, -1] >= limit if width < available else torch.zeros_like(limit, dtype=torch.bool)
    for query in unsettled.nonzero()[:, 0].tolist():
        with full_float32():
            products = gallery @ queries[query]
        if own is not None:
            products[own[query]] = -torch.inf
        perhaps = (products >= limit[query]).nonzero()[:, 0]
        exact = exact_pairs(queries, gallery, torch.full_like(perhaps, query), perhaps, memory_budget)
        rows[query], scores[query] = (column[:k] for column in sorted_by_score(perhaps, exact))
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
    for part in slices(0, len(rows), step):
        # A product and a sum over the last dimension, not a matrix product: every pair is summed in the same order.
        product = queries.index_select(0, rows[part]).double().mul_(gallery.index_select(0, cols[part]))
        scores[part] = product.sum(dim=1)
    return scores


def error_bound(
    queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"], longest: float | None = None
) -> float:
    """How far a float32 product of a query and a gallery row can be from `exact_pairs`; see the module."""
    lengths = (longest_row(queries), longest_row(gallery) if longest is None else longest)
    return (queries.shape[1] + 8) * 2.0**-24 * lengths[0] * lengths[1]


def longest_row(vectors: Float[Tensor, "rows dim"]) -> float:
    """An upper bound of the length of the longest row, which must be finite."""
    if not len(vectors):
        return 0.0
    largest = float(torch.linalg.vector_norm(vectors, dim=1).amax())
    if not math.isfinite(largest):
        raise UserError("vectors hold NaN or infinite numbers, or are too long: normalise them to unit length")
    return 1.01 * largest  # the norm has an error of its own


def sorted_by_score(
    rows: Int[Tensor, "... rows"], scores: Float[Tensor, "... rows"]
) -> tuple[Int[Tensor, "... rows"], Float[Tensor, "... rows"]]:
    """Best score first; sorting by row before the stable sort by score leaves equal scores in the order of rows."""
    rows, by_row = rows.sort(dim=-1)
    scores = scores.gather(-1, by_row)
    by_score = descending(scores)
    return rows.gather(-1, by_score), scores.gather(-1, by_score)


def descending(scores: Float[Tensor, "... rows"]) -> Int[Tensor, "... rows"]:
    """The stable order of ``scores``, largest first."""
    if scores.device.type != "cpu":
        return scores.argsort(dim=-1, descending=True, stable=True)
    # Faster than torch, most of all for scores that are almost in order.
    return torch.from_numpy(np.argsort(-scores.numpy(), axis=-1, kind="stable"))
