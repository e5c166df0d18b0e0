"""Exact nearest neighbours and ranks by cosine similarity, in bounded memory.

**Similarity.** The similarity of two rows is the inner product of their float32 vectors, summed in float64 in one fixed
order (`exact_pairs`). Copies of a vector therefore tie exactly, similarity is symmetric to the last bit, and no result
depends on tile sizes, threads, the BLAS or the device. Neighbours are ordered by similarity, equal ones by row.

**Speed.** Matrix products (`softtriple.search.products`) have none of these properties, but they are fast and their
error is bounded. They decide every comparison whose margin exceeds the bound; `exact_pairs` decides the others.

**The bound.** Let u = 2**-24, let x and y be float32 vectors of d numbers, and let s be their inner product.
A float32 product p, summed in any order, satisfies |p - s| <= d u / (1 - d u) * sum_i |x_i y_i| (Higham, *Accuracy and
Stability of Numerical Algorithms*, section 3.1), and sum_i |x_i y_i| <= |x| |y| by Cauchy-Schwarz. With d + 8 in place
of d the bound also covers the denominator and the float64 rounding of `exact_pairs`: it is `error_bound`, b below.

**Why neighbours are exact** (`ranked_rows`). Two rows whose products differ by more than 2 b are in the order of their
products. If two candidates of a query are within 2 b, then so are any two neighbours between them in the order of
products; all of these get their exact similarity as sort key, every other candidate its product, or its similarity if
that is asked for. A key is within b of its product, so candidates more than 2 b apart keep their order, and the others
are compared exactly.

No other row belongs among the first k if the product of the last candidate is less than t - 2 b, where t is the k-th
key: the similarity of the first k is at least t - b and that of a row outside at most its product + b. Where this is
not so, every row whose product reaches t - 2 b becomes a candidate, which is enough for the same reason.

**Why ranks are exact** (`first_hit_ranks`). The rank of a query's first hit, a row of its own class, is one plus the
number of rows before its best positive, whose similarity t is known. A product above t + b proves that a row is before
it and one below t - b that it is not; the rows between are scored exactly. The limits are rounded to float32, the type
of the products. Rounding to nearest is monotonic, so no product changes sides. Where the processor multiplies 8-bit
integers faster, the products are first those of 8-bit codes, with their own bound (`coarse_bound`) added to b; where
these leave much open, products in float32 follow.
"""

import math
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple.errors import UserError
from softtriple.search import products
from softtriple.search.products import full_float32, slices

# Candidates beyond k: a few, and a share of k, since the denser they are, the more of them the bound leaves open.
SPARE, SPARE_SHARE = 3, 32
# With more candidates than this float32 leaves most of them open.
DEEP = 2048
# Memory per candidate while it is scored and sorted, approximately.
CANDIDATE_BYTES = 100
# Dimensions and products from which those of 8-bit codes are worth their preparation. How many that they leave open, of
# a query in a tile, take as long to score exactly as the row of the tile takes to multiply in float32.
WIDE, LARGE, OPEN = 256, 10_000_000, 12
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
    queries: NDArray[Any], gallery: NDArray[Any], k: int, *, exclude_self: bool = False, memory_budget: int = 1 << 30
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
    rows, scores = (np.concatenate(column) for column in zip(*blocks, strict=True))
    found = NeighborArrays(rows, as_cosines(scores))
    if isinstance(queries, np.ndarray):
        return found
    return Neighbors(*(torch.from_numpy(column).to(asked.device) for column in found))


def as_cosines(scores: Float[np.ndarray, "queries k"]) -> Float[np.ndarray, "queries k"]:
    """Exact similarities as they are returned, in float32."""
    # Unit vectors are rounded, which can carry the cosine of two copies past 1. Larger scores are no cosines.
    return np.where(np.abs(scores) > 1 + _ROUNDING, scores, scores.clip(-1, 1)).astype(np.float32)


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
        >>> query_blocks(5, k=97, memory_budget=62_000)
        [slice(0, 3, None), slice(3, 5, None)]
    """
    size = max(1, memory_budget // (2 * CANDIDATE_BYTES * _width(k)))
    return [slice(start, min(start + size, count)) for start in range(0, max(1, count), size)]


def _width(k: int) -> int:
    """How many candidates are collected for ``k`` neighbours."""
    return k + SPARE + k // SPARE_SHARE


def top_rows(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    k: int,
    *,
    own: Int[Tensor, " queries"] | None = None,
    memory_budget: int,
    bound: float | None = None,
) -> NeighborArrays:
    """`ranked_rows` and their exact scores, in float64."""
    return NeighborArrays(*_ranked(queries, gallery, k, own, memory_budget, bound, scored=True))


def ranked_rows(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    k: int,
    *,
    own: Int[Tensor, " queries"] | None = None,
    memory_budget: int,
    bound: float | None = None,
) -> Int[np.ndarray, "queries k"]:
    """The ``k`` best gallery rows of each query, best first, or all if there are fewer.

    ``own[i]`` is the gallery row that is query i itself, which is left out; the rows ascend. ``bound`` is the
    `error_bound`, if known: measuring the gallery takes as long as searching for one query.
    """
    return _ranked(queries, gallery, k, own, memory_budget, bound, scored=False)[0]


# Rows and the keys they were sorted by, which are similarities wherever order depends on them. From here on in NumPy,
# which takes less time for small steps, and for selecting and sorting, than torch.
_Keyed = tuple[Int[np.ndarray, "queries width"], Float[np.ndarray, "queries width"]]


def _ranked(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    k: int,
    own: Int[Tensor, " queries"] | None,
    memory_budget: int,
    bound: float | None,
    scored: bool,
) -> _Keyed:
    """`ranked_rows` and their sort keys; with ``scored`` all of these are similarities."""
    if bound is None:
        bound = error_bound(queries.shape[1], longest_row(queries), longest_row(gallery))
    available = len(gallery) - (own is not None)
    width, k = min(_width(k), available), min(k, available)
    if not k or not len(queries):
        return np.empty((len(queries), k), dtype=np.int64), np.empty((len(queries), k))
    deep = width > DEEP
    if deep:
        # So many candidates are so close that float32 would leave most of them open. The error of a product in float64,
        # and of an exact score, which counts here, is 2**-29 of the bound each.
        bound *= 2.0**-28
    values, rows = products.candidates(queries.double() if deep else queries, gallery, width, own, memory_budget)
    rows, keys = _in_exact_order(queries, gallery, values, rows, bound, memory_budget, scored)
    limit = keys[:, k - 1] - 2 * bound
    unsettled = (values[:, -1] >= limit).nonzero()[0].tolist() if width < available else []
    rows, keys = rows[:, :k], keys[:, :k]
    for query in unsettled:
        one = queries[query : query + 1]
        if deep:
            every_row = np.arange(len(gallery))
            every = exact_pairs(one, gallery, np.zeros_like(every_row), every_row, memory_budget)
        else:
            with full_float32():
                every = (gallery @ one[0]).cpu().numpy()
        if own is not None:
            every[int(own[query])] = -np.inf
        perhaps = np.flatnonzero(every >= limit[query])
        perhaps = perhaps[np.argsort(-every[perhaps])]
        more = _in_exact_order(one, gallery, every[None, perhaps], perhaps[None], bound, memory_budget, scored)
        rows[query], keys[query] = (column[0, :k] for column in more)
    return rows, keys


def _in_exact_order(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    values: Float[np.ndarray, "queries width"],
    rows: Int[np.ndarray, "queries width"],
    bound: float,
    memory_budget: int,
    scored: bool,
) -> _Keyed:
    """``rows``, given in the order of their products ``values``, in the order of similarity."""
    if scored:
        asked = np.arange(len(rows)).repeat(rows.shape[1])
        scores = exact_pairs(queries, gallery, asked, rows.ravel(), memory_budget)
        return sorted_by_score(rows, scores.reshape(rows.shape))
    keys = values.astype(np.float64)
    close = values[:, :-1] - values[:, 1:] <= 2 * bound  # differences are rounded as well, and rounding keeps order
    open_ = np.zeros(values.shape, dtype=bool)
    open_[:, 1:] = close
    open_[:, :-1] |= close
    row, col = open_.nonzero()
    if len(row):
        keys[row, col] = exact_pairs(queries, gallery, row, rows[row, col], memory_budget)
    return sorted_by_score(rows, keys)


def sorted_by_score(
    rows: Int[np.ndarray, "queries rows"], scores: Float[np.ndarray, "queries rows"]
) -> tuple[Int[np.ndarray, "queries rows"], Float[np.ndarray, "queries rows"]]:
    """Best score first, equal scores in the order of rows. Most are sorted already, and are not sorted again."""
    rows, scores = rows.copy(), scores.copy()
    unsorted = np.flatnonzero((scores[:, 1:] >= scores[:, :-1]).any(axis=1))
    order = np.lexsort((rows[unsorted], -scores[unsorted]))
    query = unsorted[:, None]
    rows[unsorted], scores[unsorted] = rows[query, order], scores[query, order]
    return rows, scores


def exact_pairs(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    rows: Int[np.ndarray, " pairs"],
    cols: Int[np.ndarray, " pairs"],
    memory_budget: int,
) -> Float[np.ndarray, " pairs"]:
    """Similarity of the query ``rows[p]`` to the gallery row ``cols[p]`` in float64, for every pair ``p``."""
    # A megabyte at a time stays in cache and in reused buffers.
    step = max(1, min(memory_budget // 64, 1 << 17) // max(1, queries.shape[1]))
    scores = np.empty(len(rows))
    for part in slices(0, len(rows), step):
        # Not a matrix product: every pair is summed in the same order.
        np.einsum("ij,ij->i", _taken(queries, rows[part]), _taken(gallery, cols[part]), out=scores[part])
    return scores


def _taken(vectors: Float[Tensor, "rows dim"], rows: Int[np.ndarray, " some"]) -> Float[np.ndarray, "some dim"]:
    """Some rows of ``vectors`` in float64."""
    if vectors.device.type == "cpu":
        return vectors.numpy().take(rows, axis=0).astype(np.float64)
    return vectors[torch.from_numpy(rows)].double().cpu().numpy()


def error_bound(dim: int, longest_query: float, longest_item: float) -> float:
    """How far a float32 product of vectors of at most these lengths can be from `exact_pairs`; see the module."""
    return (dim + 8) * 2.0**-24 * longest_query * longest_item


def longest_row(vectors: Float[Tensor, "rows dim"]) -> float:
    """An upper bound of the length of the longest row, which must be finite."""
    if not len(vectors):
        return 0.0
    largest = float(torch.linalg.vector_norm(vectors, dim=1).amax())
    if not math.isfinite(largest):
        raise UserError("vectors hold NaN or infinite numbers, or are too long: normalise them to unit length")
    return 1.01 * largest  # the norm has an error of its own


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
    bound = error_bound(embeddings.shape[1], longest_row(embeddings), longest_row(gallery))
    best, best_row = _best_positives(embeddings, labels, gallery, gallery_labels, own, memory_budget)
    margin, coarse = torch.full_like(best, bound), None
    large = embeddings.shape[1] >= WIDE and len(embeddings) * len(gallery) >= LARGE
    if large and embeddings.device.type == "cpu" and products.coarse_is_faster():
        codes = products.encode(gallery)
        coarse = (codes if embeddings is gallery else products.encode(embeddings), codes)
        margin += products.coarse_bound(*coarse)
    before = torch.zeros_like(best_row)
    for rows, cols, values in products.tiles(embeddings, gallery, memory_budget, own=own, coarse=coarse):
        # No positive comes before the best one, so labels are not needed here. In most tiles few queries have anything
        # that could; a row's maximum tells.
        hot = (values.amax(dim=1) >= (best[rows] - margin[rows]).float()).nonzero()[:, 0]
        values, asked = products.take_rows(values, hot), hot + rows.start
        above, pairs = _compared(values, best[asked], margin[asked])
        if coarse is not None and len(pairs) > OPEN * len(hot):  # too many for exact scores
            with full_float32():
                values = embeddings[asked] @ gallery[cols].T
            products.leave_out(values, own, asked, cols)
            above, pairs = _compared(values, best[asked], torch.full_like(best[asked], bound))
        before[asked] += above
        asked, found = asked[pairs[:, 0]], pairs[:, 1] + cols.start
        scores = _pair_scores(embeddings, gallery, asked, found, memory_budget)
        tied = (scores == best[asked]) & (found < best_row[asked])
        before.index_add_(0, asked, ((scores > best[asked]) | tied).long())
    return torch.where(best < torch.inf, before + 1, 0)


def _compared(
    values: Float[Tensor, "asked cols"], best: Float[Tensor, " asked"], margin: Float[Tensor, " asked"]
) -> tuple[Int[Tensor, " asked"], Int[Tensor, "pairs 2"]]:
    """How many of the products ``values`` are surely above ``best``, and the places of those that may be or not."""
    above = values > (best + margin).float()[:, None]
    perhaps = values >= (best - margin).float()[:, None]
    return above.sum(dim=1), (perhaps ^ above).nonzero()


def _pair_scores(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    rows: Int[Tensor, " pairs"],
    cols: Int[Tensor, " pairs"],
    memory_budget: int,
) -> Float[Tensor, " pairs"]:
    """`exact_pairs` of tensors."""
    scores = exact_pairs(queries, gallery, rows.cpu().numpy(), cols.cpu().numpy(), memory_budget)
    return torch.from_numpy(scores).to(queries.device)


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
        scores = _pair_scores(queries[part], gallery, asked, rows, memory_budget)
        best[part].scatter_reduce_(0, asked, scores, "amax", include_self=False)
        tied = scores == best[part][asked]
        best_row[part].scatter_reduce_(0, asked[tied], rows[tied], "amin")
    return best, best_row
