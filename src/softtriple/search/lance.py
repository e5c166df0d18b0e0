"""A store in LanceDB: a folder of columnar files, on this machine or in a bucket, without a server.

LanceDB does not serialise concurrent upserts: two processes that write the same ids at once can both insert them.
Writes to a local store therefore hold a file lock, writes to a bucket are retried after a conflict, and `build_index`
removes duplicates that were left behind.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lancedb
import numpy as np
import pyarrow as pa
from filelock import FileLock, Timeout
from jaxtyping import Float32
from lancedb.index import Bitmap, BTree, IvfFlat

from softtriple.errors import UserError, first_line
from softtriple.search import backend
from softtriple.search.knn import SPARE, check_k
from softtriple.search.store import SCAN_BATCH, Hit, IndexKind, Item, Stored, Vectors

Value = TypeVar("Value")

TABLE = "items"
FINGERPRINT = b"softtriple.fingerprint"
LOCK_FILE = ".softtriple.lock"
LOCK_SECONDS = 600
ATTEMPTS = 6
# How soon an open store sees what other processes have written; LanceDB's default is never.
FRESH = timedelta(seconds=5)
# After this a change of a folder has its own time, even on file systems that count in seconds.
SETTLED = timedelta(seconds=2)
# How long replaced versions are kept for processes that still read them.
KEPT = timedelta(hours=1)
# Ids per filter; the filter is a string that has to be parsed.
IDS_AT_ONCE = 1000


def open_lance(uri: str, fingerprint: str, dim: int | None, create: bool) -> "LanceStore":
    """The table at ``uri``, created if it does not exist and ``create`` is set."""
    if backend.is_local(uri) and Path(uri).is_file():
        raise backend.StoreError(f"{uri}: a store is a folder, and this is a file; choose another path")
    # connect() would create the folder.
    if not create and not backend.may_exist(uri):
        raise backend.no_store(uri)
    with _named(uri):
        connection = lancedb.connect(uri, read_consistency_interval=FRESH)
        if TABLE in connection.list_tables().tables:
            table = connection.open_table(TABLE)
        elif not create:
            raise backend.no_store(uri)
        else:
            assert dim is not None
            with _lock(uri):
                table = connection.create_table(TABLE, schema=_schema(fingerprint, dim), exist_ok=True)
        held = (table.schema.metadata or {}).get(FINGERPRINT, b"").decode()
        width = table.schema.field("vector").type.list_size
    backend.check_matches(uri, held=held, wanted=fingerprint, width=width, dim=dim)
    return LanceStore(uri, table, fingerprint, width)


class LanceStore:
    """See `softtriple.search.store.Store`; made by ``open_store``."""

    def __init__(self, uri: str, table: Any, fingerprint: str, dim: int) -> None:
        self.fingerprint, self.dim = fingerprint, dim
        self._uri, self._table = uri, table
        self._seen: tuple[int | None, str] = (None, "")  # when the versions had changed last, and the newest of them
        # Stores made before there was a column for the content of items do without it.
        self._columns = [name for name in backend.FIELDS if name in table.schema.names]

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add or replace items."""
        vectors = backend.check_items(items, vectors, self.dim)
        if not items:
            return
        columns = {name: pa.array([getattr(item, name) for item in items]) for name in self._columns}
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), self.dim)
        rows = pa.table(columns).select(self._table.schema.names).cast(self._table.schema)
        upsert = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        self._write(partial(upsert.execute, rows))

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items."""
        return sum(self._write(partial(self._delete, part)) for part in backend.parts(ids, IDS_AT_ONCE))

    def _delete(self, ids: Sequence[str]) -> int:
        return int(self._table.delete(_among("id", ids)).num_deleted_rows)

    def search(self, vectors: Vectors, k: int, *, classes: Sequence[str] = (), exact: bool = False) -> list[list[Hit]]:
        """The nearest items of each vector."""
        check_k(k)
        vectors = backend.check_vectors(vectors, self.dim)
        # The cells nearest to a query may hold nothing of a class: a filtered search scans everything that passes.
        # The count takes a fraction of a millisecond and is not kept, because other processes may write.
        cells = None if exact or classes else backend.probes(self.count())
        return [backend.best_hits(vector, self._candidates(vector, k, classes, cells), k) for vector in vectors]

    def get(self, ids: Sequence[str]) -> list[Stored]:
        """Items and their vectors."""
        queries = (self._table.search().where(_among("id", part)) for part in backend.parts(ids, IDS_AT_ONCE))
        stored = {one.item.id: one for query in queries for one in self._stored(query)}
        return backend.in_order(ids, stored, self._uri)

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        """Those of ``ids`` that are stored."""
        return {item.id: item for item in self._where("id", ids)}

    def with_content(self, contents: Sequence[str]) -> list[Item]:
        """Items with one of these contents."""
        return self._where("content", contents) if "content" in self._columns else []

    def scan(self, batch_size: int = SCAN_BATCH) -> Iterator[tuple[list[Item], Vectors]]:
        """Everything, in the order of the files."""
        with _named(self._uri):
            batches = self._table.search().select([*self._columns, "vector"]).to_batches(batch_size)
            for batch in batches:
                yield self._items(batch), _vectors(batch.column("vector"), self.dim)

    def classes(self) -> dict[str, int]:
        """Items of each class."""
        return dict(Counter(self._column("class_name")))

    def count(self) -> int:
        """The number of items."""
        with _named(self._uri):
            return int(self._table.count_rows())

    def version(self) -> str:
        """The number of the newest version of the table.

        A local store is asked, which takes milliseconds, only if its folder of versions has changed.
        """
        try:
            changed = (Path(self._uri) / f"{TABLE}.lance" / "_versions").stat().st_mtime_ns
        except OSError:  # in a bucket
            changed = None
        if changed is None or changed != self._seen[0]:
            # Clocks of file systems are coarse: a folder that has just changed may change again at the same time.
            settled = changed is not None and time.time_ns() - changed > SETTLED.total_seconds() * 1e9
            with _named(self._uri):
                self._table.checkout_latest()
                self._seen = (changed if settled else None), str(self._table.version)
        return self._seen[1]

    def build_index(self, kind: IndexKind = "auto") -> None:
        """Compact the files, and index what is not indexed yet: vectors in IVF cells, ids, contents and classes."""
        self._remove_duplicates()
        self._write(partial(self._build_index, kind))

    def _build_index(self, kind: IndexKind) -> None:
        count = self.count()
        flat = backend.is_flat(kind, count)
        held = [index.name for index in self._table.list_indices()]
        # Before the compaction, which adds new rows to old cells: an index that has grown is better built anew.
        whole = {name for name in held if not self._table.index_stats(name).num_unindexed_rows}
        self._table.optimize(cleanup_older_than=KEPT)
        # Unit vectors: their inner product is the cosine and, unlike cosine, is defined for a zero vector.
        cells = IvfFlat(distance_type="dot", num_partitions=backend.partitions(count))
        # LanceDB does not tell how many cells an index has, so its name does: after many deletions, a quarter of the
        # cells that the remaining items need would be too few of those that there are.
        wanted: dict[str, tuple[str, Any]] = {
            f"vector_in_{backend.partitions(count)}": ("vector", cells),
            "id": ("id", BTree()),
            "class_name": ("class_name", Bitmap()),
        }
        if "content" in self._columns:
            wanted["content"] = ("content", BTree())
        for name in held:
            if flat or name not in wanted:
                self._table.drop_index(name)
        for name, (column, config) in wanted.items():
            if not flat and name not in whole:
                self._table.create_index(column, config=config, name=name)

    def _remove_duplicates(self) -> None:
        """Keep one row of each id; concurrent writers to a bucket, and earlier versions, can leave several."""
        twice = [one for one, number in Counter(self._column("id")).items() if number > 1]
        for part in backend.parts(twice, IDS_AT_ONCE):
            stored = self.get(part)
            self.delete(part)
            self.put([one.item for one in stored], np.stack([one.vector for one in stored]))

    def close(self) -> None:
        """Nothing stays open."""

    def _candidates(
        self, vector: Float32[np.ndarray, " dim"], k: int, classes: Sequence[str], cells: int | None
    ) -> list[Stored]:
        query = self._table.search(vector, vector_column_name="vector").distance_type("dot").limit(k + SPARE)
        if classes:
            query = query.where(_among("class_name", classes), prefilter=True)
        query = query.bypass_vector_index() if cells is None else query.nprobes(cells)
        return self._stored(query, "_distance")  # unused, but LanceDB warns if it is not selected

    def _stored(self, query: Any, *more: str) -> list[Stored]:
        rows = self._rows(query.select([*self._columns, "vector", *more]))
        vectors = _vectors(rows.column("vector").combine_chunks(), self.dim)
        return [Stored(item, vector) for item, vector in zip(self._items(rows), vectors, strict=True)]

    def _where(self, column: str, values: Sequence[str]) -> list[Item]:
        queries = (
            self._table.search().where(_among(column, part)).select(self._columns)
            for part in backend.parts(values, IDS_AT_ONCE)
        )
        return [item for query in queries for item in self._items(self._rows(query))]

    def _column(self, name: str) -> list[str]:
        values: list[str] = self._rows(self._table.search().select([name])).column(name).to_pylist()
        return values

    def _rows(self, query: Any) -> pa.Table:
        with _named(self._uri):
            return query.to_arrow()

    def _items(self, rows: Any) -> list[Item]:
        columns = (rows.column(name).to_pylist() for name in self._columns)
        return [Item(*values) for values in zip(*columns, strict=True)]

    def _write(self, action: Callable[[], Value]) -> Value:
        """Run ``action`` on the newest version while no other process of this machine writes."""
        with _named(self._uri):
            for attempt in range(ATTEMPTS):
                try:
                    with _lock(self._uri):
                        self._table.checkout_latest()
                        return action()
                except RuntimeError as error:  # two machines that write to one bucket
                    if "conflict" not in str(error).lower() or attempt == ATTEMPTS - 1:
                        raise
                time.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable")


def _schema(fingerprint: str, dim: int) -> pa.Schema:
    fields = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), dim), nullable=False),
        pa.field("label", pa.int64(), nullable=False),
        pa.field("class_name", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("content", pa.string(), nullable=False),
    ]
    return pa.schema(fields, metadata={FINGERPRINT: fingerprint.encode()})


def _among(column: str, values: Sequence[str]) -> str:
    """An SQL condition; inside an SQL string a quote is written twice, and nothing else has a meaning."""
    texts = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({texts})"


def _vectors(column: Any, dim: int) -> Float32[np.ndarray, "items dim"]:
    # A copy: arrow's memory is read-only, which torch warns about.
    return np.array(column.flatten(), dtype=np.float32).reshape(-1, dim)


def _lock(uri: str) -> Any:
    """The lock of a local store; a bucket has none."""
    if not backend.is_local(uri):
        return nullcontext()
    Path(uri).mkdir(parents=True, exist_ok=True)
    return FileLock(Path(uri) / LOCK_FILE, timeout=LOCK_SECONDS, thread_local=False)


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Failures of LanceDB, which may be several lines long, as one line that names the store."""
    try:
        yield
    except UserError:
        raise
    except Timeout as error:
        raise backend.StoreError(f"{uri}: another process has been writing for {LOCK_SECONDS} seconds") from error
    except (RuntimeError, ValueError, OSError, pa.ArrowException) as error:
        raise backend.StoreError(f"{uri}: {first_line(error)}") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a panic in Rust is no Exception
            raise
        raise backend.StoreError(
            f"{uri}: LanceDB cannot read the store, which may be damaged ({first_line(error)}); restore a copy of it, "
            "or index the data into another store"
        ) from error
