"""Exact search from memory: a store whose vectors were read once, with the database as the durable copy.

Rows are kept in the order of their ids, so that `softtriple.search.knn` breaks ties by id, as stores do. Texts are kept
as bytes: a million items as Python objects would take more memory than their vectors.
"""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from softtriple.errors import UserError, byte_size, counted
from softtriple.search import backend
from softtriple.search.knn import as_cosines, check_k, error_bound, longest_row, query_blocks, sorted_by_score, top_rows
from softtriple.search.products import slices
from softtriple.search.store import SCAN_BATCH, Hit, IndexKind, Item, Store, Stored, Vectors

BUDGET_VARIABLE = "SOFTTRIPLE_SEARCH_GB"
DEFAULT_GIGABYTES = 2.0
# Seconds between two looks at the version of the store.
FRESH = 1.0
# After reading a store that keeps changing, answer for this many times as long as reading took.
REST = 10
# Working memory of a search, besides the vectors.
SCRATCH = 1 << 27


class Serving(NamedTuple):
    """How a store is searched, and why."""

    in_memory: bool
    reason: str


def serving(store: Store) -> Serving:
    """Whether ``store`` is searched in memory: if it fits SOFTTRIPLE_SEARCH_GB and can tell when it changes."""
    most = _budget()
    if store.version() is None:
        return Serving(False, "searched by its server, which does not tell when its items change")
    first = next(iter(store.scan()), ([], None))[0]
    texts = sum(len(item.id) + len(item.source) + len(item.content) for item in first) / max(1, len(first))
    needed = store.count() * (4 * store.dim + texts + 40) / 1e9
    held = f"{counted(store.count(), 'item')} of {store.dim} dimensions need {byte_size(1e9 * needed)}"
    if needed <= most:
        reason = f"searched in memory, exactly: {held} of the {_gigabytes(most)} that {BUDGET_VARIABLE} allows"
        return Serving(True, reason)
    return Serving(
        False,
        f"searched on disk, by an approximate index unless --exact: {held}, more than the {_gigabytes(most)} that "
        f"{BUDGET_VARIABLE} allows; set it to {needed + 0.05:.1f} to search in memory",
    )


def resident(store: Store) -> Store:
    """``store``, read into memory if it is to be searched there."""
    return ResidentStore(store) if serving(store).in_memory else store


def _budget() -> float:
    """Gigabytes that vectors in memory may take."""
    text = os.environ.get(BUDGET_VARIABLE, "").strip()
    try:
        budget = float(text) if text else DEFAULT_GIGABYTES
    except ValueError:
        budget = -1.0
    if not 0 <= budget < float("inf"):
        raise UserError(f"{BUDGET_VARIABLE} = {text!r}: expected gigabytes for vectors in memory, such as 2; 0 is none")
    return budget


def _gigabytes(number: float) -> str:
    return f"{number:.2g} GB"


class ResidentStore:
    """See `softtriple.search.store.Store`; ``search``, ``get``, ``known``, ``classes`` and ``count`` use no disk.

    Every search is exact. What others write is seen within a second or, in a store that keeps changing, within ten
    times the seconds that it takes to read. While one thread reads, others are answered from what was read before.
    """

    def __init__(self, store: Store) -> None:
        self.fingerprint, self.dim = store.fingerprint, store.dim
        self._store = store
        self._reading = threading.Lock()
        self._contents, self._check_after = _read(store), time.monotonic() + FRESH

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add or replace items."""
        self._store.put(items, vectors)
        self._look_again()

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items."""
        removed = self._store.delete(ids)
        self._look_again()
        return removed

    def search(self, vectors: Vectors, k: int, *, classes: Sequence[str] = (), exact: bool = False) -> list[list[Hit]]:
        """The nearest items of each vector, always exact."""
        check_k(k)
        contents = self._current()
        queries = backend.check_vectors(vectors, self.dim)
        return [
            [Hit(contents.item(row), score) for row, score in zip(rows, scores, strict=True)]
            for part in query_blocks(len(queries), k, SCRATCH)
            for rows, scores in zip(*contents.nearest(torch.from_numpy(queries[part]), k, classes), strict=True)
        ]

    def get(self, ids: Sequence[str]) -> list[Stored]:
        """Items and their vectors."""
        contents = self._current()
        rows = [contents.row(one) for one in ids]
        if None in rows:
            return self._store.get(ids)  # as new as can be, or an error that names the store
        return [Stored(contents.item(row), contents.vectors[row].numpy()) for row in rows if row is not None]

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        """Those of ``ids`` that are stored."""
        contents = self._current()
        rows = ((one, contents.row(one)) for one in ids)
        return {one: contents.item(row) for one, row in rows if row is not None}

    def with_content(self, contents: Sequence[str]) -> list[Item]:
        """Items with one of these contents."""
        return self._store.with_content(contents)

    def scan(self, batch_size: int = SCAN_BATCH) -> Iterator[tuple[list[Item], Vectors]]:
        """Everything, in the order of the database."""
        return self._store.scan(batch_size)

    def classes(self) -> dict[str, int]:
        """Items of each class."""
        contents = self._current()
        sizes = np.bincount(contents.classes, minlength=len(contents.class_names)).tolist()
        return dict(zip(contents.class_names, sizes, strict=True))

    def count(self) -> int:
        """The number of items."""
        return len(self._current().vectors)

    def version(self) -> str | None:
        """What the database says."""
        return self._store.version()

    def build_index(self, kind: IndexKind = "auto") -> None:
        """Index the database; memory needs no index."""
        self._store.build_index(kind)

    def close(self) -> None:
        """Close the database."""
        self._store.close()

    def _look_again(self) -> None:
        """Let the next request see what this one wrote, even if another thread is reading the store as it was."""
        with self._reading:
            self._check_after = 0.0

    def _current(self) -> "_Contents":
        """What the store holds, read again if it has changed."""
        if time.monotonic() >= self._check_after and self._reading.acquire(blocking=False):
            try:
                start = time.monotonic()
                if self._store.version() != self._contents.version:
                    self._contents = _read(self._store)
                end = time.monotonic()
                self._check_after = end + max(FRESH, REST * (end - start))
            finally:
                self._reading.release()
        return self._contents


@dataclass(frozen=True, eq=False)
class _Contents:
    """Everything in a store at one version, in the order of ids."""

    version: str | None
    vectors: Float[Tensor, "items dim"]
    bound: float  # the error of a product with a query; see softtriple.search.knn
    labels: Int[np.ndarray, " items"]
    classes: Int[np.ndarray, " items"]  # positions in class_names
    class_names: list[str]
    ids: "_Texts"
    sources: "_Texts"
    contents: "_Texts"

    def item(self, row: int) -> Item:
        name = self.class_names[self.classes[row]]
        return Item(self.ids[row], int(self.labels[row]), name, self.sources[row], self.contents[row])

    def row(self, item_id: str) -> int | None:
        row = bisect_left(self.ids, item_id)
        return row if row < len(self.ids) and self.ids[row] == item_id else None

    def nearest(
        self, queries: Float[Tensor, "queries dim"], k: int, classes: Sequence[str]
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Rows and scores of the nearest items of each query."""
        if not classes:
            rows, scores = top_rows(queries, self.vectors, k, memory_budget=SCRATCH, bound=self.bound)
            return rows.tolist(), as_cosines(scores).tolist()
        wanted = [number for number, name in enumerate(self.class_names) if name in classes]
        among = np.flatnonzero(np.isin(self.classes, wanted))
        rows, scores = np.empty((len(queries), 0), dtype=np.int64), np.empty((len(queries), 0))
        # The vectors of a class are copied, some at a time.
        for part in slices(0, len(among), SCRATCH // (4 * queries.shape[1])):
            some = among[part]
            found = top_rows(queries, self.vectors[some], k, memory_budget=SCRATCH, bound=self.bound)
            rows, scores = np.hstack([rows, some[found.rows]]), np.hstack([scores, found.scores])
            rows, scores = (column[:, :k] for column in sorted_by_score(rows, scores))
        return rows.tolist(), as_cosines(scores).tolist()


def _read(store: Store) -> _Contents:
    version = store.version()  # before reading: what is written meanwhile is noticed by the next look
    parts, labels, numbers = list[np.ndarray](), list[int](), list[int]()
    names: dict[str, int] = {}
    ids, sources, contents = list[bytes](), list[bytes](), list[bytes]()
    for items, vectors in store.scan():
        parts.append(vectors)
        for item in items:
            labels.append(item.label)
            numbers.append(names.setdefault(item.class_name, len(names)))
            ids.append(item.id.encode())
            sources.append(item.source.encode())
            contents.append(item.content.encode())
    order = sorted(range(len(ids)), key=ids.__getitem__)
    matrix = _in_order(parts, order, store.dim)
    return _Contents(
        version,
        matrix,
        error_bound(store.dim, 1 + backend.LENGTH_TOLERANCE, longest_row(matrix)),
        np.array(labels, dtype=np.int64)[order],
        np.array(numbers, dtype=np.int32)[order],
        list(names),
        *(_Texts([texts[row] for row in order]) for texts in (ids, sources, contents)),
    )


def _in_order(parts: list[Float32[np.ndarray, "some dim"]], order: list[int], dim: int) -> Float[Tensor, "items dim"]:
    """The rows of ``parts``, which is emptied meanwhile, in ``order``."""
    vectors = np.empty((len(order), dim), dtype=np.float32)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    end = len(order)
    while parts:
        part = parts.pop()
        vectors[place[end - len(part) : end]] = part
        end -= len(part)
    return torch.from_numpy(vectors)


class _Texts(Sequence[str]):
    """Many texts in one piece of memory."""

    def __init__(self, texts: list[bytes]) -> None:
        self._bytes = b"".join(texts)
        self._ends = np.cumsum([0, *map(len, texts)]).data  # indexed three times as fast as the array

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return self._bytes[self._ends[row] : self._ends[row + 1]].decode()
