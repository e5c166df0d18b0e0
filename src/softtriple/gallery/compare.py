"""Two runs on one set: metrics with the interval of their difference, and the queries that only one answers rightly."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.errors import UserError
from softtriple.gallery.analysis import Snapshot
from softtriple.gallery.measuring import SHORT, in_background
from softtriple.gallery.schemas import CompareAnswer, ComparedMetric, ComparedQuery, HitAnswer
from softtriple.metrics import Difference, Embeddings, Report, difference_intervals, evaluate
from softtriple.metrics.report import metric_rows
from softtriple.search import Item, Neighbors, Store, nearest

QUERIES, NEIGHBORS = 24, 4  # shown on the page


class Other(NamedTuple):
    """Another run to compare with: the names of both, and the store of the other."""

    names: tuple[str, str]
    store: Store


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two runs on the items that both stores hold; rows are those of the snapshot of the first."""

    rows: Int[np.ndarray, " items"]
    reports: tuple[Report, Report]
    differences: Mapping[str, Difference]
    neighbors: tuple[Neighbors, Neighbors]  # positions in ``rows``
    right: tuple[Tensor, Tensor]  # whether the nearest neighbour of an item has its class

    def metrics(self) -> list[tuple[str, str, float, float]]:
        """Title, name and both values of each metric."""
        first, second = ({name: (title, share) for title, name, share in metric_rows(one)} for one in self.reports)
        return [(title, name, share, second[name][1]) for name, (title, share) in first.items() if name in second]

    def only(self, which: int) -> list[int]:
        """Positions that run ``which`` gets right and the other wrong, where the other is most confident first."""
        other = 1 - which
        positions = (self.right[which] & ~self.right[other]).nonzero()[:, 0]
        confident = self.neighbors[other].scores[positions, 0].argsort(descending=True, stable=True)
        return list(positions[confident].tolist())


class Comparing:
    """Compares the latest snapshot with another store, in the background: minutes for 100 000 items.

    Used by one thread besides its own.
    """

    def __init__(self, other: Store) -> None:
        self._other = other
        self._digest = ""
        self._result: Future[Comparison] = Future()

    def result(self, snapshot: Snapshot) -> Comparison | None:
        """The comparison, or None while it is computed; the first request starts it and waits for a moment."""
        if snapshot.digest != self._digest:
            self._digest, self._result = snapshot.digest, Future()
            result = self._result
            in_background("gallery-comparing", lambda: _fulfil(result, snapshot, self._other)).join(SHORT)
        return self._result.result() if self._result.done() else None


def _fulfil(result: Future[Comparison], snapshot: Snapshot, other: Store) -> None:
    try:
        result.set_result(compare(snapshot, other))
    except Exception as error:  # raised where the result is asked for
        result.set_exception(error)


def compare(snapshot: Snapshot, other: Store) -> Comparison:
    """``snapshot`` beside the vectors of the same items in ``other``, of items whose class has another item."""
    wanted = {item.id: row for row, item in enumerate(snapshot.items)}
    parts: dict[int, Float[np.ndarray, " dim"]] = {}
    for items, vectors in other.scan():
        parts.update({wanted[item.id]: vectors[place] for place, item in enumerate(items) if item.id in wanted})
    rows = np.array(sorted(parts), dtype=np.int64)
    labels = snapshot.labels[rows]
    if len(rows) < 2 or len(set(labels.tolist())) < 2:
        raise UserError(
            f"the two stores have {len(rows)} items in common; comparing needs two classes. Index the same data with "
            "the other run: softtriple index RUN2 DATA --store URI2"
        )
    second = F.normalize(torch.from_numpy(np.stack([parts[row] for row in rows.tolist()])).float(), dim=1)
    both = (snapshot.vectors[rows], second)
    reports = [_report(vectors, labels, snapshot.class_names) for vectors in both]
    neighbors = [nearest(vectors, vectors, min(NEIGHBORS, len(rows) - 1), exclude_self=True) for vectors in both]
    right = [labels[found.rows[:, 0]] == labels for found in neighbors]
    return Comparison(
        rows,
        (reports[0], reports[1]),
        difference_intervals(*reports),
        (neighbors[0], neighbors[1]),
        (right[0], right[1]),
    )


def answer_of(
    compared: Comparison,
    snapshot: Snapshot,
    names: tuple[str, str],
    hit_answer: Callable[[Item, float, str | None], HitAnswer],
) -> CompareAnswer:
    """The comparison for the page, with the first of the queries that only one run gets right."""
    first, second = compared.right

    def item(position: int) -> Item:
        return snapshot.items[int(compared.rows[position])]

    def query(position: int) -> ComparedQuery:
        own = item(position)
        hits = [
            [
                hit_answer(item(other), score, own.class_name)
                for other, score in zip(rows[position].tolist(), scores[position].tolist(), strict=True)
            ]
            for rows, scores in compared.neighbors
        ]
        return ComparedQuery(item=hit_answer(own, 1.0, None).item, first=hits[0], second=hits[1])

    def metric(title: str, name: str, one: float, two: float) -> ComparedMetric:
        _, low, high = compared.differences.get(name, (None, None, None))
        return ComparedMetric(title=title, first=one, second=two, low=low, high=high)

    return CompareAnswer(
        names=list(names),
        ready=True,
        items=len(compared.rows),
        metrics=[metric(*row) for row in compared.metrics()],
        counts=[int(both.sum()) for both in (first & second, first & ~second, ~first & second, ~first & ~second)],
        only_first=[query(position) for position in compared.only(0)[:QUERIES]],
        only_second=[query(position) for position in compared.only(1)[:QUERIES]],
    )


def _report(vectors: Tensor, labels: Tensor, class_names: Sequence[str]) -> Report:
    return evaluate(Embeddings(vectors, labels, class_names=tuple(class_names)), kmeans_restarts=0)
