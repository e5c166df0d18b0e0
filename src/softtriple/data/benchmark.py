"""A data set as a value: items with integer labels, split into train and test.

``Items`` is one of five small classes with a length and ``take(rows)``. ``Split`` adds labels; ``Benchmark`` has splits
and class names. All are immutable and easy to build by hand.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from jaxtyping import Float32, UInt8

from softtriple.data.sampling import Labels as Labels
from softtriple.data.sampling import Rows as Rows
from softtriple.errors import UserError, counted

Kind = Literal["image", "vector", "text"]
OnError = Literal["stop", "skip"]
Same = TypeVar("Same", bound="_Items")


class MissingDataError(UserError, FileNotFoundError):
    """The data are missing at the given path; a caller may add where to get them."""


# Number of skipped files that the notes list by name; ``Benchmark.skipped`` has all of them.
MAX_LISTED = 20


class _Items:
    """Base of the kinds of items: a dataclass with one field, a tuple or array with one entry per item."""

    __match_args__: ClassVar[tuple[str]]

    def __len__(self) -> int:
        return len(getattr(self, self.__match_args__[0]))

    def take(self: Same, rows: Rows) -> Same:
        """The items of ``rows``, in that order."""
        (name,) = self.__match_args__
        entries = getattr(self, name)
        chosen = entries[rows] if isinstance(entries, np.ndarray) else tuple(entries[row] for row in rows)
        return type(self)(**{name: chosen})


@dataclass(frozen=True)
class ImageFiles(_Items):
    """Image files, decoded when they are needed."""

    paths: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ImageArray(_Items):
    """Images of one size, grey (n, h, w) or RGB (n, h, w, 3), in memory or memory-mapped."""

    pixels: UInt8[np.ndarray, "items height width"] | UInt8[np.ndarray, "items height width 3"]


@dataclass(frozen=True, eq=False)
class ImageList(_Items):
    """RGB images of different sizes in memory."""

    pixels: tuple[UInt8[np.ndarray, "_ _ 3"], ...]


@dataclass(frozen=True, eq=False)
class Vectors(_Items):
    """Feature vectors."""

    values: Float32[np.ndarray, "items dim"]


@dataclass(frozen=True)
class Texts(_Items):
    """Short texts."""

    values: tuple[str, ...]


Items = ImageFiles | ImageArray | ImageList | Vectors | Texts


def fingerprint(items: Items) -> str:
    """A digest of ``items``: path, size and modification time of files, the content of anything else."""
    digest = hashlib.sha256(type(items).__name__.encode())
    match items:
        case ImageFiles(paths):
            for path in paths:
                digest.update(os.fsencode(f"\n{Path(path).absolute()}\t{_stamp(path)}"))
        case Texts(values):
            for value in values:
                content = value.encode("utf-8", "surrogatepass")
                digest.update(b"%d:" % len(content) + content)
        case ImageList(arrays):
            for array in arrays:
                _update(digest, array)
        case ImageArray(array) | Vectors(array):
            _update(digest, array)
    return digest.hexdigest()


def _stamp(path: str) -> str:
    try:
        stat = Path(path).stat()
    except OSError:
        return "missing"
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _update(digest: "hashlib._Hash", array: np.ndarray) -> None:
    digest.update(f"{array.dtype}{array.shape}".encode())
    if array.size:
        digest.update(np.ascontiguousarray(array).data)


def item_ids(items: Items, copies: Counter[str]) -> list[str]:
    """The id of each item, by which stores and tables of labels refer to it: the path of a file, else a content hash.

    ``copies`` counts the items with the same name so far; the second one gets the suffix #2, and so on.
    """
    match items:
        case ImageFiles(paths):
            names = [absolute_path(path) for path in paths]
        case Texts(values):
            names = [_content_id(value.encode()) for value in values]
        case ImageArray(array) | ImageList(array) | Vectors(array):
            names = [_content_id(row.tobytes()) for row in array]
    ids = []
    for name in names:
        copies[name] += 1
        ids.append(name if copies[name] == 1 else f"{name}#{copies[name]}")
    return ids


def absolute_path(path: str) -> str:
    """``path`` as an absolute path, or UserError if it is not Unicode."""
    absolute = str(Path(path).absolute())  # resolve() raises on a circular link
    try:
        absolute.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{path!r}: the name is not Unicode, which stores require; rename the file") from error
    return absolute


def _content_id(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()[:32]}"


@dataclass(frozen=True, eq=False)
class Split:
    """Items with the class of each.

    ``fine_labels`` are finer classes within a class, for example the upper and lower case of a letter. They are not
    used for training, only to analyse what the centres of a class have learned.
    """

    items: Items
    labels: Labels
    fine_labels: Labels | None = None

    def __post_init__(self) -> None:
        for name, labels in (("labels", self.labels), ("fine_labels", self.fine_labels)):
            if labels is not None and len(labels) != len(self.items):
                raise UserError(f"{counted(len(self.items), 'item')} but {len(labels)} {name}; expected one per item")

    def __len__(self) -> int:
        return len(self.items)

    @property
    def kind(self) -> Kind:
        """What the items are: "image", "vector" or "text"."""
        match self.items:
            case Vectors():
                return "vector"
            case Texts():
                return "text"
            case _:
                return "image"

    def take(self, rows: Rows) -> "Split":
        """The items and labels of ``rows``, in that order."""
        fine = None if self.fine_labels is None else self.fine_labels[rows]
        return Split(self.items.take(rows), self.labels[rows], fine)


@dataclass(frozen=True, eq=False, kw_only=True)
class Benchmark:
    """A data set to train and evaluate on; the labels of all splits index ``class_names``.

    With a ``gallery``, the test items are queries that are searched in it; without one they are searched among each
    other. Data loaded with split="none" are all in ``test``, and ``train`` is empty.

    ``notes`` are lines for the user: counts, how the data were split, what was left out. ``skipped`` lists every item
    that was left out, with the reason. ``incomplete`` marks a published benchmark with missing images, whose results
    are not comparable.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    gallery: Split | None = None
    fine_names: tuple[str, ...] | None = None
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    notes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    incomplete: bool = False

    def __post_init__(self) -> None:
        for where, split in self.splits.items():
            if type(split.items) is not type(self.train.items):
                kinds = f"{type(split.items).__name__}, train has {type(self.train.items).__name__}"
                raise UserError(f"{self.name}: {where} has {kinds}")
            _check_range(f"{self.name}: {where} labels", split.labels, self.class_names)
            if split.fine_labels is not None:
                _check_range(f"{self.name}: {where} fine labels", split.fine_labels, self.fine_names or ())

    @property
    def kind(self) -> Kind:
        """What the items are: "image", "vector" or "text"."""
        return self.train.kind

    @property
    def splits(self) -> dict[str, Split]:
        """The splits by name: train, test and, if there is one, gallery."""
        splits = {"train": self.train, "test": self.test}
        return splits if self.gallery is None else {**splits, "gallery": self.gallery}

    def with_splits(self, splits: Mapping[str, Split], **changes: Any) -> "Benchmark":
        """This benchmark with other ``splits``, by name as in `splits`, and other ``changes`` to its fields."""
        train, test, gallery = splits["train"], splits["test"], splits.get("gallery")
        return replace(self, train=train, test=test, gallery=gallery, **changes)

    def fingerprint(self) -> str:
        """A digest of labels, class names and items, to detect changed data."""
        digest = hashlib.sha256("\0".join(self.class_names).encode("utf-8", "surrogatepass"))
        for name, split in self.splits.items():
            digest.update(f"\n{name} {fingerprint(split.items)}".encode())
            _update(digest, split.labels)
        return digest.hexdigest()


def _check_range(where: str, labels: Labels, names: tuple[str, ...]) -> None:
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(names)):
        raise UserError(f"{where} are in {labels.min()}…{labels.max()}, but there are {len(names)} names")


def with_notes(benchmark: Benchmark, *notes: str) -> Benchmark:
    """``benchmark`` with notes: its counts, then ``notes``, then the items that were skipped."""
    names = {"train": "train", "test": "test" if benchmark.gallery is None else "queries", "gallery": "gallery"}
    counts = ", ".join(
        f"{names[name]} {counted(len(split), split.kind)} of {counted(len(np.unique(split.labels)), 'class')}"
        for name, split in benchmark.splits.items()
        if len(split)
    )
    listed = [f"left out: {item}" for item in benchmark.skipped[:MAX_LISTED]]
    if more := benchmark.skipped[MAX_LISTED:]:
        listed.append(f"left out: and {len(more)} more")
    return replace(benchmark, notes=(f"{benchmark.name}: {counts}", *notes, *listed))
