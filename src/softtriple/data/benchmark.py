"""What a data set is: a table of items and integer labels, split into train and test. Pixels come later.

``Items`` is one of four small values; each has a length and ``take(rows)``. ``Split`` adds labels, ``Benchmark``
adds names and puts the splits together. Everything is immutable and easy to build by hand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64, UInt8

from softtriple.data.sampling import Labels as Labels
from softtriple.data.sampling import Rows as Rows
from softtriple.data.sampling import stream

Kind = Literal["image", "vector", "text"]


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk, read when they are needed."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: Rows) -> "ImageFiles":
        """The images of ``rows``, in that order."""
        return ImageFiles(tuple(self.paths[row] for row in rows))


@dataclass(frozen=True, eq=False)
class ImageArray:
    """Small images of one size, grey (n, h, w) or RGB (n, h, w, 3), in memory or memory-mapped."""

    pixels: UInt8[np.ndarray, "items height width"] | UInt8[np.ndarray, "items height width 3"]

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: Rows) -> "ImageArray":
        """The images of ``rows``, in that order."""
        return ImageArray(self.pixels[rows])


@dataclass(frozen=True, eq=False)
class Vectors:
    """Feature vectors from anywhere."""

    values: Float32[np.ndarray, "items dim"]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Rows) -> "Vectors":
        """The vectors of ``rows``, in that order."""
        return Vectors(self.values[rows])


@dataclass(frozen=True)
class Texts:
    """Short texts."""

    values: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Rows) -> "Texts":
        """The texts of ``rows``, in that order."""
        return Texts(tuple(self.values[row] for row in rows))


Items = ImageFiles | ImageArray | Vectors | Texts


@dataclass(frozen=True, eq=False)
class Split:
    """Items with the class of each.

    ``fine_labels`` name modes inside a class (the exact character of a letter, say). No loss sees them: they serve to
    ask afterwards what the centres of a class have found.
    """

    items: Items
    labels: Labels
    fine_labels: Labels | None = None

    def __post_init__(self) -> None:
        for name, labels in (("labels", self.labels), ("fine_labels", self.fine_labels)):
            if labels is not None and len(labels) != len(self.items):
                raise ValueError(f"{len(self.items)} items but {len(labels)} {name}: one for each item is needed")

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
    """A data set ready to train and evaluate on: labels of every split index the same ``class_names``.

    With a ``gallery`` the test items are queries that search it; without one the test items search each other.
    ``notes`` are lines to show to the user: counts, how it was split, what was left out.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    test: Split
    gallery: Split | None = None
    fine_names: tuple[str, ...] | None = None
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for where, split in (("train", self.train), ("test", self.test), ("gallery", self.gallery)):
            if split is None:
                continue
            if type(split.items) is not type(self.train.items):
                raise ValueError(f"{self.name}: {where} holds {type(split.items).__name__}, train another kind")
            _check_range(f"{self.name}: {where} labels", split.labels, self.class_names)
            if split.fine_labels is not None:
                _check_range(f"{self.name}: {where} fine labels", split.fine_labels, self.fine_names or ())

    @property
    def kind(self) -> Kind:
        """What the items are: "image", "vector" or "text"."""
        return self.train.kind


def contiguous_labels(labels: Labels) -> tuple[Labels, Int64[np.ndarray, " classes"]]:
    """Labels renumbered 0, 1, 2, … without gaps, as a loss wants them, and the label behind each number.

    Example:
        >>> contiguous_labels(np.array([7, 3, 7]))
        (array([1, 0, 1]), array([3, 7]))
    """
    classes, renumbered = np.unique(labels, return_inverse=True)
    return renumbered.astype(np.int64), classes


def hold_out_classes(split: Split, share: float, seed: int) -> tuple[Split, Split]:
    """``split`` without a random ``share`` of its classes, and those: validation on classes not trained on."""
    classes = np.unique(split.labels)
    chosen = stream("hold out classes", seed).permutation(classes)[: part_of(len(classes), share, "classes")]
    held_out = np.isin(split.labels, chosen)
    return split.take(np.flatnonzero(~held_out)), split.take(np.flatnonzero(held_out))


def part_of(total: int, share: float, what: str) -> int:
    """``share`` of ``total`` as a whole number that leaves at least one on either side."""
    if not 0 < share < 1:
        raise ValueError(f"a share of {share} does not divide the {what}: it must lie between 0 and 1")
    if total < 2:
        raise ValueError(f"{total} of the {what} cannot be divided: at least two are needed")
    return min(max(round(share * total), 1), total - 1)


def with_notes(benchmark: Benchmark, *notes: str) -> Benchmark:
    """``benchmark`` with a first note that counts it, and then ``notes``."""
    parts = [("train", benchmark.train), ("test" if benchmark.gallery is None else "queries", benchmark.test)]
    if benchmark.gallery is not None:
        parts.append(("gallery", benchmark.gallery))
    thing = {"image": "images", "vector": "vectors", "text": "texts"}[benchmark.kind]
    counted = ", ".join(
        f"{name} {len(split)} {thing} of {len(np.unique(split.labels))} classes" for name, split in parts
    )
    return replace(benchmark, notes=(f"{benchmark.name}: {counted}", *notes))


def _check_range(where: str, labels: Labels, names: tuple[str, ...]) -> None:
    if len(labels) and not (labels.min() >= 0 and labels.max() < len(names)):
        raise ValueError(f"{where} lie in {labels.min()}…{labels.max()}, but there are {len(names)} names")


OnError = Literal["stop", "skip"]


class Division(NamedTuple):
    """Rows to train on, rows to test on, and a line that says how they were chosen."""

    train: Rows
    test: Rows
    note: str


def name_order(names: Iterable[str]) -> list[str]:
    """Distinct ``names`` in order: by value when all are whole numbers, else by spelling."""
    distinct = set(names)
    if all(name.isdecimal() for name in distinct):
        return sorted(distinct, key=lambda name: (int(name), name))
    return sorted(distinct)


def index_names(values: Sequence[str]) -> tuple[Labels, tuple[str, ...]]:
    """A label for each of ``values``, and the class names that the labels index."""
    names = name_order(values)
    number = {name: label for label, name in enumerate(names)}
    return np.array([number[value] for value in values], dtype=np.int64), tuple(names)


def divide(labels: Labels, split: str | None, test_share: float | None, seed: int | None) -> Division:
    """Divide rows as ``split`` says: "classes" (the default), so that no test class is trained on, or "instances".

    By classes, the last half in name order is the test, as in the papers; a seed shuffles the classes first. By
    instances, every class gives a random half of its rows; a class of one item stays in train.
    """
    share = 0.5 if test_share is None else test_share
    match split or "classes":
        case "classes":
            return _divide_classes(labels, share, seed)
        case "instances":
            return _divide_instances(labels, share, seed or 0)
        case other:
            raise ValueError(f"split = {other!r} is neither 'classes' nor 'instances'")


def divided(
    name: str, everything: Split, class_names: tuple[str, ...], division: Division, notes: Sequence[str] = ()
) -> Benchmark:
    """The benchmark that ``division`` makes of ``everything``."""
    train, test = everything.take(division.train), everything.take(division.test)
    return with_notes(Benchmark(name=name, class_names=class_names, train=train, test=test), division.note, *notes)


def refuse_division(where: str, split: str | None, test_share: float | None, seed: int | None) -> None:
    """Refuse options that choose a split where the data already has one."""
    given = {"split": split, "test_share": test_share, "seed": seed}
    if chosen := [name for name, value in given.items() if value is not None]:
        raise ValueError(f"{where} brings its own split, so {' and '.join(chosen)} cannot apply: leave it out")


def _divide_classes(labels: Labels, share: float, seed: int | None) -> Division:
    classes = np.unique(labels)
    order = classes if seed is None else stream("divide classes", seed).permutation(classes)
    num_test = part_of(len(classes), share, "classes")
    is_test = np.isin(labels, order[-num_test:])
    how = "in name order" if seed is None else f"shuffled with seed {seed}"
    note = f"split by class, {how}: {len(classes) - num_test} classes to train on, {num_test} others to test on"
    return Division(np.flatnonzero(~is_test), np.flatnonzero(is_test), note)


def _divide_instances(labels: Labels, share: float, seed: int) -> Division:
    generator = stream("divide instances", seed)
    is_test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if len(rows) > 1:
            is_test[generator.permutation(rows)[: part_of(len(rows), share, "items of a class")]] = True
    if not is_test.any():
        raise ValueError("every class has a single item, so a split by instances leaves nothing to test on")
    note = f"split by instances, seed {seed}: test classes are trained on, so this does not measure new classes"
    return Division(np.flatnonzero(~is_test), np.flatnonzero(is_test), note)
