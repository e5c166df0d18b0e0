"""A vector store as the rest of softtriple sees it: items with unit vectors, searched by cosine similarity.

One small protocol has two databases behind it: LanceDB in a folder or a bucket (`softtriple.search.lance`) and Milvus
on a server (`softtriple.search.milvus`). A store belongs to the encoder that made its vectors: it keeps the encoder's
fingerprint and rejects any other, because vectors of two encoders cannot be compared.

Candidates that a database returns are scored again by `nearest`. Scores are therefore true cosines in the order of
`nearest`, whatever arithmetic or index found them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32

from softtriple.errors import UserError

SCAN_BATCH = 8192

IndexKind = Literal["auto", "flat", "approximate"]
Vectors = Float[np.ndarray, "items dim"]


@dataclass(frozen=True)
class Item:
    """What a store keeps of an item besides its vector.

    ``label`` is the number of the class in the data set that the item came from; across data sets classes are told
    apart by ``class_name``. ``source`` is the path of an image, a small image itself as a ``data:`` URI, or a text; it
    is empty for bare vectors. ``content`` is the SHA-256 of an image file, by which it is recognised after it has
    moved; it is empty where unknown or where the id is already derived from the content.
    """

    id: str
    label: int
    class_name: str
    source: str
    content: str = ""


class Hit(NamedTuple):
    """An item that was found, and its cosine similarity to the query."""

    item: Item
    score: float


class Stored(NamedTuple):
    """An item and its vector."""

    item: Item
    vector: Float32[np.ndarray, " dim"]


@runtime_checkable
class Store(Protocol):
    """Items by id, each with a unit vector of ``dim`` numbers made by the encoder ``fingerprint``.

    A zero vector is allowed and has similarity 0 to everything. Vectors of another length, NaN and infinite numbers are
    a UserError, in ``put`` and in ``search``. A failing database raises a UserError that is also an OSError and names
    the store.
    """

    fingerprint: str
    dim: int

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add items, replacing those whose id is already stored."""

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; returns how many of ``ids`` were stored. Call ``build_index`` after removing many."""

    def search(self, vectors: Vectors, k: int, *, classes: Sequence[str] = (), exact: bool = False) -> list[list[Hit]]:
        """The ``k`` most similar items of each of ``vectors``, best first, equal ones by id.

        If more items tie than fit into ``k``, the database decides which of them are returned.

        With ``classes`` only items of these classes are searched. An approximate index, if there is one, may miss some
        neighbours; it is not used with ``exact`` or ``classes``.
        """

    def get(self, ids: Sequence[str]) -> list[Stored]:
        """The items called ``ids``, in that order; UserError if one is missing."""

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        """Those of ``ids`` that are stored."""

    def with_content(self, contents: Sequence[str]) -> list[Item]:
        """Items whose ``content`` is one of ``contents``; none in stores that were made without that column."""

    def scan(self, batch_size: int = SCAN_BATCH) -> Iterator[tuple[list[Item], Vectors]]:
        """Everything, in an order that stays the same until something is written."""

    def classes(self) -> dict[str, int]:
        """The number of items of each class, by its name."""

    def count(self) -> int:
        """The number of items."""

    def version(self) -> str | None:
        """A text that changes whenever anyone writes to the store; None if the database cannot tell."""

    def build_index(self, kind: IndexKind = "auto") -> None:
        """Make the index cover everything: none ("flat") or an approximate one; "auto" decides by the size."""

    def close(self) -> None:
        """Release files and connections."""


class MissingPackageError(UserError, ImportError):
    """An optional package is not installed; the message says how to install it."""


def open_store(uri: str, *, fingerprint: str, dim: int | None = None, create: bool = False) -> Store:
    """The store at ``uri``, which must hold vectors of the encoder ``fingerprint``, of ``dim`` numbers if given.

    A folder, or a bucket such as s3://name/path, is LanceDB. http://host:port/database is Milvus, with the token in the
    environment variable SOFTTRIPLE_MILVUS_TOKEN; a local file that ends in .db is Milvus Lite. With ``create`` a store
    that does not exist is created, for vectors of ``dim`` numbers.
    """
    if create and dim is None:
        raise UserError(f"{uri}: a new store needs dim, the number of dimensions of its vectors")
    if uri.startswith(("http://", "https://")) or ("://" not in uri and uri.endswith(".db")):
        _require("pymilvus", f"{uri}: a Milvus store needs pymilvus: pip install 'softtriple[milvus]'")
        from softtriple.search.milvus import open_milvus

        return open_milvus(uri, fingerprint, dim, create)
    _require("lancedb", f"{uri}: a store in a folder needs LanceDB: pip install 'softtriple[store]'")
    from softtriple.search.lance import open_lance

    return open_lance(uri, fingerprint, dim, create)


def _require(package: str, message: str) -> None:
    # Not by catching ImportError: one raised inside an installed package is that package's own.
    if find_spec(package) is None:
        raise MissingPackageError(message)
