"""From vectors and labels to a report: ranks, neighbours and clusters, in bounded memory."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from softtriple import dist
from softtriple.metrics.clustering import ami, kmeans, nmi
from softtriple.metrics.intervals import class_intervals
from softtriple.metrics.ranks import ByClass, FirstHit
from softtriple.metrics.report import KMeansRuns, Report
from softtriple.metrics.retrieval import average_precision_at_r, r_precision_per_query
from softtriple.search.knn import SPARE, TopK, query_blocks
from softtriple.search.similarity import Tile, tiles

# Beyond so many classes an iteration of k-means takes seconds, and runs differ little, because what is chance in one
# cluster averages out over thousands: one run, which stops when an iteration gains less than a hundredth.
_MANY_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A vector and a class for every item, on one device.

    Vectors need not have unit length. A vector of zeros is allowed: its similarity to everything is 0. NaN and
    infinite numbers are not.
    """

    vectors: Tensor  # (items, dim), floating-point
    labels: Tensor  # (items,), integers
    paths: tuple[str, ...] | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        vectors, labels = self.vectors, self.labels
        if vectors.ndim != 2 or not vectors.is_floating_point() or vectors.numel() == 0:
            shape = tuple(vectors.shape)
            raise ValueError(f"vectors: expected rows of floating-point numbers, got {shape} {vectors.dtype}")
        if labels.shape != vectors.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
            shape = tuple(labels.shape)
            raise ValueError(f"labels: expected {len(vectors)} integers, one a vector, got {shape} {labels.dtype}")
        if self.paths is not None and len(self.paths) != len(vectors):
            raise ValueError(f"paths: expected {len(vectors)}, one a vector, got {len(self.paths)}")
        least, most = int(labels.min()), int(labels.max())
        if self.class_names and not 0 <= least <= most < len(self.class_names):
            raise ValueError(f"class_names: {len(self.class_names)} names do not cover labels {least} to {most}")
        # The sum of a row is finite unless a number of it is not, and needs no copy of the vectors.
        broken = (~vectors.sum(dim=1, dtype=torch.float64).isfinite()).nonzero()[:, 0]
        if len(broken):
            raise ValueError(
                f"vectors: {len(broken)} rows hold NaN or infinite numbers, the first is row {int(broken[0])}"
            )

    def class_name(self, label: int) -> str:
        """The name of a class, or its number where classes have no names."""
        return self.class_names[label] if self.class_names else str(label)


def evaluate(
    embeddings: Embeddings,
    *,
    gallery: Embeddings | None = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    kmeans_restarts: int | None = None,
    seed: int = 0,
    memory_budget: int = 1 << 30,
    bootstrap: int = 1000,
) -> Report:
    """Every metric of `Report` for ``embeddings`` searched among themselves, or in ``gallery``.

    ``kmeans_restarts`` is 5, or 1 beyond a thousand classes, unless given; 0 leaves out NMI and AMI. ``bootstrap`` is
    the number of resamples for the intervals; 0, or a single class, leaves them out. Working memory stays within about
    ``memory_budget`` bytes, besides one unit-length copy of the vectors. ``seed`` fixes k-means and bootstrap.

    Over several ranks each has all vectors and calls it; they share the work, and all have the report of one process.
    """
    if not recall_at or min(recall_at) < 1:
        raise ValueError(f"recall_at = {tuple(recall_at)}: give at least one rank, each at least 1")
    if kmeans_restarts is not None and kmeans_restarts < 0:
        raise ValueError(f"kmeans_restarts = {kmeans_restarts}: give 0 or more")
    if bootstrap < 0:
        raise ValueError(f"bootstrap = {bootstrap}: give 0 or more")
    if gallery is not None and gallery.vectors.shape[1] != embeddings.vectors.shape[1]:
        raise ValueError(
            f"gallery: {gallery.vectors.shape[1]} dimensions, but the queries have {embeddings.vectors.shape[1]}"
        )
    seconds: dict[str, float] = {}
    with _timed(seconds, "ranking"):
        queries = ByClass.sort(_unit(embeddings.vectors), embeddings.labels)
        items = None if gallery is None else ByClass.sort(_unit(gallery.vectors), gallery.labels)
        ranking = _rank(queries, items, memory_budget)
        found = ranking.positives > 0
        if not found.any():
            raise ValueError("no query has another item of its class to find: every class would need two items")
        ranks, labels = ranking.first_hit[found], queries.labels[found]
        values = {f"recall@{k}": (ranks <= k).double() for k in sorted(set(recall_at))}
        values["precision_at_1"] = (ranks == 1).double()
        values["r_precision"] = ranking.r_precision[found]
        values["map_at_r"] = ranking.average_precision[found]
        means = {name: column.mean().item() for name, column in values.items()}
    num_classes = len(torch.unique(queries.labels))
    with _timed(seconds, "clustering"):
        if kmeans_restarts is None:
            kmeans_restarts = 5 if num_classes <= _MANY_CLASSES else 1
        runs = _cluster(queries, num_classes, kmeans_restarts, seed) if kmeans_restarts else None
    with _timed(seconds, "intervals"):
        columns = torch.stack(list(values.values()), dim=1)
        several = bootstrap and len(torch.unique(labels)) > 1  # one class says nothing of how classes differ
        intervals = class_intervals(columns, labels, resamples=bootstrap, seed=seed) if several else []
    return Report(
        recall={k: means[f"recall@{k}"] for k in sorted(set(recall_at))},
        precision_at_1=means["precision_at_1"],
        r_precision=means["r_precision"],
        map_at_r=means["map_at_r"],
        nmi=runs.nmi if runs else None,
        ami=runs.ami if runs else None,
        num_queries=len(queries.labels),
        num_gallery=len((items or queries).labels),
        num_classes=num_classes,
        num_without_positives=int((~found).sum()),
        num_zero_vectors=_count_zero(embeddings) + (_count_zero(gallery) if gallery else 0),
        kmeans=runs.summary if runs else None,
        intervals=dict(zip(values, intervals, strict=True)) if intervals else {},
        recall_per_class=_recall_per_class(embeddings, values[f"recall@{min(recall_at)}"], labels),
        seconds=seconds,
    )


class _Ranking(NamedTuple):
    """What the metrics need to know of each query, in the order of the queries."""

    positives: Int[Tensor, " queries"]
    first_hit: Int[Tensor, " queries"]
    r_precision: Float[Tensor, " queries"]
    average_precision: Float[Tensor, " queries"]


def _rank(queries: ByClass, gallery: ByClass | None, memory_budget: int) -> _Ranking:
    items = queries if gallery is None else gallery
    first, last = (torch.searchsorted(items.labels, queries.labels, right=right) for right in (False, True))
    positives = last - first - (1 if gallery is None else 0)
    own = dist.share(len(positives))  # each rank finds the neighbours of its queries, and counts in its tiles

    def top_k(part: slice) -> TopK:
        self_at = part.start if gallery is None else None
        vectors, depth = queries.vectors[part], positives[part]
        return TopK(vectors, items.vectors, depth, memory_budget, self_at=self_at, ids=items.rows)

    first_hit = FirstHit(queries, gallery, memory_budget)
    # Neighbours from the tiles of the rank count save products of their own but select more slowly than faiss. That
    # pays in 512 dimensions up to about 60 candidates, in 128 for a handful at most, and in 64 never.
    deepest = int(positives.amax())
    blocks = [_shifted(block, own.start) for block in query_blocks(len(positives[own]), deepest, memory_budget)]
    alone = dist.world_size() == 1
    shares = alone and len(blocks) == 1 and 16 * (deepest + SPARE) <= items.vectors.shape[1]
    shared = top_k(blocks[0]) if shares else None
    for tile in _own_tiles(queries.vectors, None if gallery is None else gallery.vectors, memory_budget // 2):
        first_hit.update(tile)
        if shared is not None:
            shared.update(tile)

    dist.sum_(first_hit.before)

    labels_by_row = items.unsort(items.labels)
    r_precision, average_precision = [], []
    for part in blocks:
        top = shared
        if top is None:
            top = top_k(part)
            top.search()
        relevance = labels_by_row[top.neighbors().rows], queries.labels[part], positives[part]
        r_precision.append(r_precision_per_query(*relevance))
        average_precision.append(average_precision_at_r(*relevance))
    found = (dist.gather_rows(torch.cat(values)) for values in (r_precision, average_precision))
    return _Ranking(positives, first_hit.ranks(), *found)


def _own_tiles(
    queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"] | None, memory_budget: int
) -> Iterator[Tile]:
    """This rank's part of all tiles: rows of queries, in one process all of them.

    Without a gallery the upper triangle is divided into runs of rows of equal area, and each tile beside the diagonal
    handed out as its transpose too.
    """
    if gallery is not None:
        own = dist.share(len(queries))
        for tile in tiles(queries[own], gallery, memory_budget):
            yield Tile(_shifted(tile.rows, own.start), tile.cols, tile.values)
        return
    bounds = (dist.rank(), dist.rank() + 1)
    start, stop = (round(len(queries) * (1 - (1 - bound / dist.world_size()) ** 0.5)) for bound in bounds)
    for tile in tiles(queries[start:stop], None, memory_budget):
        yield Tile(_shifted(tile.rows, start), _shifted(tile.cols, start), tile.values)
    for tile in tiles(queries[start:stop], queries[stop:], memory_budget):
        rows, cols = _shifted(tile.rows, start), _shifted(tile.cols, stop)
        yield Tile(rows, cols, tile.values)
        yield Tile(cols, rows, tile.values.T)


def _shifted(run: slice, by: int) -> slice:
    return slice(run.start + by, run.stop + by)


class _Clusters(NamedTuple):
    nmi: float
    ami: float
    summary: KMeansRuns


def _cluster(items: ByClass, num_clusters: int, restarts: int, seed: int) -> _Clusters:
    tolerance = 1e-4 if num_clusters <= _MANY_CLASSES else 1e-2
    vectors = items.vectors

    def run(restart: int) -> tuple[float, float, float]:
        found = kmeans(vectors, num_clusters, seed=seed + restart, tolerance=tolerance)
        return found.objective, nmi(items.labels, found.clusters), ami(items.labels, found.clusters)

    of_ranks = dist.gather_objects([run(restart) for restart in range(restarts)[dist.share(restarts)]])
    objectives, nmis, amis = zip(*itertools.chain.from_iterable(of_ranks), strict=True)
    best = min(range(restarts), key=lambda restart: objectives[restart])
    summary = KMeansRuns(
        seed=seed,
        restarts=restarts,
        objective=objectives[best],
        nmi_spread=max(nmis) - min(nmis) if restarts > 1 else None,
        ami_spread=max(amis) - min(amis) if restarts > 1 else None,
    )
    return _Clusters(nmis[best], amis[best], summary)


def _recall_per_class(
    embeddings: Embeddings, hits: Float[Tensor, " queries"], labels: Int[Tensor, " queries"]
) -> dict[str, float]:
    """Share of hits among the queries of each class."""
    classes, index, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    means = torch.zeros(len(classes), dtype=hits.dtype, device=hits.device).index_add_(0, index, hits) / sizes
    return {embeddings.class_name(label): mean for label, mean in zip(classes.tolist(), means.tolist(), strict=True)}


def _unit(vectors: Float[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """Vectors in float32 and of unit length; those of zeros stay as they are."""
    vectors = vectors.detach()
    # By the largest number first: squares of very large or small numbers leave the range of float32.
    largest = vectors.abs().amax(dim=1, keepdim=True)
    return F.normalize((vectors / largest.where(largest > 0, 1)).float(), dim=1)


def _count_zero(embeddings: Embeddings) -> int:
    return int((embeddings.vectors == 0).all(dim=1).sum())


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
