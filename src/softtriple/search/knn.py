"""Exact nearest neighbours by cosine similarity, in bounded memory.

Neighbours are ordered by similarity, best first, and equal similarities by row, lower first. Similarity is that of
`softtriple.search.similarity`: float64, so the order is the true one and copies of a vector tie. A float32 pass keeps a
few candidates more than asked for; they are scored again in float64 and sorted; and where the error bound cannot
exclude that a row outside the candidates belongs among them, that query is searched again in full.
"""

from typing import NamedTuple

import faiss
import torch
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.search.similarity import Tile, error_bound, exact_pairs, full_float32, take_rows, tiles

# Candidates beyond k. Float32 rarely misplaces a row by more than one or two; each costs one float64 product a query.
SPARE = 3
# What a candidate takes while it is sorted and scored, about.
CANDIDATE_BYTES = 100


class Neighbors(NamedTuple):
    """The ``k`` best gallery rows of each query, best first."""

    rows: Int[Tensor, "queries k"]
    scores: Float[Tensor, "queries k"]


def nearest(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery gallery_dim"],
    k: int,
    *,
    exclude_self: bool = False,
    memory_budget: int = 1 << 30,
) -> Neighbors:
    """The ``k`` rows of ``gallery`` most similar to each of ``queries``, on the device of the inputs.

    Vectors are float32 and of unit length, so that their inner product is the cosine. With ``exclude_self`` the
    queries are the gallery and row i is not a neighbour of query i; a copy of it in another row is. Where fewer
    than ``k`` rows are left to find, all of them are returned: the result then has fewer columns.

    Example:
        >>> east, north = [1.0, 0.0], [0.0, 1.0]
        >>> nearest(torch.tensor([east]), torch.tensor([north, east, east]), k=2).rows
        tensor([[1, 2]])
    """
    if k < 1:
        raise ValueError(f"k = {k}: ask for at least one neighbour")
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(f"queries have {queries.shape[1]} dimensions and the gallery {gallery.shape[1]}")
    if exclude_self and queries.shape != gallery.shape:
        raise ValueError("exclude_self: pass the same vectors as queries and gallery")
    depth = torch.full((len(queries),), min(k, len(gallery)), device=queries.device)
    found = []
    for part in query_blocks(len(queries), min(k, len(gallery)), memory_budget):
        self_at = part.start if exclude_self else None
        best = TopK(queries[part], gallery, depth[part], memory_budget, self_at=self_at)
        best.search()
        found.append(best.neighbors())
    return Neighbors(*(torch.cat(column) for column in zip(*found, strict=True)))


def query_blocks(count: int, k: int, memory_budget: int) -> list[slice]:
    """Runs of ``count`` queries whose candidates fit into half of ``memory_budget``; at least one, which may be empty.

    Example:
        >>> query_blocks(5, k=97, memory_budget=60_000)
        [slice(0, 3, None), slice(3, 5, None)]
    """
    size = max(1, memory_budget // (2 * CANDIDATE_BYTES * (k + SPARE)))
    return [slice(start, min(start + size, count)) for start in range(0, max(1, count), size)]


class TopK:
    """The best rows of each query: by a search of its own, or as a reader of `softtriple.search.similarity.tiles`.

    Query i gets ``depth[i]`` neighbours; what stands behind them in its row is not defined. Where query i is the
    gallery row ``self_at + i``, that row is not its neighbour. ``ids`` are the rows to report, and to order equal
    similarities by, for a gallery that has been rearranged.
    """

    def __init__(
        self,
        queries: Float[Tensor, "queries dim"],
        gallery: Float[Tensor, "gallery dim"],
        depth: Int[Tensor, " queries"],
        memory_budget: int,
        *,
        self_at: int | None,
        ids: Int[Tensor, " gallery"] | None = None,
    ) -> None:
        self.queries = queries
        self.gallery = gallery
        self.memory_budget = memory_budget
        self.bound = error_bound(queries, gallery)
        self.self_at = self_at
        self.ids = torch.arange(len(gallery), device=gallery.device) if ids is None else ids
        available = max(0, len(gallery) - int(self_at is not None))
        self.depth = depth.clamp(max=available)
        width = min(int(self.depth.amax() if len(depth) else 0) + SPARE, available)
        self.all_kept = width == available
        # Column of the worst candidate that a query still needs.
        self.last = (self.depth + SPARE - 1).clamp(max=width - 1)[:, None]
        self.values = queries.new_full((len(queries), width), -torch.inf)
        self.rows = torch.zeros(len(queries), width, dtype=torch.int64, device=queries.device)

    def search(self) -> None:
        """Find the candidates among all rows."""
        if self.queries.device.type == "cpu":
            self._search_flat()
        else:
            for tile in tiles(self.queries, self.gallery, self.memory_budget, self_at=self.self_at):
                self.update(tile)

    def _search_flat(self) -> None:
        # faiss selects while it multiplies: two to four times faster than tiles in 64 dimensions, even in 512.
        width = self.values.shape[1]
        if self.values.numel() == 0:
            return
        excluded = int(self.self_at is not None)
        values, rows = faiss.knn(
            self.queries.detach().contiguous().numpy(),
            self.gallery.detach().contiguous().numpy(),
            width + excluded,
            metric=faiss.METRIC_INNER_PRODUCT,
        )
        self.values, self.rows = torch.from_numpy(values), torch.from_numpy(rows)
        if self.self_at is not None:
            itself = self.rows == torch.arange(self.self_at, self.self_at + len(rows))[:, None]
            # Copies can push a row off its own list; then the last one goes instead.
            itself[~itself.any(dim=1), -1] = True
            self.values, self.rows = (found[~itself].view(-1, width) for found in (self.values, self.rows))

    def update(self, tile: Tile) -> None:
        """Take in the similarities of one tile."""
        width = self.values.shape[1]
        if width == 0:
            return
        values, rows = self.values[tile.rows], self.rows[tile.rows]
        # Reading a row's maximum is far cheaper than selecting from it, and most rows have nothing new to give.
        worst = values.gather(1, self.last[tile.rows])
        hot = (tile.values.amax(dim=1, keepdim=True) > worst).nonzero()[:, 0]
        found = take_rows(tile.values, hot).contiguous().topk(min(width, tile.values.shape[1]), dim=1)
        merged_values = torch.cat([values[hot], found.values], dim=1)
        merged_rows = torch.cat([rows[hot], found.indices + tile.cols.start], dim=1)
        values[hot], kept = merged_values.topk(width, dim=1)
        rows[hot] = merged_rows.gather(1, kept)

    def neighbors(self) -> Neighbors:
        """The neighbours in their final order, once every tile has been seen."""
        count, width = self.rows.shape
        k = int(self.depth.amax()) if count else 0
        owners = torch.arange(count, device=self.rows.device).repeat_interleave(width)
        scores = exact_pairs(self.queries, self.gallery, owners, self.rows.flatten(), self.memory_budget)
        # Sorting by row, then stably by score, leaves equal scores in the order of rows.
        rows, by_row = self.ids[self.rows].sort(dim=1)
        scores, by_score = scores.view(count, width).gather(1, by_row).sort(dim=1, descending=True, stable=True)
        rows = rows.gather(1, by_score)
        if k and not self.all_kept:
            excluded = self.values.gather(1, self.last)[:, 0].double() + self.bound
            needed = scores.gather(1, (self.depth - 1).clamp(min=0)[:, None])[:, 0]
            for query in ((excluded >= needed) & (self.depth > 0)).nonzero()[:, 0].tolist():
                found, exact = self._search_again(query, float(needed[query]) - self.bound)
                rows[query, : len(found)], scores[query, : len(found)] = found, exact
        return Neighbors(rows[:, :k], scores[:, :k].float())

    def _search_again(self, query: int, threshold: float) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
        """Rows and float64 scores of one query's neighbours, none of which has a float32 score below ``threshold``."""
        with full_float32():
            values = self.gallery @ self.queries[query]
        if self.self_at is not None:
            values[query + self.self_at] = -torch.inf
        rows = (values >= threshold).nonzero()[:, 0]
        scores = exact_pairs(self.queries, self.gallery, torch.full_like(rows, query), rows, self.memory_budget)
        rows, by_row = self.ids[rows].sort()
        scores, by_score = scores[by_row].sort(descending=True, stable=True)
        depth = int(self.depth[query])
        return rows[by_score[:depth]], scores[:depth]
