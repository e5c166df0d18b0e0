"""What the two databases share: checks of what comes in, the order of what goes out, sizes, and errors."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32

from softtriple.errors import UserError, counted
from softtriple.search.knn import nearest
from softtriple.search.store import Hit, IndexKind, Item, Stored

# What a store keeps of an item besides its vector, by name.
FIELDS = [field.name for field in fields(Item)]
# With fewer items a full scan takes milliseconds, and an index could only lose neighbours.
FLAT_BELOW = 20_000
# How far from 1 the length of a unit vector may be: float16 rounds by about as much.
LENGTH_TOLERANCE = 1e-3


class StoreError(UserError, OSError):
    """A store that cannot be opened, read or written; the message names it."""


class NoStoreError(StoreError, FileNotFoundError):
    """There is no store at the address."""


def no_store(uri: str) -> NoStoreError:
    """The error for a store that does not exist."""
    return NoStoreError(f"{uri}: there is no store here; create it with softtriple index RUN DATA --store {uri}")


def is_local(uri: str) -> bool:
    """Whether ``uri`` is a path on this machine."""
    return "://" not in uri


def may_exist(uri: str) -> bool:
    """Whether there is anything at ``uri``; only the server knows about a remote store."""
    return not is_local(uri) or Path(uri).exists()


def check_matches(uri: str, *, held: str, wanted: str, width: int, dim: int | None) -> None:
    """Require that the store was made by the encoder ``wanted``, for vectors of ``dim`` numbers if given."""
    if held != wanted:
        elsewhere = "another store" if is_local(uri) else "another path or database, such as http://host:19530/DATABASE"
        raise UserError(
            f"{uri}: the store holds vectors of the run with fingerprint {held or 'unknown'}, this run has {wanted}; "
            f"search with that run, or index this one into {elsewhere}"
        )
    if dim not in (None, width):
        raise UserError(f"{uri}: the store holds vectors of {width} dimensions, not of {dim}")


def check_items(
    items: Sequence[Item], vectors: Float[np.ndarray, "items dim"], dim: int
) -> Float32[np.ndarray, "items dim"]:
    """``vectors`` as a store takes them, one for each of ``items``, whose ids must differ."""
    if len(items) != len(vectors):
        counts = f"{counted(len(items), 'item')} but {counted(len(vectors), 'vector')}"
        raise UserError(f"{counts}: expected one vector per item")
    ids = [item.id for item in items]
    if len(set(ids)) < len(ids):
        twice, _ = Counter(ids).most_common(1)[0]
        raise UserError(f"item {twice!r} is given twice: ids must differ")
    return check_vectors(vectors, dim, ids)


def check_vectors(
    vectors: Float[np.ndarray, "items dim"], dim: int, names: Sequence[str] = ()
) -> Float32[np.ndarray, "items dim"]:
    """``vectors`` as float32 rows of length 1 or 0."""
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        raise UserError(f"vectors of shape {vectors.shape}: the store has rows of {dim} dimensions")
    numbers = vectors.astype(np.float64)
    for row, length in enumerate(np.sqrt(np.einsum("ij,ij->i", numbers, numbers)).tolist()):
        if not (abs(length - 1) <= LENGTH_TOLERANCE or length == 0):
            name = f" of {names[row]!r}" if names else ""
            fault = f"has length {length:.4g}" if math.isfinite(length) else "holds NaN or infinite numbers"
            raise UserError(f"vector {row}{name} {fault}: a store takes vectors of length 1 or 0")
    return np.ascontiguousarray(vectors, dtype=np.float32)


def best_hits(query: Float32[np.ndarray, " dim"], candidates: Sequence[Stored], k: int) -> list[Hit]:
    """The best ``k`` of ``candidates`` in their true order: by exact similarity, equal ones by id."""
    if not candidates:
        return []
    ordered = sorted(candidates, key=lambda stored: stored.item.id)
    found = nearest(query[None], np.stack([stored.vector for stored in ordered]), k)
    pairs = zip(found.rows[0].tolist(), found.scores[0].tolist(), strict=True)
    return [Hit(ordered[row].item, score) for row, score in pairs]


def in_order(ids: Sequence[str], stored: dict[str, Stored], uri: str) -> list[Stored]:
    """The ``stored`` items in the order of ``ids``, all of which must be among them."""
    missing = [one for one in ids if one not in stored]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise UserError(f"{uri}: not in the store: {', '.join(map(repr, missing[:3]))}{more}")
    return [stored[one] for one in ids]


def parts(values: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """``values``, at most ``size`` at a time."""
    return (values[start : start + size] for start in range(0, len(values), size))


def is_flat(kind: IndexKind, count: int) -> bool:
    """Whether a store of ``count`` items is searched in full when an index of ``kind`` is asked for."""
    return kind == "flat" or (kind == "auto" and count < FLAT_BELOW) or count == 0


def partitions(count: int) -> int:
    """Number of cells into which an approximate index divides ``count`` vectors: a third of the square root.

    Example:
        >>> partitions(100_000), partitions(10)
        (105, 1)
    """
    return max(1, round(math.sqrt(count) / 3))


def probes(count: int) -> int:
    """Number of these cells that a search looks into: a quarter.

    That found 98 of 100 neighbours among 100 000 synthetic clustered vectors, 96 among 10 000 (benchmarks/search.py).

    Example:
        >>> probes(100_000), probes(10)
        (26, 1)
    """
    return max(1, partitions(count) // 4)
