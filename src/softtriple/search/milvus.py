"""A store in Milvus: a collection on a server or cluster, or in a local file by Milvus Lite.

No text from a user ever appears in a filter. Milvus has its own expression language, and its client builds expressions
from ids without escaping them. So the primary key is the hash of an item's id, and classes are filtered by the hash of
their name. Ids and names themselves are plain fields.
"""

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float32
from pymilvus import DataType, MilvusClient, MilvusException

from softtriple.errors import UserError
from softtriple.search import backend
from softtriple.search.knn import SPARE, check_k
from softtriple.search.store import SCAN_BATCH, Hit, IndexKind, Item, Stored, Vectors

TOKEN_VARIABLE = "SOFTTRIPLE_MILVUS_TOKEN"
COLLECTION = "softtriple"
FINGERPRINT = "softtriple.fingerprint"
TEXTS = [name for name in backend.FIELDS if name != "label"]
# A request must stay below a server's message size, 64 MB, even with the longest strings that a field may hold.
ROWS_AT_ONCE = 250
LONGEST_TEXT = 65_535  # bytes of a VARCHAR
ALL_CELLS = 65_536  # the most that Milvus accepts; it searches as many as there are
SECONDS_TO_CONNECT = 10


def open_milvus(uri: str, fingerprint: str, dim: int | None, create: bool) -> "MilvusStore":
    """The collection at ``uri``, created if it does not exist and ``create`` is set."""
    if not create and not backend.may_exist(uri):
        raise backend.no_store(uri)
    # Failures arrive as exceptions; the client, and the server in Milvus Lite, would log a traceback as well.
    for name in ("pymilvus", "grpc._server", "milvus_lite"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = MilvusClient(uri, token=os.environ.get(TOKEN_VARIABLE, ""), timeout=SECONDS_TO_CONNECT)
    except MilvusException as error:
        raise backend.StoreError(f"{uri}: no Milvus answers here ({error.message})") from error
    collection = _Collection(uri, client)
    if not collection("has_collection"):
        if not create:
            collection.close()
            raise backend.no_store(uri)
        assert dim is not None
        _create(collection, fingerprint, dim)
    described = collection("describe_collection")
    held = described["properties"].get(FINGERPRINT, "")
    (width,) = (field["params"]["dim"] for field in described["fields"] if field["name"] == "vector")
    try:
        backend.check_matches(uri, held=held, wanted=fingerprint, width=width, dim=dim)
    except UserError:
        collection.close()
        raise
    collection("load_collection")
    fields = [name for name in backend.FIELDS if any(field["name"] == name for field in described["fields"])]
    return MilvusStore(uri, collection, fingerprint, width, fields)


class MilvusStore:
    """See `softtriple.search.store.Store`; made by ``open_store``."""

    def __init__(self, uri: str, collection: "_Collection", fingerprint: str, dim: int, fields: list[str]) -> None:
        self.fingerprint, self.dim = fingerprint, dim
        # Stores made before there was a field for the content of items do without it.
        self._uri, self._collection, self._fields = uri, collection, fields
        self._writes = 0

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add or replace items."""
        vectors = backend.check_items(items, vectors, self.dim)
        rows = [_row(item, vector, self._fields) for item, vector in zip(items, vectors, strict=True)]
        self._writes += 1
        for start in range(0, len(rows), ROWS_AT_ONCE):
            self._collection("upsert", data=rows[start : start + ROWS_AT_ONCE])

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items."""
        # A server returns the number of keys it was given, not of those it had.
        keys = [_hash(one) for one in self.known(ids)]
        self._writes += 1
        for part in backend.parts(keys, ROWS_AT_ONCE):
            self._collection("delete", ids=part)
        return len(keys)

    def search(self, vectors: Vectors, k: int, *, classes: Sequence[str] = (), exact: bool = False) -> list[list[Hit]]:
        """The nearest items of each vector."""
        check_k(k)
        queries = backend.check_vectors(vectors, self.dim)
        if not len(queries):
            return []
        nprobe = ALL_CELLS if exact or classes else backend.probes(self.count())
        found = self._collection(
            "search",
            data=list(queries),
            limit=k + SPARE,
            filter=_among("class_hash", [_hash(name) for name in classes]) if classes else "",
            output_fields=[*self._fields, "vector"],
            search_params={"metric_type": "IP", "params": {"nprobe": nprobe}},
        )
        return [
            backend.best_hits(query, [_stored(hit["entity"]) for hit in hits], k)
            for query, hits in zip(queries, found, strict=True)
        ]

    def get(self, ids: Sequence[str]) -> list[Stored]:
        """Items and their vectors."""
        stored = (_stored(row) for row in self._rows(ids, [*self._fields, "vector"]))
        return backend.in_order(ids, {one.item.id: one for one in stored}, self._uri)

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        """Those of ``ids`` that are stored."""
        return {row["id"]: _item(row) for row in self._rows(ids, self._fields)}

    def with_content(self, contents: Sequence[str]) -> list[Item]:
        """Items with one of these contents."""
        if "content" not in self._fields:
            return []
        # Only what `hashlib` writes may stand in a filter.
        hashes = [content for content in contents if re.fullmatch("[0-9a-f]{64}", content)]
        filters = (_among("content", part) for part in backend.parts(hashes, ROWS_AT_ONCE))
        queries = (self._collection("query", filter=one, output_fields=self._fields) for one in filters)
        return [_item(row) for rows in queries for row in rows]

    def scan(self, batch_size: int = SCAN_BATCH) -> Iterator[tuple[list[Item], Vectors]]:
        """Everything, in the order of the keys."""
        for rows in self._pages([*self._fields, "vector"], batch_size):
            stored = [_stored(row) for row in rows]
            yield [one.item for one in stored], np.stack([one.vector for one in stored])

    def classes(self) -> dict[str, int]:
        """Items of each class."""
        names: Counter[str] = Counter()
        for rows in self._pages(["class_name"], SCAN_BATCH):
            names.update(row["class_name"] for row in rows)
        return dict(names)

    def count(self) -> int:
        """The number of items."""
        return int(self._collection("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    def version(self) -> str | None:
        """The number of writes to a file of Milvus Lite, which one process opens at a time; a server has no version."""
        return str(self._writes) if backend.is_local(self._uri) else None

    def build_index(self, kind: IndexKind = "auto") -> None:
        """Index the vectors in IVF cells, or not at all; Milvus adds new items to the cells itself."""
        count = self.count()
        wanted = "FLAT" if backend.is_flat(kind, count) else "IVF_FLAT"
        if self._collection("describe_index", index_name="vector")["index_type"] != wanted:
            self._collection("release_collection")
            self._collection("drop_index", index_name="vector")
            self._collection("create_index", index_params=_index(wanted, backend.partitions(count)))
            self._collection("load_collection")

    def close(self) -> None:
        """Close the connection."""
        self._collection.close()

    def _rows(self, ids: Sequence[str], fields: list[str]) -> Iterator[dict[str, Any]]:
        for part in backend.parts([_hash(one) for one in ids], ROWS_AT_ONCE):
            yield from self._collection("query", ids=part, output_fields=fields)

    def _pages(self, fields: list[str], size: int) -> Iterator[list[dict[str, Any]]]:
        pages = self._collection("query_iterator", batch_size=min(size, SCAN_BATCH), output_fields=fields)
        try:
            while page := self._collection.next_page(pages):
                yield page
        finally:
            pages.close()


class _Collection:
    """The client, with the collection filled in and errors that name the store."""

    def __init__(self, uri: str, client: MilvusClient) -> None:
        self._uri, self._client = uri, client

    def __call__(self, verb: str, **arguments: Any) -> Any:
        with _named(self._uri):
            return getattr(self._client, verb)(collection_name=COLLECTION, **arguments)

    def next_page(self, pages: Any) -> list[dict[str, Any]]:
        with _named(self._uri):
            return list(pages.next())

    def close(self) -> None:
        self._client.close()


@contextmanager
def _named(uri: str) -> Iterator[None]:
    """Failures of Milvus as errors that name the store."""
    try:
        yield
    except MilvusException as error:
        raise backend.StoreError(f"{uri}: {error.message}") from error


def _create(collection: _Collection, fingerprint: str, dim: int) -> None:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    schema.add_field("label", DataType.INT64)
    schema.add_field("class_hash", DataType.VARCHAR, max_length=64)
    for name in TEXTS:
        schema.add_field(name, DataType.VARCHAR, max_length=LONGEST_TEXT)
    collection(
        "create_collection",
        schema=schema,
        index_params=_index("FLAT", 1),
        properties={FINGERPRINT: fingerprint},
        consistency_level="Strong",  # what was put is found by the next search
    )


def _index(kind: str, cells: int) -> Any:
    params = MilvusClient.prepare_index_params()
    # Unit vectors: their inner product is the cosine and, unlike cosine, is defined for a zero vector.
    options = {"nlist": cells} if kind == "IVF_FLAT" else {}
    params.add_index("vector", index_type=kind, index_name="vector", metric_type="IP", params=options)
    return params


def _row(item: Item, vector: Float32[np.ndarray, " dim"], fields: list[str]) -> dict[str, Any]:
    for name in TEXTS:
        if len(getattr(item, name).encode()) > LONGEST_TEXT:
            raise UserError(f"item {item.id[:40]!r}: Milvus takes no {name} of more than {LONGEST_TEXT} bytes")
    plain = {name: getattr(item, name) for name in fields}
    return {"key": _hash(item.id), "vector": vector, "class_hash": _hash(item.class_name), **plain}


def _stored(row: dict[str, Any]) -> Stored:
    return Stored(_item(row), np.asarray(row["vector"], dtype=np.float32))


def _item(row: dict[str, Any]) -> Item:
    return Item(**{name: row[name] for name in backend.FIELDS if name in row})


def _among(field: str, hashes: Sequence[str]) -> str:
    quoted = ", ".join(f'"{one}"' for one in hashes)
    return f"{field} in [{quoted}]"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
