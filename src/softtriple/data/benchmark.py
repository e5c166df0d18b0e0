"""A data set as a value: items with integer labels, split into train and test.

``Items`` is one of five small values, each with a length and ``take(rows)``. ``Split`` adds labels; ``Benchmark``
holds the splits and the class names. All are immutable and easy to build by hand. The second half of the file splits
labelled items by class or by instance.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from softtriple.data.sampling import Labels as Labels
from softtriple.data.sampling import Rows as Rows
from softtriple.data.sampling import stream
from softtriple.errors import UserError, counted

Kind = Literal["image", "vector", "text"]
OnError = Literal["stop", "skip"]
Same = TypeVar("Same", bound="_Items")


class MissingDataError(UserError, FileNotFoundError):
    """Data that are not where they were said to be; a caller may add where to get them."""


# How many skipped files the notes list by name; ``Benchmark.skipped`` has them all.
MAX_LISTED = 20


class _Items:
    """What the kinds of items share: a dataclass with one field, a tuple or array with an entry for each item."""

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
    """A digest that changes with ``items``: path, size and modification time of files, the content of anything else."""
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

    ``fine_labels`` name modes inside a class, for example the exact character of a letter. No loss sees them; they
    show afterwards what the centres of a class have learned.
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

    With a ``gallery``, the test items are queries that search it; without one the test items search each other. Data
    loaded with split="none" are all in ``test``, and ``train`` is empty.

    ``notes`` are lines for the user: counts, how the data were split, what was left out. ``skipped`` names every item
    left out, with the reason. ``incomplete`` marks a published benchmark that lacks images, so that its results are
    not comparable.
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
        """This benchmark with other ``splits``, named as in the property, and other ``changes`` to its fields."""
        train, test, gallery = (splits.get(name) for name in ("train", "test", "gallery"))
        return replace(self, train=train, test=test, gallery=gallery, **changes)

    def fingerprint(self) -> str:
        """A digest of the labels, the class names and the ``fingerprint`` of the items, to notice changed data."""
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


# Labels and splitting.


class Division(NamedTuple):
    """The rows to train on, the rows to test on, and a note that says how they were chosen."""

    train: Rows
    test: Rows
    note: str


class Splitting(NamedTuple):
    """How to split labelled items, as `divide` takes it; None is the default there."""

    split: str | None = None
    test_share: float | None = None
    seed: int | None = None


def contiguous_labels(labels: Labels) -> tuple[Labels, Int64[np.ndarray, " classes"]]:
    """Labels renumbered 0, 1, 2, … without gaps, as a loss needs them, and the original label of each number.

    Example:
        >>> contiguous_labels(np.array([7, 3, 7]))
        (array([1, 0, 1]), array([3, 7]))
    """
    classes, renumbered = np.unique(labels, return_inverse=True)
    return renumbered.astype(np.int64), classes


def name_order(names: Iterable[str]) -> list[str]:
    """Distinct ``names`` in order: numerically if all are integers, else alphabetically."""
    distinct = set(names)
    if all(name.isdecimal() for name in distinct):
        return sorted(distinct, key=lambda name: (int(name), name))
    return sorted(distinct)


def index_names(values: Sequence[str]) -> tuple[Labels, tuple[str, ...]]:
    """A label for each of ``values``, and the class names that the labels index."""
    names = name_order(values)
    number = {name: label for label, name in enumerate(names)}
    return np.array([number[value] for value in values], dtype=np.int64), tuple(names)


def hold_out_classes(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """Separate a random ``share`` of the classes of ``split`` for validation: what remains, and what is held out."""
    classes = np.unique(split.labels)
    chosen = stream("hold out classes", seed).permutation(classes)[: part_of(len(classes), share, "classes")]
    held_out = np.isin(split.labels, chosen)
    return split.take(np.flatnonzero(~held_out)), split.take(np.flatnonzero(held_out))


def part_of(total: int, share: float, what: str) -> int:
    """``share`` of ``total``, rounded but leaving at least one on either side."""
    if not 0 < share < 1:
        raise UserError(f"a share of {share} of the {what} is not between 0 and 1")
    if total < 2:
        raise UserError(f"cannot split {total} of the {what}; expected at least 2")
    return min(max(round(share * total), 1), total - 1)


def divide(labels: Labels, split: str | None, test_share: float | None, seed: int | None) -> Division:
    """Divide rows as ``split`` says: "classes" (the default), "instances", or "none" for everything in test.

    By class, no test class is trained on: as in the papers, the second half of the classes in order is the test set; a
    seed shuffles the classes first. By instance, a random half of each class is tested on; a class with a single item
    stays in train.
    """
    share = 0.5 if test_share is None else test_share
    if split == "none":
        check_no_division('split="none"', None, test_share, seed)
        return Division(np.arange(0), np.arange(len(labels)), "not split")
    if split not in (None, "classes", "instances"):
        raise UserError(f"split = {split!r}; expected 'classes', 'instances' or 'none'")
    if (num_classes := len(np.unique(labels))) < 2:
        raise UserError(
            f"Only {counted(num_classes, 'class')} found; training needs at least 2 to tell apart. To search among the "
            "items of one class with an encoder trained on others: softtriple index RUN DATA --store URI"
        )
    if split == "instances":
        return _divide_instances(labels, share, seed or 0)
    return _divide_classes(labels, share, seed)


def divided(
    name: str,
    everything: Split,
    class_names: tuple[str, ...],
    division: Division,
    notes: Sequence[str] = (),
    skipped: Sequence[str] = (),
) -> Benchmark:
    """The benchmark that ``division`` makes of ``everything``."""
    train, test = everything.take(division.train), everything.take(division.test)
    benchmark = Benchmark(name=name, class_names=class_names, train=train, test=test, skipped=tuple(skipped))
    return with_notes(benchmark, division.note, *notes)


def check_no_division(where: str, split: str | None, test_share: float | None, seed: int | None) -> None:
    """Raise if options ask to split data that come with their own split; "none" asks for nothing."""
    given = {"split": None if split == "none" else split, "test_share": test_share, "seed": seed}
    if chosen := [name for name, value in given.items() if value is not None]:
        raise UserError(f"{where} already defines the split; remove {' and '.join(chosen)}")


def _divide_classes(labels: Labels, share: float, seed: int | None) -> Division:
    classes = np.unique(labels)
    order = classes if seed is None else stream("divide classes", seed).permutation(classes)
    num_test = part_of(len(classes), share, "classes")
    is_test = np.isin(labels, order[-num_test:])
    how = "in name order" if seed is None else f"shuffled with seed {seed}"
    train, test = counted(len(classes) - num_test, "class"), counted(num_test, "other")
    note = f"split by class, {how}: {train} to train on, {test} to test on"
    return Division(np.flatnonzero(~is_test), np.flatnonzero(is_test), note)


def _divide_instances(labels: Labels, share: float, seed: int) -> Division:
    generator = stream("divide instances", seed)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) > 1:
            is_test[generator.permutation(rows)[: part_of(len(rows), share, "items of a class")]] = True
    if not is_test.any():
        raise UserError("every class has a single item, so splitting by instance leaves nothing to test on")
    note = f"split by instance, seed {seed}: test classes are trained on, so this does not measure new classes"
    return Division(np.flatnonzero(~is_test), np.flatnonzero(is_test), note)
