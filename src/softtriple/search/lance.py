"""A store in LanceDB: a folder of columnar files, on this machine or in a bucket, without a server."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import numpy as np
import pyarrow as pa
from jaxtyping import Float32
from lancedb.index import Bitmap, BTree, IvfFlat

from softtriple.search.knn import SPARE
from softtriple.search.store import (
    FLAT_BELOW,
    SCAN_BATCH,
    Hit,
    IndexKind,
    Item,
    Stored,
    Vectors,
    checked_items,
    checked_k,
    checked_vectors,
    in_order,
    is_local,
    is_there,
    partitions,
    probes,
    ranked,
    refuse_missing,
    refuse_other_dim,
    refuse_other_run,
)

TABLE = "items"
COLUMNS = ["id", "label", "class_name", "source"]
FINGERPRINT = b"softtriple.fingerprint"
# An open store sees what other processes have written after so long; without it, never.
FRESH = timedelta(seconds=5)
# Versions that were replaced are kept for those who still read them.
KEPT = timedelta(hours=1)
# Ids in one filter; the filter is a text that has to be parsed.
IDS_AT_ONCE = 1000


def open_lance(uri: str, fingerprint: str, dim: int | None, create: bool) -> "LanceStore":
    """The table at ``uri``, made if it is not there and ``create`` is set."""
    if is_local(uri) and Path(uri).is_file():
        raise NotADirectoryError(f"{uri}: a store is a folder, and this is a file; give another path")
    # connect() would make the folder.
    if not create and not is_there(uri):
        raise refuse_missing(uri)
    with _named(uri):
        connection = lancedb.connect(uri, read_consistency_interval=FRESH)
        if TABLE in connection.list_tables().tables:
            table = connection.open_table(TABLE)
        elif not create:
            raise refuse_missing(uri)
        else:
            assert dim is not None
            table = connection.create_table(TABLE, schema=_schema(fingerprint, dim))
    held = (table.schema.metadata or {}).get(FINGERPRINT, b"").decode()
    if held != fingerprint:
        raise refuse_other_run(uri, held, fingerprint)
    width = table.schema.field("vector").type.list_size
    if dim not in (None, width):
        raise refuse_other_dim(uri, width, dim)
    return LanceStore(uri, table, fingerprint, width)


class LanceStore:
    """See `softtriple.search.store.Store`; made by ``open_store``."""

    def __init__(self, uri: str, table: Any, fingerprint: str, dim: int) -> None:
        self.fingerprint, self.dim = fingerprint, dim
        self._uri, self._table = uri, table

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add or replace items."""
        vectors = checked_items(items, vectors, self.dim)
        if not items:
            return
        columns = {
            "id": pa.array([item.id for item in items], pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), self.dim),
            "label": pa.array([item.label for item in items], pa.int64()),
            "class_name": pa.array([item.class_name for item in items], pa.string()),
            "source": pa.array([item.source for item in items], pa.string()),
        }
        rows = pa.table(columns, schema=_schema(self.fingerprint, self.dim))
        with _named(self._uri):
            self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items."""
        with _named(self._uri):
            return sum(self._table.delete(_among("id", part)).num_deleted_rows for part in _parts(ids))

    def search(self, vectors: Vectors, k: int, *, classes: Sequence[str] = (), exact: bool = False) -> list[list[Hit]]:
        """The nearest items of each vector."""
        checked_k(k)
        vectors = checked_vectors(vectors, self.dim)
        # The cells nearest to a query may hold nothing of a class: a filtered search goes through all that pass.
        # Counted anew each time, because others may have written; it takes a fraction of a millisecond.
        cells = None if exact or classes else probes(self.count())
        return [ranked(vector, self._candidates(vector, k, classes, cells), k) for vector in vectors]

    def get(self, ids: Sequence[str]) -> list[Stored]:
        """Items and their vectors."""
        queries = (self._table.search().where(_among("id", part)) for part in _parts(ids))
        found = {stored.item.id: stored for query in queries for stored in self._stored(query)}
        return in_order(ids, found, self._uri)

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        """Those of ``ids`` that are stored."""
        found = {}
        for part in _parts(ids):
            rows = self._rows(self._table.search().where(_among("id", part)).select(COLUMNS))
            found.update({item.id: item for item in _items(rows)})
        return found

    def scan(self, batch_size: int = SCAN_BATCH) -> Iterator[tuple[list[Item], Vectors]]:
        """Everything, in the order of the files."""
        with _named(self._uri):
            batches = self._table.search().select([*COLUMNS, "vector"]).to_batches(batch_size)
            for batch in batches:
                yield _items(batch), _vectors(batch.column("vector"), self.dim)

    def classes(self) -> dict[str, int]:
        """Items of each class."""
        return dict(Counter(self._rows(self._table.search().select(["class_name"])).column("class_name").to_pylist()))

    def count(self) -> int:
        """The number of items."""
        with _named(self._uri):
            return int(self._table.count_rows())

    def build_index(self, kind: IndexKind = "auto") -> None:
        """Compact the files, and index what is not indexed yet: vectors in IVF cells, ids, and classes for filters."""
        count = self.count()
        flat = kind == "flat" or (kind == "auto" and count < FLAT_BELOW) or not count
        with _named(self._uri):
            held = [index.name for index in self._table.list_indices()]
            # Before the compaction, which adds new rows to old cells: an index that has grown is better made anew.
            whole = {name for name in held if not self._table.index_stats(name).num_unindexed_rows}
            self._table.optimize(cleanup_older_than=KEPT)
            # Unit vectors: their inner product is the cosine, and unlike cosine it is defined for a vector of zeros.
            cells = IvfFlat(distance_type="dot", num_partitions=partitions(count))
            # LanceDB does not tell of how many cells an index is, so its name does: after many deletions a quarter of
            # the cells for what is left would be too few of those that there are.
            wanted: dict[str, tuple[str, Any]] = {
                f"vector_in_{partitions(count)}": ("vector", cells),
                "id": ("id", BTree()),
                "class_name": ("class_name", Bitmap()),
            }
            for name in held:
                if flat or name not in wanted:
                    self._table.drop_index(name)
            for name, (column, config) in wanted.items():
                if not flat and name not in whole:
                    self._table.create_index(column, config=config, name=name)

    def close(self) -> None:
        """Nothing stays open."""

    def _candidates(
        self, vector: Float32[np.ndarray, " dim"], k: int, classes: Sequence[str], cells: int | None
    ) -> list[Stored]:
        query = self._table.search(vector, vector_column_name="vector").distance_type("dot").limit(k + SPARE)
        if classes:
            query = query.where(_among("class_name", classes), prefilter=True)
        query = query.bypass_vector_index() if cells is None else query.nprobes(cells)
        return self._stored(query, "_distance")  # not needed, but LanceDB warns where it is not asked for

    def _stored(self, query: Any, *more: str) -> list[Stored]:
        rows = self._rows(query.select([*COLUMNS, "vector", *more]))
        vectors = _vectors(rows.column("vector").combine_chunks(), self.dim)
        return [Stored(item, vector) for item, vector in zip(_items(rows), vectors, strict=True)]

    def _rows(self, query: Any) -> pa.Table:
        with _named(self._uri):
            return query.to_arrow()


def _schema(fingerprint: str, dim: int) -> pa.Schema:
    fields = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), dim), nullable=False),
        pa.field("label", pa.int64(), nullable=False),
        pa.field("class_name", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
    ]
    return pa.schema(fields, metadata={FINGERPRINT: fingerprint.encode()})


def _among(column: str, values: Sequence[str]) -> str:
    """An SQL condition; in SQL a quote inside a text is written twice, and nothing else in it has a meaning."""
    texts = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    return f"{column} IN ({texts})"


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield ids[start : start + IDS_AT_ONCE]


def _items(rows: Any) -> list[Item]:
    columns = (rows.column(name).to_pylist() for name in COLUMNS)
    return [Item(*values) for values in zip(*columns, strict=True)]


def _vectors(column: Any, dim: int) -> Float32[np.ndarray, "items dim"]:
    # A copy: arrow's memory is read-only, which torch warns about.
    return np.array(column.flatten(), dtype=np.float32).reshape(-1, dim)


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Failures of LanceDB, which may be several lines long, as one that names the store."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise OSError(f"{uri}: {str(error).splitlines()[0]}") from error
