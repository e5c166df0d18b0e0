"""From vectors and labels to a report: ranks, neighbours and clusters, in bounded memory."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple import dist
from softtriple.data import read_vectors
from softtriple.errors import UserError, counted
from softtriple.metrics.clustering import MANY, Agreement, Clustering, cluster_means, kmeans, principal_components
from softtriple.metrics.intervals import class_intervals
from softtriple.metrics.report import ClassResult, KMeansRuns, Report
from softtriple.metrics.retrieval import precision_per_query
from softtriple.search.knn import as_rows, first_hit_ranks, query_blocks, ranked_rows

# Iterations of every run of k-means with few classes, of which only the best is continued.
_HEAT = 6
# Principal components on which these run, for vectors with at least twice as many dimensions: noise matters less.
# Of 2 to 8 iterations and 64 or 128 components, tried on the synthetic sets of benchmarks/evaluate.py, these ended with
# the lowest objective for the time.
_COMPONENTS = 128
# Queries with at most this many positives are searched together. Larger numbers are grouped by powers of two, so that
# one large class does not make every query collect as many candidates.
_SHALLOW = 128


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A vector and a class for every item, on one device.

    Vectors need not have unit length. A zero vector is allowed: its similarity to everything is 0. NaN and infinite
    numbers are not.
    """

    vectors: Tensor  # (items, dim), floating-point
    labels: Tensor  # (items,), integers
    paths: tuple[str, ...] | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        vectors, labels = self.vectors, self.labels
        if vectors.ndim != 2 or not vectors.is_floating_point() or vectors.numel() == 0:
            shape = tuple(vectors.shape)
            raise UserError(f"vectors: expected rows of floating-point numbers, got shape {shape} of {vectors.dtype}")
        if labels.shape != vectors.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
            shape = tuple(labels.shape)
            raise UserError(f"labels: expected {len(vectors)} integers, one per vector, got {shape} of {labels.dtype}")
        if self.paths is not None and len(self.paths) != len(vectors):
            raise UserError(f"paths: expected {len(vectors)}, one per vector, got {len(self.paths)}")
        least, most = int(labels.min()), int(labels.max())
        if self.class_names and not 0 <= least <= most < len(self.class_names):
            raise UserError(f"class_names: {len(self.class_names)} names do not cover labels {least} to {most}")
        # A row's sum is finite if and only if its numbers are, and takes no copy of the vectors.
        broken = (~vectors.sum(dim=1, dtype=torch.float64).isfinite()).nonzero()[:, 0]
        if len(broken):
            rows = counted(len(broken), "row")
            raise UserError(f"vectors: NaN or infinite numbers in {rows}, the first is row {int(broken[0])}")

    def class_name(self, label: int) -> str:
        """The name of a class, or its number where classes have no names."""
        return self.class_names[label] if self.class_names else str(label)


def evaluate(
    embeddings: Any,
    labels: Any = None,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    recall_at: Sequence[int] = (1, 2, 4, 8),
    kmeans_restarts: int | None = None,
    seed: int = 0,
    memory_budget: int = 1 << 30,
    bootstrap: int = 1000,
) -> Report:
    """Every metric of `Report` for ``embeddings`` searched among themselves, or in ``gallery``.

    ``embeddings`` are an `Embeddings` value, or vectors (an array, tensor or list of rows) with ``labels`` (integers or
    strings, one per vector); likewise ``gallery`` and ``gallery_labels``. ``kmeans_restarts`` defaults to 3, or to 1
    beyond a thousand classes; 0 skips NMI and AMI. ``bootstrap`` is the number of resamples for the intervals; 0, or a
    single class, skips them. Working memory stays within about ``memory_budget`` bytes, besides one normalised copy of
    the vectors. ``seed`` fixes k-means and bootstrap.

    In a distributed job every rank passes all vectors; the ranks share the work and return the same report as a single
    process would.

    Example:
        >>> report = evaluate([[1.0, 0.1], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]], ["cat", "cat", "dog", "dog"])
        >>> report.recall[1], report.recall_per_class
        (1.0, {'cat': 1.0, 'dog': 1.0})
    """
    if not recall_at or min(recall_at) < 1:
        raise UserError(f"recall_at = {tuple(recall_at)}: give at least one rank, each at least 1")
    if kmeans_restarts is not None and kmeans_restarts < 0:
        raise UserError(f"kmeans_restarts = {kmeans_restarts}: give 0 or more")
    if bootstrap < 0:
        raise UserError(f"bootstrap = {bootstrap}: give 0 or more")
    asked, searched = _as_embeddings(embeddings, labels, gallery, gallery_labels)
    if searched is not None and searched.vectors.shape[1] != asked.vectors.shape[1]:
        raise UserError(
            f"gallery: {searched.vectors.shape[1]} dimensions, but the queries have {asked.vectors.shape[1]}"
        )
    seconds: dict[str, float] = {}
    with _timed(seconds, "ranking"):
        queries = _unit(asked.vectors)
        items = queries if searched is None else _unit(searched.vectors)
        ranking = _rank(queries, asked.labels, items, (searched or asked).labels, memory_budget)
        answerable = ranking.positives > 0
        if not answerable.any():
            raise UserError("no query has another item of its class to find: at least one class needs two items")
        ranks, classes = ranking.first_hit[answerable], asked.labels[answerable]
        values = {f"recall@{k}": (ranks <= k).double() for k in sorted(set(recall_at))}
        values["precision_at_1"] = (ranks == 1).double()
        values["r_precision"] = ranking.r_precision[answerable]
        values["map_at_r"] = ranking.average_precision[answerable]
        means = {name: column.mean().item() for name, column in values.items()}
    num_classes = len(torch.unique(asked.labels))
    with _timed(seconds, "clustering"):
        if kmeans_restarts is None:
            kmeans_restarts = 3 if num_classes <= MANY else 1
        runs = _cluster(queries.cpu(), asked.labels, kmeans_restarts, seed) if kmeans_restarts else None
    with _timed(seconds, "intervals"):
        columns = torch.stack(list(values.values()), dim=1)
        several = bootstrap and len(torch.unique(classes)) > 1  # one class does not show how classes differ
        intervals = class_intervals(columns, classes, resamples=bootstrap, seed=seed) if several else []
    return Report(
        recall={k: means[f"recall@{k}"] for k in sorted(set(recall_at))},
        precision_at_1=means["precision_at_1"],
        r_precision=means["r_precision"],
        map_at_r=means["map_at_r"],
        nmi=runs.nmi if runs else None,
        ami=runs.ami if runs else None,
        num_queries=len(queries),
        num_gallery=len(items),
        num_classes=num_classes,
        num_without_positives=int((~answerable).sum()),
        num_zero_vectors=_count_zero(asked) + (_count_zero(searched) if searched else 0),
        kmeans=runs.summary if runs else None,
        intervals=dict(zip(values, intervals, strict=True)) if intervals else {},
        per_class=_per_class(asked, classes, values["precision_at_1"], values["map_at_r"]),
        seconds=seconds,
    )


def _as_embeddings(
    vectors: Any, labels: Any, gallery: Any, gallery_labels: Any
) -> tuple[Embeddings, Embeddings | None]:
    """Queries and gallery as values whose labels number the same classes."""
    for name, given, its_labels in (("embeddings", vectors, labels), ("gallery", gallery, gallery_labels)):
        if isinstance(given, Embeddings) and its_labels is not None:
            raise UserError(f"{name} is an Embeddings value, which has labels: do not pass labels as well")
        if given is not None and not isinstance(given, Embeddings) and its_labels is None:
            raise UserError(f"{name}: got {type(given).__name__} without labels; pass labels, one per vector")
    if gallery is None and gallery_labels is not None:
        raise UserError("gallery_labels without a gallery: pass both or neither")
    if isinstance(vectors, Embeddings) and (gallery is None or isinstance(gallery, Embeddings)):
        return vectors, gallery
    if isinstance(vectors, Embeddings) or isinstance(gallery, Embeddings):
        raise UserError("embeddings and gallery: pass both as Embeddings, or both as vectors and labels")
    sides = [("labels", vectors, labels)]
    if gallery is not None:
        sides.append(("gallery_labels", gallery, gallery_labels))
    arrays = [_label_array(values, name) for name, _, values in sides]
    names: tuple[str, ...] = ()
    if any(array.dtype.kind == "U" for array in arrays):
        if len({array.dtype.kind for array in arrays}) > 1:
            raise UserError("labels and gallery_labels: one are strings, the other integers")
        distinct, codes = np.unique(np.concatenate(arrays), return_inverse=True)
        names = tuple(distinct.tolist())
        arrays = np.split(codes, [len(arrays[0])])[: len(arrays)]
    made = []
    for (name, side, _), array in zip(sides, arrays, strict=True):
        rows = as_rows(side, "embeddings" if name == "labels" else "gallery")
        numbers = torch.from_numpy(array.astype(np.int64)).to(rows.device)
        made.append(Embeddings(rows, numbers, class_names=names))
    return made[0], made[1] if len(made) > 1 else None


def _label_array(labels: Any, name: str) -> NDArray[Any]:
    """Labels as an array of integers or of strings."""
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind == "O" and all(isinstance(label, str) for label in array.flat):
        array = array.astype(np.str_)
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise UserError(f"{name}: expected one integer or string per vector, got {array.dtype} of shape {array.shape}")
    return array


def evaluate_file(path: Path, gallery: Path | None = None, recall_at: Sequence[int] = (1, 2, 4, 8)) -> Report:
    """The report of vectors and labels in a .npz or .parquet file, searched among themselves or in another file."""
    queries, items = _read_embeddings(path), None if gallery is None else _read_embeddings(gallery)
    if items is not None and queries.class_names != items.class_names:
        raise UserError(
            f"{gallery}: its class_names differ from those of {path}, so equal labels mean different classes"
        )
    return evaluate(queries, gallery=items, recall_at=recall_at)


def _read_embeddings(path: Path) -> Embeddings:
    content = read_vectors(path)
    vectors, labels = torch.from_numpy(content.vectors), torch.from_numpy(content.labels)
    return Embeddings(vectors, labels, class_names=content.class_names or ())


class _Ranking(NamedTuple):
    """What the metrics need to know about each query, in the order of the queries."""

    positives: Int[Tensor, " queries"]
    first_hit: Int[Tensor, " queries"]
    r_precision: Float[Tensor, " queries"]
    average_precision: Float[Tensor, " queries"]


def _rank(
    queries: Float[Tensor, "queries dim"],
    labels: Int[Tensor, " queries"],
    items: Float[Tensor, "items dim"],
    item_labels: Int[Tensor, " items"],
    memory_budget: int,
) -> _Ranking:
    """Rank the items for this process's share of the queries, and gather the results of all ranks.

    A query's first R neighbours give R-precision and MAP@R, and the rank of the first hit if there is one among them.
    For the other queries it is counted.
    """
    among = queries is items
    by_class = item_labels.sort().values
    first, last = (torch.searchsorted(by_class, labels, right=right) for right in (False, True))
    positives = last - first - int(among)
    share = dist.share(len(labels))
    rows = torch.arange(share.start, share.stop, device=labels.device)
    first_hit = torch.zeros_like(rows)
    r_precision, average_precision = torch.zeros(2, len(rows), dtype=torch.float64, device=rows.device)
    for part in _groups(positives[share], memory_budget):
        asked = rows[part]
        depth = max(1, int(positives[asked].amax()))
        vectors = queries if len(asked) == len(queries) else queries[asked]
        own = asked if among else None
        neighbors = ranked_rows(vectors, items, depth, own=own, memory_budget=memory_budget)
        neighbor_labels = item_labels[torch.from_numpy(neighbors).to(item_labels.device)]
        precision = precision_per_query(neighbor_labels, labels[asked], positives[asked])
        r_precision[part], average_precision[part] = precision
        hits = neighbor_labels == labels[asked][:, None]
        if hits.shape[1]:  # a single item has no neighbours
            first = torch.from_numpy(hits.cpu().numpy().argmax(axis=1)).to(hits.device)  # many times as fast as torch
            first_hit[part] = torch.where(hits.any(dim=1), first + 1, 0)
    unknown = rows[(first_hit == 0) & (positives[share] > 0)]
    first_hit[unknown - share.start] = first_hit_ranks(
        queries[unknown],
        labels[unknown],
        gallery=items,
        gallery_labels=item_labels,
        own=unknown if among else None,
        memory_budget=memory_budget,
    )
    return _Ranking(positives, *map(dist.gather_rows, (first_hit, r_precision, average_precision)))


def _groups(positives: Int[Tensor, " queries"], memory_budget: int) -> Iterator[Int[Tensor, " some"]]:
    """Queries with similar numbers of positives, so few at a time that their neighbours fit the budget."""
    levels = (positives.clamp(min=_SHALLOW) / _SHALLOW).log2().ceil().int()
    for level in torch.unique(levels).tolist():
        chosen = (levels == level).nonzero()[:, 0]
        for part in query_blocks(len(chosen), int(positives[chosen].amax()), memory_budget):
            yield chosen[part]


class _Clusters(NamedTuple):
    nmi: float
    ami: float
    summary: KMeansRuns


def _cluster(vectors: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], restarts: int, seed: int) -> _Clusters:
    """NMI and AMI by k-means.

    With many classes they are those of the best run. With few, short runs compete, and the best of them is continued.
    """
    num_clusters = len(torch.unique(labels))
    many = num_clusters > MANY
    wide = vectors.shape[1] >= 2 * _COMPONENTS and len(vectors) > 1 and not many
    sketch = principal_components(vectors, _COMPONENTS) if wide else vectors
    options: dict[str, Any] = {"tolerance": 1e-2} if many else {"iterations": _HEAT}
    agreement = Agreement(labels)

    def run(restart: int) -> tuple[Clustering, float, float]:
        clustering = kmeans(sketch, num_clusters, seed=seed + restart, **options)
        return clustering, agreement.nmi(clustering.clusters), agreement.ami(clustering.clusters)

    of_ranks = dist.gather_objects([run(restart) for restart in range(restarts)[dist.share(restarts)]])
    runs, nmis, amis = zip(*itertools.chain.from_iterable(of_ranks), strict=True)
    best = min(runs, key=lambda run: run.objective)
    if not many:
        best = kmeans(vectors, num_clusters, start=cluster_means(vectors, best.clusters, num_clusters))
    summary = KMeansRuns(
        seed=seed,
        restarts=restarts,
        objective=best.objective,
        nmi_spread=max(nmis) - min(nmis) if restarts > 1 else None,
        ami_spread=max(amis) - min(amis) if restarts > 1 else None,
    )
    return _Clusters(agreement.nmi(best.clusters), agreement.ami(best.clusters), summary)


def _per_class(
    embeddings: Embeddings,
    labels: Int[Tensor, " queries"],
    hits: Float[Tensor, " queries"],
    average_precision: Float[Tensor, " queries"],
) -> dict[str, ClassResult]:
    """Means over the queries of each class."""
    classes, index, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
    columns = torch.stack([hits, average_precision], dim=1)
    means = columns.new_zeros(len(classes), 2).index_add_(0, index, columns) / sizes[:, None]
    return {
        embeddings.class_name(label): ClassResult(queries=size, recall_at_1=recall, map_at_r=precision)
        for label, size, (recall, precision) in zip(classes.tolist(), sizes.tolist(), means.tolist(), strict=True)
    }


def _unit(vectors: Float[Tensor, "items dim"]) -> Float[Tensor, "items dim"]:
    """Vectors in float32, normalised to unit length; zero vectors stay zero."""
    vectors = vectors.detach()
    # Divide by the largest number first: squares of very large or small numbers leave the range of float32.
    largest = vectors.abs().amax(dim=1, keepdim=True)
    return F.normalize((vectors / largest.where(largest > 0, 1)).float(), dim=1)


def _count_zero(embeddings: Embeddings) -> int:
    return int((embeddings.vectors == 0).all(dim=1).sum())


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
