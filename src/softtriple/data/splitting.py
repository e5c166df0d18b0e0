"""How own data becomes train and test: class names in order, then half of the classes, or half of each class."""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from softtriple.data.benchmark import Benchmark, Labels, Rows, Split, part_of, with_notes
from softtriple.data.randomness import stream

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
