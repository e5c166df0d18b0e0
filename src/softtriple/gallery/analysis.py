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
from softtriple.search import Item, Store, nearest


class ClassScore(NamedTuple):
    """Retrieval quality of one class."""

    name: str
    items: int
    recall: float | None  # share of items whose nearest other item is of the class; None for a single item
    confused: tuple[tuple[str, int], ...]  # other classes of nearest items and their counts, most frequent first


class Projection(NamedTuple):
    """Items in the plane of the first two principal components."""

    rows: Int[np.ndarray, " points"]  # of the snapshot
    points: Float[np.ndarray, "points 2"]
    explained: float  # share of the variance


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The items of a store, or a sample of them, read into memory once; each analysis is computed on first use."""

    items: tuple[Item, ...]
    vectors: Float[Tensor, "items dim"]  # unit length
    labels: Int[Tensor, " items"]  # positions in class_names
    class_names: tuple[str, ...]
    sizes: Mapping[str, int]  # items of every class in the store, including classes that were not sampled
    map_points: int = 100_000
    answers: dict[str, bytes] = field(default_factory=dict)  # large ones, made once

    @property
    def total(self) -> int:
        """The number of items in the store."""
        return sum(self.sizes.values())

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

    @cached_property
    def taken_for(self) -> Int[Tensor, " items"]:
        """The class of the nearest other item of each item, by exact search; if there is no other, its own class."""
        if len(self.items) < 2:
            return self.labels
        return self.labels[nearest(self.vectors, self.vectors, 1, exclude_self=True).rows[:, 0]]

    def taken(self, rows: Sequence[int]) -> list[int]:
        """`taken_for` of some rows; does not wait until it is computed for all."""
        if "taken_for" in self.__dict__ or len(self.items) < 2:
            return list(self.taken_for[list(rows)].tolist())
        found = nearest(self.vectors[list(rows)], self.vectors, 2).rows.tolist() if rows else []
        others = [second if first == row else first for row, (first, second) in zip(rows, found, strict=True)]
        return list(self.labels[others].tolist())

    def score(self, class_name: str) -> ClassScore:
        """The score of a class that was sampled; does not wait until all are computed."""
        if "scores" in self.__dict__:
            return self.scores[class_name]
        rows = self.rows_of(class_name).tolist()
        taken = Counter(self.class_names[label] for label in self.taken(rows))
        right = taken.pop(class_name, 0)
        return ClassScore(
            class_name, len(rows), right / len(rows) if len(rows) > 1 else None, tuple(taken.most_common())
        )

    @cached_property
    def scores(self) -> dict[str, ClassScore]:
        """The score of each class by name, lowest recall first."""
        _ = self.taken_for  # of all items at once
        scores = sorted(map(self.score, self.class_names), key=lambda one: (one.recall is None, one.recall, one.name))
        return {score.name: score for score in scores}

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
    return Snapshot(tuple(items), F.normalize(torch.cat(parts), dim=1), labels, class_names, sizes)


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


def check_centers(centers: Tensor, num_classes: int, dim: int) -> Float[Tensor, "classes k dim"]:
    """``centers`` if they are finite and fit the encoder, so that a damaged run fails at the start."""
    if centers.ndim != 3 or (centers.shape[0], centers.shape[2]) != (num_classes, dim):
        raise UserError(
            f"the centres of this run have shape {tuple(centers.shape)}, but its encoder has {num_classes} classes and "
            f"{dim} dimensions: expected ({num_classes}, k, {dim}). centers.safetensors belongs to another run"
        )
    if not centers.isfinite().all():
        raise UserError("the centres of this run contain NaN or infinite numbers; centers.safetensors is damaged")
    return centers
