"""Where the rows of a query's own class stand among its neighbours, exactly: all that retrieval metrics ask.

Similarity, its order and the bound on the error of float32 products are those of `softtriple.search.knn`.

**Why hits are exact.** A hit is a row of the query's class, a miss any other. Which places the hits take depends on how
hits compare with misses, not on how hits compare among themselves. Let b be the bound. Two rows whose products differ
by more than 2 b are in the order of their products. `hit_rows` therefore scores exactly only the candidates that have
one of the other kind within 2 b. It sorts by that score, or by the product where there is none: this moves no row by
more than b, so a hit and a miss more than 2 b apart keep their order, and those that are closer both have exact scores.

No other row belongs among the first k if the product of the last candidate is less than t - 2 b, where t is the k-th
sorted value: the exact similarity of the first k is at least t - b and that of a row outside at most its product + b.
Where this is not so, every row whose product reaches t - 2 b becomes a candidate, which is enough for the same reason.

**Why ranks are exact.** The rank of a query's first hit is one plus the number of rows before its best positive, whose
exact similarity t is known. A product above t + b proves that a row is before it and one below t - b that it is
not; the rows between are scored exactly. The limits are rounded to float32, the type of the products. Rounding to
nearest is monotonic, so no product changes sides. Where the processor multiplies 8-bit integers faster, the products
are first those of 8-bit codes, with their own bound (`softtriple.search.products.coarse_bound`) added to b; where these
leave much open, products in float32 follow.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from softtriple.errors import UserError
from softtriple.search.knn import SPARE, descending, error_bound, exact_pairs, query_blocks, sorted_by_score
from softtriple.search.products import (
    WIDE,
    Search,
    candidates,
    coarse_bound,
    coarse_is_faster,
    encode,
    full_float32,
    take_rows,
    tiles,
)

# Candidates beyond k, as a share of k: the denser the candidates, the more of them the bound leaves open.
SPARE_SHARE = 32
# With more candidates than this float32 leaves most of them open.
DEEP = 2048
# Products from which those of 8-bit codes are worth their preparation. How many that they leave open, of a query in a
# tile, take as long to score exactly as the row of the tile takes to multiply in float32.
LARGE = 10_000_000
OPEN = 12


def hit_rows(
    queries: Float[Tensor, "queries dim"],
    labels: Int[Tensor, " queries"],
    gallery: Float[Tensor, "gallery dim"],
    gallery_labels: Int[Tensor, " gallery"],
    k: int,
    *,
    own: Int[Tensor, " queries"] | None = None,
    memory_budget: int,
) -> Int[Tensor, "queries k"]:
    """The ``k`` best gallery rows of each query, or all if there are fewer, with hits and misses in their true places.

    Hits may be exchanged with hits and misses with misses. ``own[i]`` is the gallery row that is query i itself, which
    is left out; the rows ascend.

    Example:
        >>> items = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.3], [0.0, 1.0]]))
        >>> hit_rows(items[:1], torch.tensor([7]), items, torch.tensor([7, 8, 7, 8]), 2, own=torch.tensor([0]),
        ...     memory_budget=1 << 20)
        tensor([[1, 2]])
    """
    bound = error_bound(queries, gallery)
    available = len(gallery) - (own is not None)
    width, k = min(k + SPARE + k // SPARE_SHARE, available), min(k, available)
    if not k or not len(queries):
        return torch.empty(len(queries), k, dtype=torch.int64, device=queries.device)
    deep = width > DEEP
    if deep:
        # So many candidates are so close that float32 would leave most of them open. The error of a product in float64,
        # and of an exact score, which counts here, is 2**-29 of the bound each.
        bound *= 2.0**-28
    values, rows = candidates(Search(queries.double() if deep else queries, gallery, width, own, memory_budget))
    asked = torch.arange(len(queries), device=queries.device)
    hits = gallery_labels[rows] == labels[:, None]
    rows, keys = _hits_in_place(queries, gallery, asked, values, rows, hits, bound, memory_budget)
    limit = keys[:, k - 1] - 2 * bound
    unsettled = values[:, -1] >= limit if width < available else torch.zeros_like(limit, dtype=torch.bool)
    rows = rows[:, :k]
    for query in unsettled.nonzero().tolist():
        if deep:
            every = torch.arange(len(gallery), device=rows.device)
            products = exact_pairs(queries, gallery, torch.full_like(every, query[0]), every, memory_budget)
        else:
            with full_float32():
                products = gallery @ queries[query[0]]
        if own is not None:
            products[own[query]] = -torch.inf
        perhaps = (products >= limit[query]).nonzero()[:, 0]
        sorted_values, order = products[perhaps].sort(descending=True)
        more = perhaps[order][None]
        hits = gallery_labels[more] == labels[query]
        more, _ = _hits_in_place(queries, gallery, asked[query], sorted_values[None], more, hits, bound, memory_budget)
        rows[query] = more[:, :k]
    return rows


def _hits_in_place(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    asked: Int[Tensor, " asked"],
    values: Float[Tensor, "asked width"],
    rows: Int[Tensor, "asked width"],
    hits: Bool[Tensor, "asked width"],
    bound: float,
    memory_budget: int,
) -> tuple[Int[Tensor, "asked width"], Float[Tensor, "asked width"]]:
    """``rows``, given in the order of their products ``values``, with hits and misses in place, and the sort keys."""
    keys = values.double()
    # If any hit and miss of a query are within the distance, then so are two neighbours in the order of products.
    mixed = ((hits[:, 1:] != hits[:, :-1]) & (values[:, :-1] - values[:, 1:] <= 2 * bound)).any(dim=1).nonzero()[:, 0]
    near = _near_the_other_kind(values[mixed].cpu().numpy(), hits[mixed].cpu().numpy(), 2 * bound)
    row, col = (torch.from_numpy(places).to(rows.device) for places in near.nonzero())
    row = mixed[row]
    if len(row):
        keys[row, col] = exact_pairs(queries, gallery, asked[row], rows[row, col], memory_budget)
        changed = torch.unique_consecutive(row)
        order = descending(keys[changed])
        rows[changed], keys[changed] = (column[changed].gather(1, order) for column in (rows, keys))
        # Only a tie of a hit and a miss, which both have exact scores, is left to the order of rows.
        kinds = hits[changed].gather(1, order)
        ties = (keys[changed].diff(dim=1) == 0) & (kinds[:, 1:] != kinds[:, :-1])
        tied = changed[ties.any(dim=1)]
        rows[tied], keys[tied] = sorted_by_score(rows[tied], keys[tied])
    return rows, keys


def _near_the_other_kind(
    values: Float[np.ndarray, "asked width"], hits: Bool[np.ndarray, "asked width"], distance: float
) -> Bool[np.ndarray, "asked width"]:
    """Which of the descending ``values`` have one of the other kind, hit or miss, within ``distance``."""
    near = np.zeros_like(hits)
    distance = values.dtype.type(distance)  # differences are rounded as well, and rounding keeps order
    for kind in (hits, ~hits):
        # Of the other kind, the last value before a place is the smallest so far, the first one after it the largest.
        before = np.minimum.accumulate(np.where(kind, np.inf, values), axis=1)
        after = np.maximum.accumulate(np.where(kind, -np.inf, values)[:, ::-1], axis=1)[:, ::-1]
        near |= kind & ((before - values <= distance) | (values - after <= distance))
    return near


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
    margin, coarse = torch.full_like(best, bound), None
    large = embeddings.shape[1] >= WIDE and len(embeddings) * len(gallery) >= LARGE
    if large and embeddings.device.type == "cpu" and coarse_is_faster():
        codes = encode(gallery)
        coarse = (codes if embeddings is gallery else encode(embeddings), codes)
        margin += coarse_bound(*coarse)
    before = torch.zeros_like(best_row)
    for rows, cols, values in tiles(embeddings, gallery, memory_budget, own=own, coarse=coarse):
        # No positive comes before the best one, so labels are not needed here. In most tiles few queries have anything
        # that could; a row's maximum tells.
        hot = (values.amax(dim=1) >= (best[rows] - margin[rows]).float()).nonzero()[:, 0]
        values, asked = take_rows(values, hot), hot + rows.start
        above, pairs = _compared(values, best[asked], margin[asked])
        if coarse is not None and len(pairs) > OPEN * len(hot):  # too many for exact scores
            with full_float32():
                values = embeddings[asked] @ gallery[cols].T
            if own is not None:
                here = ((own[asked] >= cols.start) & (own[asked] < cols.stop)).nonzero()[:, 0]
                values[here, own[asked][here] - cols.start] = -torch.inf
            above, pairs = _compared(values, best[asked], torch.full_like(best[asked], bound))
        before[asked] += above
        asked, found = asked[pairs[:, 0]], pairs[:, 1] + cols.start
        scores = exact_pairs(embeddings, gallery, asked, found, memory_budget)
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
