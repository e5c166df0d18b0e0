"""A store in Milvus: a collection on a server or cluster, or in a local file by Milvus Lite.

No text of a user ever stands in a filter. Milvus has an expression language of its own, and its client builds such
expressions from ids without escaping them; so the primary key is the hash of an item's id, and classes are
filtered by the hash of their name. Ids and names themselves are plain fields.
"""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float32
from pymilvus import DataType, MilvusClient, MilvusException

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
    is_there,
    partitions,
    probes,
    ranked,
    refuse_missing,
    refuse_other_dim,
    refuse_other_run,
)

TOKEN_VARIABLE = "SOFTTRIPLE_MILVUS_TOKEN"
COLLECTION = "softtriple"
FINGERPRINT = "softtriple.fingerprint"
FIELDS = ["id", "label", "class_name", "source"]
# A request must stay below the message size of a server, 64 MB, with the longest texts that a field may hold.
ROWS_AT_ONCE = 250
LONGEST_TEXT = 65_535  # bytes of a VARCHAR
ALL_CELLS = 65_536  # the most that Milvus accepts; it looks into as many as there are
SECONDS_TO_CONNECT = 10


def open_milvus(uri: str, fingerprint: str, dim: int | None, create: bool) -> "MilvusStore":
    """The collection at ``uri``, made if it is not there and ``create`` is set."""
    if not create and not is_there(uri):
        raise refuse_missing(uri)
    # What fails comes back as an exception; the client, and the server in Milvus Lite, would log a traceback besides.
    for name in ("pymilvus", "grpc._server", "milvus_lite"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = MilvusClient(uri, token=os.environ.get(TOKEN_VARIABLE, ""), timeout=SECONDS_TO_CONNECT)
    except MilvusException as error:
        raise OSError(f"{uri}: no Milvus answers here ({error.message})") from error
    collection = _Collection(uri, client)
    if not collection("has_collection"):
        if not create:
            collection.close()
            raise refuse_missing(uri)
        assert dim is not None
        _create(collection, fingerprint, dim)
    described = collection("describe_collection")
    held = described["properties"].get(FINGERPRINT, "")
    (width,) = (field["params"]["dim"] for field in described["fields"] if field["name"] == "vector")
    if held != fingerprint or dim not in (None, width):
        collection.close()
        if held != fingerprint:
            raise refuse_other_run(uri, held, fingerprint)
        raise refuse_other_dim(uri, width, dim or 0)
    collection("load_collection")
    return MilvusStore(uri, collection, fingerprint, width)


class MilvusStore:
    """See `softtriple.search.store.Store`; made by ``open_store``."""

    def __init__(self, uri: str, collection: "_Collection", fingerprint: str, dim: int) -> None:
        self.fingerprint, self.dim = fingerprint, dim
        self._uri, self._collection = uri, collection

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add or replace items."""
        vectors = checked_items(items, vectors, self.dim)
        rows = [_row(item, vector) for item, vector in zip(items, vectors, strict=True)]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            self._collection("upsert", data=rows[start : start + ROWS_AT_ONCE])

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items."""
        # A server counts what it was asked to delete, not what was there.
        keys = [_hash(one) for one in self.known(ids)]
        for part in _parts(keys):
            self._collection("delete", ids=part)
        return len(keys)

    def search(self, vectors: Vectors, k: int, *, classes: Sequence[str] = (), exact: bool = False) -> list[list[Hit]]:
        """The nearest items of each vector."""
        checked_k(k)
        queries = checked_vectors(vectors, self.dim)
        if not len(queries):
            return []
        nprobe = ALL_CELLS if exact or classes else probes(self.count())
        found = self._collection(
            "search",
            data=list(queries),
            limit=k + SPARE,
            filter=_among("class_hash", [_hash(name) for name in classes]) if classes else "",
            output_fields=[*FIELDS, "vector"],
            search_params={"metric_type": "IP", "params": {"nprobe": nprobe}},
        )
        return [
            ranked(query, [_stored(hit["entity"]) for hit in hits], k)
            for query, hits in zip(queries, found, strict=True)
        ]

    def get(self, ids: Sequence[str]) -> list[Stored]:
        """Items and their vectors."""
        found = (_stored(row) for row in self._rows(ids, [*FIELDS, "vector"]))
        return in_order(ids, {stored.item.id: stored for stored in found}, self._uri)

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        """Those of ``ids`` that are stored."""
        return {row["id"]: _item(row) for row in self._rows(ids, FIELDS)}

    def scan(self, batch_size: int = SCAN_BATCH) -> Iterator[tuple[list[Item], Vectors]]:
        """Everything, in the order of the keys."""
        for rows in self._pages([*FIELDS, "vector"], batch_size):
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

    def build_index(self, kind: IndexKind = "auto") -> None:
        """Index the vectors in IVF cells, or not at all; new items enter the cells by themselves."""
        count = self.count()
        flat = kind == "flat" or (kind == "auto" and count < FLAT_BELOW)
        wanted = "FLAT" if flat else "IVF_FLAT"
        if self._collection("describe_index", index_name="vector")["index_type"] != wanted:
            self._collection("release_collection")
            self._collection("drop_index", index_name="vector")
            self._collection("create_index", index_params=_index(wanted, partitions(count)))
            self._collection("load_collection")

    def close(self) -> None:
        """Close the connection."""
        self._collection.close()

    def _rows(self, ids: Sequence[str], fields: list[str]) -> Iterator[dict[str, Any]]:
        for part in _parts([_hash(one) for one in ids]):
            yield from self._collection("query", ids=part, output_fields=fields)

    def _pages(self, fields: list[str], size: int) -> Iterator[list[dict[str, Any]]]:
        pages = self._collection("query_iterator", batch_size=min(size, SCAN_BATCH), output_fields=fields)
        try:
            while page := self._collection.next_page(pages):
                yield page
        finally:
            pages.close()


class _Collection:
    """The one door to the client: every call names the collection, and what fails names the store."""

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
    """Failures of Milvus as an OSError that names the store."""
    try:
        yield
    except MilvusException as error:
        raise OSError(f"{uri}: {error.message}") from error


def _create(collection: _Collection, fingerprint: str, dim: int) -> None:
    schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("key", DataType.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
    schema.add_field("label", DataType.INT64)
    schema.add_field("class_hash", DataType.VARCHAR, max_length=64)
    for name in ("id", "class_name", "source"):
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
    # Unit vectors: their inner product is the cosine, and unlike cosine it is defined for a vector of zeros.
    options = {"nlist": cells} if kind == "IVF_FLAT" else {}
    params.add_index("vector", index_type=kind, index_name="vector", metric_type="IP", params=options)
    return params


def _row(item: Item, vector: Float32[np.ndarray, " dim"]) -> dict[str, Any]:
    for name, text in (("id", item.id), ("class name", item.class_name), ("source", item.source)):
        if len(text.encode()) > LONGEST_TEXT:
            raise ValueError(f"item {item.id[:40]!r}: Milvus takes no {name} of more than {LONGEST_TEXT} bytes")
    return {
        "key": _hash(item.id),
        "vector": vector,
        "label": item.label,
        "class_hash": _hash(item.class_name),
        "id": item.id,
        "class_name": item.class_name,
        "source": item.source,
    }


def _stored(row: dict[str, Any]) -> Stored:
    return Stored(_item(row), np.asarray(row["vector"], dtype=np.float32))


def _item(row: dict[str, Any]) -> Item:
    return Item(**{name: row[name] for name in FIELDS})


def _among(field: str, hashes: Sequence[str]) -> str:
    quoted = ", ".join(f'"{one}"' for one in hashes)
    return f"{field} in [{quoted}]"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _parts(keys: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), ROWS_AT_ONCE):
        yield keys[start : start + ROWS_AT_ONCE]
