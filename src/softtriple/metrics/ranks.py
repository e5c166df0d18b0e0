"""Rank of the first item of the right class, by counting instead of sorting.

The rank of a query's best positive is one plus the number of other-class items that come before it. So Recall@k
for every k follows from one number a query, and no neighbour list is needed, however large k is. "Before" is the
order of `softtriple.search.nearest`: by similarity in float64, and by row where similarities are equal.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.search.similarity import (
    ENTRY_BYTES,
    Tile,
    coarse_error_bound,
    coarse_pays,
    error_bound,
    exact_pairs,
    full_float32,
    take_rows,
    tile_side,
    tiles,
)

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
        raise ValueError("gallery and gallery_labels: pass both or neither")
    queries = ByClass.sort(embeddings, labels)
    items = None if gallery is None or gallery_labels is None else ByClass.sort(gallery, gallery_labels)
    coarse = coarse_pays(queries.vectors, (items or queries).vectors)
    first_hit = FirstHit(queries, items, memory_budget, coarse=coarse)
    for tile in tiles(queries.vectors, None if items is None else items.vectors, memory_budget, coarse=coarse):
        first_hit.update(tile)
    return queries.unsort(first_hit.ranks())


class ByClass(NamedTuple):
    """Items in the order of their classes, so that items of one class are neighbours in memory."""

    vectors: Float[Tensor, "items dim"]
    labels: Int[Tensor, " items"]
    rows: Int[Tensor, " items"]  # where each item stood before

    @staticmethod
    def sort(vectors: Float[Tensor, "items dim"], labels: Int[Tensor, " items"]) -> "ByClass":
        """Sort items by class and, within a class, by row."""
        labels, rows = labels.sort(stable=True)
        return ByClass(vectors[rows], labels, rows)

    def unsort(self, values: Int[Tensor, " items"]) -> Int[Tensor, " items"]:
        """Bring one value an item back into the order before sorting."""
        result = torch.empty_like(values)
        result[self.rows] = values
        return result


class FirstHit:
    """Counts the items before each query's best positive; a reader of `softtriple.search.similarity.tiles`."""

    def __init__(self, queries: ByClass, gallery: ByClass | None, memory_budget: int, *, coarse: bool = False) -> None:
        self.queries = queries
        self.gallery = queries if gallery is None else gallery
        self.memory_budget = memory_budget
        pair = queries.vectors, self.gallery.vectors
        self.best, self.best_row = _best_positives(queries, gallery, error_bound(*pair), memory_budget)
        # Above `surely`, a tile proves an item to be before the positive; below `perhaps`, to be behind it.
        # Without a positive there is nothing to count.
        threshold = self.best.where(self.best_row >= 0, torch.inf)[:, None]
        bound, precision = (
            (coarse_error_bound(*pair), torch.bfloat16) if coarse else (error_bound(*pair), torch.float32)
        )
        self.surely = (threshold + bound).to(precision).float()
        self.perhaps = (threshold - bound).to(precision).float()
        self.before = torch.zeros_like(queries.rows)
        side = tile_side(memory_budget)
        self.flags = queries.vectors.new_empty(min(side, len(queries.rows)) * min(side, len(self.gallery.rows)))

    def update(self, tile: Tile) -> None:
        """Count the items of one tile."""
        # Often few queries have anything in a tile that could come before their positive; a row's maximum tells.
        hot = (tile.values.amax(dim=1, keepdim=True) >= self.perhaps[tile.rows]).nonzero()[:, 0]
        if len(hot) == 0:
            return
        # Copying rows pays only where it leaves out many.
        values, queries = tile.values, torch.arange(tile.rows.start, tile.rows.stop, device=hot.device)
        if 2 * len(hot) < len(values):
            values, queries = take_rows(values, hot), queries[hot]
        # A positive is never above `surely`, so that this needs no look at the labels.
        above = self._count(torch.gt, values, self.surely[queries])
        self.before[queries] += above
        open_rows = (self._count(torch.ge, values, self.perhaps[queries]) != above).nonzero()[:, 0]
        if len(open_rows):
            queries, values = queries[open_rows], take_rows(values, open_rows)
            doubtful = (values >= self.perhaps[queries]) & (values <= self.surely[queries])
            pairs = doubtful.nonzero()
            self._decide(queries[pairs[:, 0]], pairs[:, 1] + tile.cols.start)

    def ranks(self) -> Int[Tensor, " queries"]:
        """The rank of each query's first hit, once every tile has been seen."""
        return torch.where(self.best_row >= 0, self.before + 1, NO_POSITIVE)

    def _count(
        self,
        compare: Callable[..., Tensor],
        values: Float[Tensor, "rows cols"],
        threshold: Float[Tensor, "rows 1"],
    ) -> Int[Tensor, " rows"]:
        """How many values of each row pass the comparison."""
        # Written as numbers to memory already in use, three times faster than fresh booleans and their sum. Float32
        # counts exactly up to 2**24, far beyond the columns of a tile.
        flags = self.flags[: values.numel()]
        flags = flags.view(values.shape) if values.is_contiguous() else flags.view(values.T.shape).T
        compare(values, threshold, out=flags)
        return flags.sum(dim=1).long()

    def _decide(self, queries: Int[Tensor, " pairs"], items: Int[Tensor, " pairs"]) -> None:
        """Count the pairs that float32 left open."""
        other = self.queries.labels[queries] != self.gallery.labels[items]
        queries, items = queries[other], items[other]
        scores = exact_pairs(self.queries.vectors, self.gallery.vectors, queries, items, self.memory_budget)
        tied_before = (scores == self.best[queries]) & (self.gallery.rows[items] < self.best_row[queries])
        before = (scores > self.best[queries]) | tied_before
        self.before.index_add_(0, queries, before.to(self.before.dtype))


def _best_positives(
    queries: ByClass, gallery: ByClass | None, bound: float, memory_budget: int
) -> tuple[Float[Tensor, " queries"], Int[Tensor, " queries"]]:
    """Float64 similarity of each query to its first positive, and the row of that; -inf and -1 without one."""
    items = queries if gallery is None else gallery
    best = torch.full(queries.labels.shape, -torch.inf, dtype=torch.float64, device=queries.labels.device)
    best_row = torch.full_like(queries.rows, -1)
    # The positives of query i are the items [first[i], last[i]).
    first = torch.searchsorted(items.labels, queries.labels)
    last = torch.searchsorted(items.labels, queries.labels, right=True)
    for block, span in _class_blocks(first, last, memory_budget):
        with full_float32():
            values = queries.vectors[block] @ items.vectors[span].T
        values.masked_fill_(queries.labels[block, None] != items.labels[span], -torch.inf)
        if gallery is None:
            values.diagonal(offset=block.start - span.start).fill_(-torch.inf)
        top = values.amax(dim=1, keepdim=True)
        pairs = ((values >= top - 2 * bound) & (top > -torch.inf)).nonzero()
        rows, cols = pairs[:, 0], pairs[:, 1] + span.start
        scores = exact_pairs(queries.vectors[block], items.vectors, rows, cols, memory_budget)
        best[block] = best[block].scatter_reduce(0, rows, scores, "amax")
        # Equal scores: the lowest row, which within a class is the lowest position.
        tied = scores == best[block][rows]
        position = torch.full_like(best_row[block], len(items.rows)).scatter_reduce_(0, rows[tied], cols[tied], "amin")
        found = position < len(items.rows)
        best_row[block][found] = items.rows[position[found]]
    return best, best_row


def _class_blocks(
    first: Int[Tensor, " queries"], last: Int[Tensor, " queries"], memory_budget: int
) -> Iterator[tuple[slice, slice]]:
    """Runs of queries, each with the span of items that holds all of their positives."""
    starts, stops = first.tolist(), last.tolist()
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
