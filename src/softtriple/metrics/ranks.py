"""Rank of the first item of the right class, by counting instead of sorting.

The rank of a query's best positive is one plus the number of other-class items that come before it. So Recall@k for
every k follows from one number per query, and no neighbour list is needed, however large k is. "Before" is the order of
`softtriple.search.nearest`: by exact similarity, and by row where similarities are equal. As in `softtriple.search.knn`
matrix products decide what their error bound allows, and `exact_pairs` the rest.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from softtriple.errors import UserError
from softtriple.search import knn
from softtriple.search.knn import ENTRY_BYTES, Margin, Tile, exact_pairs, full_float32, take_rows, tile_side, tiles

# The rank of a query that has no positive.
NO_POSITIVE = 0


def first_hit_ranks(
    embeddings: Float[Tensor, "queries dim"],
    labels: Int[Tensor, " queries"],
    *,
    gallery: Float[Tensor, "gallery dim"] | None = None,
    gallery_labels: Int[Tensor, " gallery"] | None = None,
    memory_budget: int = 1 << 30,
) -> Int[Tensor, " queries"]:
    """Rank, from 1, of the first neighbour of each query that has the query's class; 0 where there is none.

    Without a gallery every item is searched among all the others. Vectors are float32 and of unit length.

    Example:
        Three items on a circle, at 0, 10 and 30 degrees; the first and the last are one class.

        >>> angle = torch.tensor([0.0, 10.0, 30.0]).deg2rad()
        >>> items = torch.stack([angle.cos(), angle.sin()], dim=1)
        >>> first_hit_ranks(items, torch.tensor([7, 8, 7]))
        tensor([2, 0, 2])
    """
    if (gallery is None) != (gallery_labels is None):
        raise UserError("gallery and gallery_labels: pass both or neither")
    queries = ByClass.sort(embeddings, labels)
    if gallery is None or gallery_labels is None:
        own = torch.arange(len(labels), device=labels.device)
        return queries.unsort(count_ranks(queries, queries, own, memory_budget))
    return queries.unsort(count_ranks(queries, ByClass.sort(gallery, gallery_labels), None, memory_budget))


class ByClass(NamedTuple):
    """Items sorted by class, so that the items of one class are adjacent."""

    vectors: Float[Tensor, "items dim"]
    labels: Int[Tensor, " items"]
    rows: Int[Tensor, " items"]  # position of each item before sorting

    @staticmethod
    def sort(vectors: Float[Tensor, "items dim"], labels: Int[Tensor, " items"]) -> "ByClass":
        """Sort items by class and, within a class, by row."""
        labels, rows = labels.sort(stable=True)
        return ByClass(vectors[rows], labels, rows)

    def take(self, chosen: Int[Tensor, " chosen"] | slice) -> "ByClass":
        """Some of the items, in ascending order."""
        return ByClass(self.vectors[chosen], self.labels[chosen], self.rows[chosen])

    def unsort(self, values: Shaped[Tensor, " items"]) -> Shaped[Tensor, " items"]:
        """Bring one value per item back into the order before sorting."""
        result = torch.empty_like(values)
        result[self.rows] = values
        return result


def count_ranks(
    queries: ByClass, items: ByClass, own: Int[Tensor, " queries"] | None, memory_budget: int
) -> Int[Tensor, " queries"]:
    """Rank of the first hit of each query, in the order of ``queries``.

    ``own`` are the ascending positions of the queries in ``items``, where they are some or all of the items.
    """
    pair = queries.vectors, items.vectors
    best, best_row = _best_positives(queries, items, own, memory_budget)
    if not len(best):
        return best_row
    coarse = knn.coarse_pays(*pair)
    margin = Margin.of(*pair, coarse=coarse)
    threshold = best.where(best_row >= 0, torch.inf)[:, None]  # without a positive there is nothing to count
    surely, perhaps = margin.above(threshold), margin.below(threshold)
    before = torch.zeros_like(best_row)
    side = tile_side(memory_budget)
    flags = queries.vectors.new_empty(min(side, len(best)) * min(side, len(items.rows)))
    among = own is not None and len(own) == len(items.rows)
    for tile in tiles(pair[0], None if among else pair[1], memory_budget, own=own, coarse=coarse):
        rows, above, doubtful, cols = _compare(tile, surely, perhaps, flags)
        before[rows] += above
        other = queries.labels[doubtful] != items.labels[cols]
        doubtful, cols = doubtful[other], cols[other]
        scores = exact_pairs(*pair, doubtful, cols, memory_budget)
        tied = (scores == best[doubtful]) & (items.rows[cols] < best_row[doubtful])
        before.index_add_(0, doubtful, ((scores > best[doubtful]) | tied).to(before.dtype))
    return torch.where(best_row >= 0, before + 1, NO_POSITIVE)


class _Comparison(NamedTuple):
    rows: Int[Tensor, " rows"]  # queries
    above: Int[Tensor, " rows"]  # number of items that are surely before the best positive of each
    doubtful: Int[Tensor, " pairs"]  # pairs that the products leave open: queries
    cols: Int[Tensor, " pairs"]  # and items


def _compare(
    tile: Tile, surely: Float[Tensor, "queries 1"], perhaps: Float[Tensor, "queries 1"], flags: Float[Tensor, " side"]
) -> _Comparison:
    """What the products of one tile say about the items before each query's best positive."""
    # In most tiles few queries have anything that could come before their positive; a row's maximum tells.
    hot = (tile.values.amax(dim=1, keepdim=True) >= perhaps[tile.rows]).nonzero()[:, 0]
    values, rows = tile.values, torch.arange(tile.rows.start, tile.rows.stop, device=hot.device)
    if 2 * len(hot) < len(values):  # copying rows pays only if it leaves out many
        values, rows = take_rows(values, hot), rows[hot]
    # No positive is above `surely`, so this need not look at labels.
    above = _count(torch.gt, values, surely[rows], flags)
    unclear = (_count(torch.ge, values, perhaps[rows], flags) != above).nonzero()[:, 0]
    values, asked = take_rows(values, unclear), rows[unclear]
    pairs = ((values >= perhaps[asked]) & (values <= surely[asked])).nonzero()
    return _Comparison(rows, above, asked[pairs[:, 0]], pairs[:, 1] + tile.cols.start)


def _count(
    compare: Callable[..., Tensor],
    values: Float[Tensor, "rows cols"],
    threshold: Float[Tensor, "rows 1"],
    flags: Float[Tensor, " side"],
) -> Int[Tensor, " rows"]:
    """How many values of each row pass the comparison."""
    # Numbers written to memory already in use are three times as fast as fresh booleans and their sum. Float32 counts
    # exactly up to 2**24, far beyond the columns of a tile.
    flags = flags[: values.numel()]
    flags = flags.view(values.shape) if values.is_contiguous() else flags.view(values.T.shape).T
    compare(values, threshold, out=flags)
    return flags.sum(dim=1).long()


def _best_positives(
    queries: ByClass, items: ByClass, own: Int[Tensor, " queries"] | None, memory_budget: int
) -> tuple[Float[Tensor, " queries"], Int[Tensor, " queries"]]:
    """Float64 similarity of each query to its first positive, and the row of that; -inf and -1 without one."""
    bound = Margin.of(queries.vectors, items.vectors, coarse=False).bound
    best = torch.full(queries.labels.shape, -torch.inf, dtype=torch.float64, device=queries.labels.device)
    best_row = torch.full_like(queries.rows, -1)
    for block, span in _class_blocks(queries.labels, items.labels, memory_budget):
        with full_float32():
            values = queries.vectors[block] @ items.vectors[span].T
        values.masked_fill_(queries.labels[block, None] != items.labels[span], -torch.inf)
        if own is not None:
            values[torch.arange(len(values), device=values.device), own[block] - span.start] = -torch.inf
        top = values.amax(dim=1, keepdim=True)
        pairs = ((values >= top - 2 * bound) & (top > -torch.inf)).nonzero()
        rows, cols = pairs[:, 0], pairs[:, 1] + span.start
        scores = exact_pairs(queries.vectors[block], items.vectors, rows, cols, memory_budget)
        best[block] = best[block].scatter_reduce(0, rows, scores, "amax")
        # Equal scores: the lowest row, which within a class is the lowest position.
        tied = scores == best[block][rows]
        position = torch.full_like(best_row[block], len(items.rows)).scatter_reduce_(0, rows[tied], cols[tied], "amin")
        has_positive = position < len(items.rows)
        best_row[block][has_positive] = items.rows[position[has_positive]]
    return best, best_row


def _class_blocks(
    labels: Int[Tensor, " queries"], item_labels: Int[Tensor, " items"], memory_budget: int
) -> Iterator[tuple[slice, slice]]:
    """Runs of queries, each with the span of items that contains all of their positives; both are sorted by class."""
    starts = torch.searchsorted(item_labels, labels).tolist()
    stops = torch.searchsorted(item_labels, labels, right=True).tolist()
    largest = max((stop - start for start, stop in zip(starts, stops, strict=True)), default=0)
    # Short runs meet few items but their positives; shorter ones would only be more calls.
    longest = min(max(256, largest), tile_side(memory_budget))
    begin = 0
    while begin < len(starts):
        end = begin + 1
        while (
            end < min(begin + longest, len(starts))
            and ENTRY_BYTES * (end + 1 - begin) * (stops[end] - starts[begin]) <= memory_budget
        ):
            end += 1
        if stops[end - 1] > starts[begin]:
            yield slice(begin, end), slice(starts[begin], stops[end - 1])
        begin = end
