"""Class names and labels, and splitting labelled items into train and test by class or by instance."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from softtriple.data.benchmark import Benchmark, Labels, Rows, Split, with_notes
from softtriple.data.sampling import stream
from softtriple.errors import UserError, counted


class Division(NamedTuple):
    """The rows to train on, the rows to test on, and a note that says how they were chosen."""

    train: Rows
    test: Rows
    note: str


class Splitting(NamedTuple):
    """How to split labelled items: the arguments of `divide`."""

    split: str | None = None
    test_share: float | None = None
    seed: int | None = None


def contiguous_labels(labels: Labels) -> tuple[Labels, Int64[np.ndarray, " classes"]]:
    """Labels renumbered from 0 without gaps, as losses need them, and the original label of each number.

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
    """Hold out a random ``share`` of the classes of ``split``; returns what remains and what is held out."""
    classes = np.unique(split.labels)
    chosen = stream("hold out classes", seed).permutation(classes)[: part_of(len(classes), share, "classes")]
    held_out = np.isin(split.labels, chosen)
    return split.take(np.flatnonzero(~held_out)), split.take(np.flatnonzero(held_out))


def part_of(total: int, share: float, what: str) -> int:
    """``share`` of ``total``, rounded, with at least one on either side."""
    if not 0 < share < 1:
        raise UserError(f"cannot hold out a share of {share} of the {what}; expected a number between 0 and 1")
    if total < 2:
        raise UserError(f"cannot split the {what}: there are only {total}; expected at least 2")
    return min(max(round(share * total), 1), total - 1)


def divide(labels: Labels, split: str | None, test_share: float | None, seed: int | None) -> Division:
    """Split rows by "classes" (the default) or "instances"; "none" puts everything into test.

    By class, no test class is trained on: as in the papers, the second half of the classes, in order or shuffled with
    ``seed``, is the test set. By instance, a random half of each class is the test set; the item of a class with a
    single item stays in train.
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
    """The benchmark of ``everything``, split by ``division``."""
    train, test = everything.take(division.train), everything.take(division.test)
    benchmark = Benchmark(name=name, class_names=class_names, train=train, test=test, skipped=tuple(skipped))
    return with_notes(benchmark, division.note, *notes)


def check_no_division(where: str, split: str | None, test_share: float | None, seed: int | None) -> None:
    """UserError if options would split data that come with their own split; "none" is no such option."""
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
