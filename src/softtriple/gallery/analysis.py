"""Analysis of a whole store: recall and confusions of each class, a map, and the items nearest to each centre."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.data.sampling import stream
from softtriple.errors import UserError
from softtriple.gallery.layout import digest_of
from softtriple.losses.centers import MERGED, merge_groups, nearest_centers
from softtriple.search import Item, Store
from softtriple.search.knn import error_bound, top_rows

SCRATCH = 1 << 27  # bytes of working memory of a search
UNIT = 1.01  # more than the length of any rounded unit vector


class ClassScore(NamedTuple):
    """Retrieval quality of one class, by those of its items whose nearest other item is known."""

    name: str
    items: int
    measured: int  # items whose nearest other item is known
    recall: float | None  # share of these for which it is of the class; None for a single item, or if none is known
    confused: tuple[tuple[str, int], ...]  # other classes of nearest items and their counts, most frequent first


class Projection(NamedTuple):
    """Items in the plane of the first two principal components."""

    rows: Int[np.ndarray, " points"]  # of the snapshot
    points: Float[np.ndarray, "points 2"]
    explained: float  # share of the variance


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The items of a store, or a sample of them, read into memory once; each analysis is computed on first use.

    `taken` and `measured` may be used by several threads, everything else by one.
    """

    items: tuple[Item, ...]
    vectors: Float[Tensor, "items dim"]  # unit length
    labels: Int[Tensor, " items"]  # positions in class_names
    class_names: tuple[str, ...]
    sizes: Mapping[str, int]  # items of every class in the store, including classes that were not sampled
    taken_for: Int[Tensor, " items"]  # class of the nearest other item of each item; -1: not known yet
    map_points: int = 100_000
    answers: dict[str, bytes] = field(default_factory=dict)  # large ones, made once

    @property
    def total(self) -> int:
        """The number of items in the store."""
        return sum(self.sizes.values())

    @property
    def measured(self) -> int:
        """The number of items whose nearest other item is known."""
        return int((self.taken_for >= 0).sum())

    def row_of(self, item_id: str) -> int | None:
        """The row of an item; None if it was not sampled."""
        return self._row_numbers.get(item_id)

    @cached_property
    def _row_numbers(self) -> dict[str, int]:
        return {item.id: row for row, item in enumerate(self.items)}

    def rows_of(self, class_name: str) -> Int[Tensor, " rows"]:
        """The rows of the items of a class; none if the class was not sampled."""
        return self._members.get(class_name, torch.empty(0, dtype=torch.int64))

    @cached_property
    def _members(self) -> dict[str, Int[Tensor, " rows"]]:
        sizes = self.labels.bincount(minlength=len(self.class_names)).tolist()
        return dict(zip(self.class_names, torch.split(self.labels.argsort(stable=True), sizes), strict=True))

    @cached_property
    def order(self) -> list[int]:
        """The rows in a random but fixed order, so that the first few show many classes."""
        return [int(row) for row in stream("gallery", 0).permutation(len(self.items))]

    def taken(self, rows: Sequence[int]) -> list[int]:
        """The class of the nearest other item of each of ``rows``, by exact search; if there is no other, its own."""
        wanted = torch.tensor(rows, dtype=torch.int64)
        missing = wanted[self.taken_for[wanted] < 0]
        if len(missing):
            bound = error_bound(self.vectors.shape[1], UNIT, UNIT)
            neighbors = top_rows(self.vectors[missing], self.vectors, 2, memory_budget=SCRATCH, bound=bound)
            found = torch.from_numpy(neighbors.rows)
            # The nearest is the item itself, unless it has copies, of which the first comes first.
            self.taken_for[missing] = self.labels[torch.where(found[:, 0] == missing, found[:, -1], found[:, 0])]
        return list(self.taken_for[wanted].tolist())

    def score(self, class_name: str) -> ClassScore:
        """The score of a class, as far as it is measured; its size is that in the store if it was not sampled."""
        rows = self.rows_of(class_name)
        labels = self.taken_for[rows]
        counts = Counter(self.class_names[label] for label in labels[labels >= 0].tolist())
        measured = counts.total()
        right = counts.pop(class_name, 0)
        recall = right / measured if len(rows) > 1 and measured else None
        items = len(rows) or self.sizes[class_name]
        return ClassScore(class_name, items, measured, recall, tuple(counts.most_common()))

    def scores(self) -> list[ClassScore]:
        """The score of each class, lowest recall first."""
        return sorted(map(self.score, self.class_names), key=lambda one: (one.recall is None, one.recall, one.name))

    @cached_property
    def map_rows(self) -> Int[np.ndarray, " points"]:
        """The rows of the items on the map: all, or ``map_points`` of them."""
        return np.sort(np.array(self.order[: self.map_points], dtype=np.int64))

    @cached_property
    def digest(self) -> str:
        """Identifies the items on the map and their embeddings."""
        rows = self.map_rows
        return digest_of([self.items[row].id for row in rows], self.vectors[rows].numpy())

    @cached_property
    def projection(self) -> Projection:
        """The first two principal components of all vectors, for the items on the map."""
        rows = self.map_rows
        if not self.items:
            return Projection(rows, np.empty((0, 2)), 0.0)
        centered = self.vectors.double()
        centered = centered - centered.mean(dim=0)
        variances, directions = torch.linalg.eigh(centered.T @ centered)
        plane = F.pad(directions[:, -2:].flip(1), (0, max(0, 2 - directions.shape[1])))
        # The sign of an eigenvector is arbitrary: a positive largest component keeps the map the same on every machine.
        plane = plane * plane.gather(0, plane.abs().argmax(dim=0, keepdim=True)).sign()
        total = float(variances.clamp(min=0).sum())
        explained = float(variances.clamp(min=0)[-2:].sum()) / total if total else 0.0
        return Projection(rows, (centered[rows] @ plane).numpy(), explained)


def mean_recall(scores: Sequence[ClassScore]) -> float | None:
    """Recall over all measured items of classes of more than one; None without any."""
    rated = [(score.recall, score.measured) for score in scores if score.recall is not None]
    return sum(recall * items for recall, items in rated) / sum(items for _, items in rated) if rated else None


def take_snapshot(store: Store, most: int) -> Snapshot:
    """Read ``store``, or a sample of at most ``most`` of its items."""
    sizes = store.classes()
    chosen, step = sample(sizes, most)
    items: list[Item] = []
    parts, seen = [torch.empty(0, store.dim)], 0
    for batch, vectors in store.scan():
        candidates = [row for row, item in enumerate(batch) if item.class_name in chosen]
        rows = candidates[-seen % step :: step]
        seen += len(candidates)
        items += [batch[row] for row in rows]
        parts.append(torch.from_numpy(np.asarray(vectors, dtype=np.float32)[rows]))
    # Not the labels of the store: data sets indexed one after the other number their classes independently.
    class_names = tuple(sorted({item.class_name for item in items}))
    number = {name: number for number, name in enumerate(class_names)}
    labels = torch.tensor([number[item.class_name] for item in items], dtype=torch.int64)
    unit = F.normalize(torch.cat(parts), dim=1)
    return Snapshot(tuple(items), unit, labels, class_names, sizes, torch.full_like(labels, -1))


def sample(sizes: Mapping[str, int], most: int) -> tuple[set[str], int]:
    """The classes of a sample of at most ``most`` items, and a step: every ``step``-th item of them is taken.

    Whole classes are sampled, because an item loses its true neighbours if its class is thinned out. Only if fewer than
    two classes fit, every class is thinned.
    """
    total = sum(sizes.values())
    if total <= most:
        return set(sizes), 1
    names, chosen, items = sorted(sizes), set(), 0
    for place in stream("gallery classes", 0).permutation(len(names)):
        if items + sizes[names[place]] <= most:
            chosen.add(names[place])
            items += sizes[names[place]]
    return (chosen, 1) if len(chosen) > 1 else (set(names), -(-total // most))


class CenterGroup(NamedTuple):
    """A distinct centre: how many trained centres merged into it, and the rows nearest to it, closest first."""

    merged: int
    rows: list[int]


def center_groups(
    vectors: Float[Tensor, "items dim"], centers: Float[Tensor, "k dim"], rows: Sequence[int]
) -> list[CenterGroup]:
    """The distinct centres of a class with the items nearest to each, largest group first.

    ``rows[i]`` is the row that stands for ``vectors[i]`` in the result.
    """
    unit = F.normalize(centers, dim=-1)
    leaders, merged = torch.unique(merge_groups(unit[None], MERGED), return_counts=True)
    owners = nearest_centers(vectors, torch.zeros(len(vectors), dtype=torch.int64), centers[None])
    closest_first = (vectors @ unit.T).amax(dim=1).argsort(descending=True, stable=True)
    groups = []
    for leader, count in zip(leaders.tolist(), merged.tolist(), strict=True):
        members = closest_first[owners[closest_first] == leader]
        groups.append(CenterGroup(count, [rows[item] for item in members.tolist()]))
    return sorted(groups, key=lambda group: (-len(group.rows), -group.merged))


def check_centers(centers: Tensor, num_classes: int, dim: int) -> None:
    """Require that ``centers`` are finite and fit the encoder, so that a damaged run fails at the start."""
    if centers.ndim != 3 or (centers.shape[0], centers.shape[2]) != (num_classes, dim):
        raise UserError(
            f"the centres of this run have shape {tuple(centers.shape)}, but its encoder has {num_classes} classes and "
            f"{dim} dimensions: expected ({num_classes}, k, {dim}). centers.safetensors belongs to another run"
        )
    if not centers.isfinite().all():
        raise UserError("the centres of this run contain NaN or infinite numbers; centers.safetensors is damaged")
