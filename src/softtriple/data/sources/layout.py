"""Shared by the published benchmarks: reading their lists, and checking that a copy is complete."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.data.benchmark import (
    Benchmark,
    ImageFiles,
    Labels,
    MissingDataError,
    OnError,
    Split,
    with_notes,
)
from softtriple.data.images import ImageError
from softtriple.errors import UserError, counted, first_few


class Counts(NamedTuple):
    """Numbers of images and classes of a benchmark; gallery classes are not counted."""

    train: int
    test: int
    gallery: int
    train_classes: int
    test_classes: int

    def __str__(self) -> str:
        test = (
            f"{self.test} test and {self.gallery} gallery images" if self.gallery else counted(self.test, "test image")
        )
        train = f"{counted(self.train, 'training image')} of {counted(self.train_classes, 'class')}"
        return f"{train}, {test} of {counted(self.test_classes, 'class')}"


def count(benchmark: Benchmark) -> Counts:
    """The counts of ``benchmark``."""
    return Counts(
        train=len(benchmark.train),
        test=len(benchmark.test),
        gallery=len(benchmark.gallery) if benchmark.gallery else 0,
        train_classes=len(np.unique(benchmark.train.labels)),
        test_classes=len(np.unique(benchmark.test.labels)),
    )


def image_split(paths: Iterable[str | Path], labels: Iterable[int]) -> Split:
    """Image files with their labels."""
    return Split(ImageFiles(tuple(map(str, paths))), np.fromiter(labels, dtype=np.int64))


def first_half_trains(name: str, paths: Sequence[str], labels: Labels, class_names: tuple[str, ...]) -> Benchmark:
    """A benchmark with the first half of the classes for training and the second for testing."""
    everything = Split(ImageFiles(tuple(paths)), labels)
    is_train = labels < len(class_names) // 2
    train, test = everything.take(np.flatnonzero(is_train)), everything.take(np.flatnonzero(~is_train))
    return Benchmark(name=name, class_names=class_names, train=train, test=test)


def check_complete(benchmark: Benchmark, root: Path, on_error: OnError, expected: Counts | None) -> Benchmark:
    """``benchmark`` if it has all images; else an error or, with "skip", the images there are, marked as incomplete."""
    complaints = []
    actual = count(benchmark)
    if expected is not None and actual != expected:
        complaints.append(f"it lists {actual}, the published data {expected}")
    kept: dict[str, Split] = {}
    missing: list[str] = []
    for name, split in benchmark.splits.items():
        assert isinstance(split.items, ImageFiles)
        present = np.array([Path(path).is_file() for path in split.items.paths], dtype=bool)
        kept[name] = split.take(np.flatnonzero(present))
        missing += split.items.take(np.flatnonzero(~present)).paths
    if missing:
        total = sum(len(split) for split in benchmark.splits.values())
        complaints.append(f"{len(missing)} of {total} images are missing: {first_few(missing)}")
    if not complaints:
        return with_notes(benchmark)
    skipped = tuple(str(ImageError(path, "no such file")) for path in missing)
    smaller = benchmark.with_splits(kept, skipped=benchmark.skipped + skipped)
    return mark_incomplete(smaller, root, on_error, "; ".join(complaints))


def mark_incomplete(benchmark: Benchmark, root: Path, on_error: OnError, complaint: str) -> Benchmark:
    """``benchmark`` marked as incomplete, with a note; UserError if ``on_error`` is "stop"."""
    complaint = f"{benchmark.name}:{root}: incomplete copy: {complaint}"
    if on_error == "stop":
        raise UserError(f"{complaint}. To continue with an incomplete copy: --on-error skip")
    note = f"{complaint}: results are not comparable with published ones"
    return with_notes(replace(benchmark, incomplete=True), *benchmark.notes, note)


def read_fields(path: Path, num_fields: int, skip_lines: int = 0) -> list[tuple[str, ...]]:
    """The lines of a list, each split at whitespace into ``num_fields`` fields."""
    if not path.is_file():
        raise MissingDataError(f"{path}: no such file; PATH must be the folder that contains it")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error})") from error
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if number <= skip_lines or not line.strip():
            continue
        row = tuple(line.split(maxsplit=num_fields - 1))
        if len(row) != num_fields:
            raise UserError(f"{path}: line {number} has {len(row)} fields; expected {num_fields}")
        rows.append(row)
    return rows
