"""A vector store as the rest of softtriple sees it: items with unit vectors, searched by cosine similarity.

One small protocol with two databases behind it: LanceDB in a folder or a bucket (`softtriple.search.lance`), Milvus on
a server (`softtriple.search.milvus`). A store belongs to the run whose encoder made its vectors: the fingerprint of the
run is kept in it, and another run is refused, because vectors of two encoders cannot be compared.

What a database returns is scored again by `nearest`, in float64: so scores are true cosines, and their order is that
of `nearest`, whatever arithmetic or index found the candidates.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Float32

from softtriple.search.knn import nearest

# Below so many items a full scan takes milliseconds, and an index could only lose neighbours.
FLAT_BELOW = 20_000
SCAN_BATCH = 8192
# How far from 1 the length of a unit vector may be: float16 rounds by about as much.
LENGTH_TOLERANCE = 1e-3

IndexKind = Literal["auto", "flat", "approximate"]
Vectors = Float[np.ndarray, "items dim"]


@dataclass(frozen=True)
class Item:
    """What a store keeps of an item beside its vector.

    ``label`` is the number of the class in the data that the item came from; across data sets ``class_name`` is what
    tells classes apart. ``source`` is the path of an image, a small image itself as a ``data:`` address, or a text; it
    is empty for bare vectors.
    """

    id: str
    label: int
    class_name: str
    source: str


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
    """Items by id, each with a unit vector of ``dim`` numbers made by the run ``fingerprint``.

    A vector of zeros is allowed and has similarity 0 to everything. Vectors of another length, NaN and infinite numbers
    are a ValueError, in ``put`` and in ``search``. A database that fails is an OSError that names the store.
    """

    fingerprint: str
    dim: int

    def put(self, items: Sequence[Item], vectors: Vectors) -> None:
        """Add items; those whose id is stored already are replaced."""

    def delete(self, ids: Sequence[str]) -> int:
        """Remove items; returns how many of ``ids`` were there. After many, ``build_index`` keeps searches good."""

    def search(self, vectors: Vectors, k: int, *, classes: Sequence[str] = (), exact: bool = False) -> list[list[Hit]]:
        """The ``k`` most similar items of each of ``vectors``, best first, equal ones by id.

        Of more equal ones than ``k`` has room for, which are named is up to the database.

        With ``classes`` only items of these are looked at. An approximate index, where there is one, may miss some;
        with ``exact`` or ``classes`` it is not used.
        """

    def get(self, ids: Sequence[str]) -> list[Stored]:
        """The items called ``ids``, in that order; ValueError if one is missing."""

    def known(self, ids: Sequence[str]) -> dict[str, Item]:
        """Those of ``ids`` that are stored."""

    def scan(self, batch_size: int = SCAN_BATCH) -> Iterator[tuple[list[Item], Vectors]]:
        """Everything, in an order that stays the same until something is written."""

    def classes(self) -> dict[str, int]:
        """The number of items of each class, by its name."""

    def count(self) -> int:
        """The number of items."""

    def build_index(self, kind: IndexKind = "auto") -> None:
        """Make the index cover everything: none ("flat"), or an approximate one; "auto" decides by the size."""

    def close(self) -> None:
        """Let go of files and connections."""


def open_store(uri: str, *, fingerprint: str, dim: int | None = None, create: bool = False) -> Store:
    """The store at ``uri``, which must hold vectors of the run ``fingerprint``, of ``dim`` numbers if given.

    A folder, or a bucket such as s3://name/path, is LanceDB; http://host:port/database is Milvus, with the token in the
    environment variable SOFTTRIPLE_MILVUS_TOKEN, and so is a local file that ends in .db (Milvus Lite). With ``create``
    a store that is not there is made, for vectors of ``dim`` numbers.
    """
    if create and dim is None:
        raise ValueError(f"{uri}: a new store needs to know how many numbers its vectors have")
    if uri.startswith(("http://", "https://")) or (is_local(uri) and uri.endswith(".db")):
        return _open_milvus(uri, fingerprint, dim, create)
    return _open_lance(uri, fingerprint, dim, create)


def _open_lance(uri: str, fingerprint: str, dim: int | None, create: bool) -> Store:
    try:
        from softtriple.search.lance import open_lance
    except ImportError as error:
        raise ImportError(f"{uri}: a store in a folder needs LanceDB: pip install 'softtriple[store]'") from error
    return open_lance(uri, fingerprint, dim, create)


def _open_milvus(uri: str, fingerprint: str, dim: int | None, create: bool) -> Store:
    try:
        from softtriple.search.milvus import open_milvus
    except ImportError as error:
        raise ImportError(f"{uri}: a Milvus store needs pymilvus: pip install 'softtriple[milvus]'") from error
    return open_milvus(uri, fingerprint, dim, create)


# What the two databases share.


def refuse_missing(uri: str) -> FileNotFoundError:
    """The error for a store that is not there."""
    return FileNotFoundError(f"{uri}: there is no store here; make it with softtriple index RUN DATA --store {uri}")


def refuse_other_run(uri: str, held: str, wanted: str) -> ValueError:
    """The error for a store of another run."""
    elsewhere = "another store" if is_local(uri) else "another path or database, such as http://host:19530/DATABASE"
    return ValueError(
        f"{uri}: the store holds vectors of the run with fingerprint {held or 'unknown'}, this run has {wanted}; "
        f"search with that run, or index this one into {elsewhere}"
    )


def refuse_other_dim(uri: str, held: int, wanted: int) -> ValueError:
    """The error for a store of vectors of another length."""
    return ValueError(f"{uri}: the store holds vectors of {held} dimensions, not of {wanted}")


def is_local(uri: str) -> bool:
    """Whether ``uri`` is a path on this machine."""
    return "://" not in uri


def is_there(uri: str) -> bool:
    """Whether a local store can exist; of others only their server knows."""
    return not is_local(uri) or Path(uri).exists()


def checked_items(items: Sequence[Item], vectors: Vectors, dim: int) -> Float32[np.ndarray, "items dim"]:
    """``vectors`` as a store takes them, one for each of ``items``, whose ids differ."""
    if len(items) != len(vectors):
        raise ValueError(f"{len(items)} items but {len(vectors)} vectors: one for each item is needed")
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice = next(one for place, one in enumerate(ids) if one in ids[:place])
        raise ValueError(f"item {twice!r} is given twice: ids must differ")
    return checked_vectors(vectors, dim, ids)


def checked_vectors(vectors: Vectors, dim: int, names: Sequence[str] = ()) -> Float32[np.ndarray, "items dim"]:
    """``vectors`` as float32, or a ValueError that names the first that is wrong."""
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise ValueError(f"vectors of shape {vectors.shape}: the store has rows of {dim} dimensions")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    wrong = np.flatnonzero(~((np.abs(lengths - 1) <= LENGTH_TOLERANCE) | (lengths == 0)))
    if len(wrong):
        row = int(wrong[0])
        name = f" of {names[row]!r}" if names else ""
        fault = f"has length {lengths[row]:.4g}" if np.isfinite(lengths[row]) else "holds NaN or infinite numbers"
        raise ValueError(f"vector {row}{name} {fault}: a store takes vectors of length 1 or 0")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def checked_k(k: int) -> int:
    """``k``, which must be positive."""
    if k < 1:
        raise ValueError(f"k = {k}: ask for at least one neighbour")
    return k


def ranked(query: Float32[np.ndarray, " dim"], candidates: Sequence[Stored], k: int) -> list[Hit]:
    """The best ``k`` of ``candidates`` in their true order: by similarity in float64, equal ones by id."""
    if not candidates:
        return []
    ordered = sorted(candidates, key=lambda stored: stored.item.id)
    vectors = torch.from_numpy(np.stack([stored.vector for stored in ordered]))
    found = nearest(torch.from_numpy(query)[None], vectors, k)
    return [
        Hit(ordered[row].item, score)
        for row, score in zip(found.rows[0].tolist(), found.scores[0].tolist(), strict=True)
    ]


def in_order(ids: Sequence[str], found: dict[str, Stored], uri: str) -> list[Stored]:
    """The ``found`` items in the order of ``ids``, all of which must be among them."""
    missing = [one for one in ids if one not in found]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"{uri}: not in the store: {', '.join(map(repr, missing[:3]))}{more}")
    return [found[one] for one in ids]


def partitions(count: int) -> int:
    """Into how many cells an approximate index divides ``count`` vectors: a third of the square root.

    Example:
        >>> partitions(100_000), partitions(10)
        (105, 1)
    """
    return max(1, round(math.sqrt(count) / 3))


def probes(count: int) -> int:
    """How many of these cells a search looks into: a quarter.

    That found 98 of 100 neighbours among 100 000 made-up clustered vectors, 96 among 10 000 (benchmarks/search.py).

    Example:
        >>> probes(100_000), probes(10)
        (26, 1)
    """
    return max(1, partitions(count) // 4)
