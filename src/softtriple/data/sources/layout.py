"""What the published benchmarks share: lists of fields, published counts, and the check that a copy is complete."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.data.benchmark import Benchmark, ImageFiles, Labels, MissingDataError, OnError, Split, with_notes
from softtriple.data.images import ImageError
from softtriple.errors import UserError, count_of

CONTINUE = "To continue with an incomplete copy: --on-error skip"
NOT_COMPARABLE = "results are not comparable with published ones"


class Counts(NamedTuple):
    """The number of images and classes of a benchmark; test classes are those of the queries."""

    train: int
    test: int
    gallery: int
    train_classes: int
    test_classes: int

    def __str__(self) -> str:
        test = (
            f"{self.test} test and {self.gallery} gallery images" if self.gallery else count_of(self.test, "test image")
        )
        train = f"{count_of(self.train, 'training image')} of {count_of(self.train_classes, 'class')}"
        return f"{train}, {test} of {count_of(self.test_classes, 'class')}"


def count(benchmark: Benchmark) -> Counts:
    """The counts of ``benchmark``."""
    return Counts(
        train=len(benchmark.train),
        test=len(benchmark.test),
        gallery=len(benchmark.gallery) if benchmark.gallery else 0,
        train_classes=len(np.unique(benchmark.train.labels)),
        test_classes=len(np.unique(benchmark.test.labels)),
    )


def first_half_trains(name: str, paths: Sequence[str], labels: Labels, class_names: tuple[str, ...]) -> Benchmark:
    """The benchmark that trains on the first half of its classes and tests on the second."""
    everything = Split(ImageFiles(tuple(paths)), labels)
    is_train = labels < len(class_names) // 2
    train, test = everything.take(np.flatnonzero(is_train)), everything.take(np.flatnonzero(~is_train))
    return Benchmark(name=name, class_names=class_names, train=train, test=test)


def check_complete(benchmark: Benchmark, root: Path, on_error: OnError, expected: Counts | None) -> Benchmark:
    """``benchmark`` if it has all images; else an error or, with "skip", what there is, marked as incomplete."""
    complaints = []
    actual = count(benchmark)
    if expected is not None and actual != expected:
        complaints.append(f"it lists {actual}, the published data {expected}")
    present = {name: _present(split) for name, split in benchmark.splits.items()}
    missing = [
        path
        for name, split in benchmark.splits.items()
        for path, there in zip(_paths(split), present[name], strict=True)
        if not there
    ]
    if missing:
        few = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        total = sum(len(split) for split in benchmark.splits.values())
        complaints.append(f"{len(missing)} of {total} images are missing: {few}")
    if not complaints:
        return with_notes(benchmark)
    complaint = f"{benchmark.name}:{root}: incomplete copy: {'; '.join(complaints)}"
    if on_error == "stop":
        raise UserError(f"{complaint}. {CONTINUE}")
    kept = {name: split.take(np.flatnonzero(present[name])) for name, split in benchmark.splits.items()}
    skipped = tuple(str(ImageError(path, "no such file")) for path in missing)
    smaller = replace(
        benchmark,
        train=kept["train"],
        test=kept["test"],
        gallery=kept.get("gallery"),
        skipped=benchmark.skipped + skipped,
        incomplete=True,
    )
    return with_notes(smaller, f"{complaint}: {NOT_COMPARABLE}")


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


def _paths(split: Split) -> tuple[str, ...]:
    assert isinstance(split.items, ImageFiles)
    return split.items.paths


def _present(split: Split) -> np.ndarray:
    return np.array([Path(path).is_file() for path in _paths(split)], dtype=bool)
