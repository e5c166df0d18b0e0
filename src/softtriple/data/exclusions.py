"""A list of items to leave out, such as the ``audit.csv`` that ``softtriple audit`` writes."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np

from softtriple.data.benchmark import Benchmark, ImageFiles
from softtriple.errors import UserError, counted

COLUMNS = "a column path, or columns split and row"


def check_exclusions(file: Path) -> None:
    """UserError unless ``file`` is a list of items."""
    _read(file)


def absolute_list(file: Path) -> str:
    """The list in ``file`` as CSV, with absolute paths: it means the same in every folder."""
    text = StringIO()
    writer = csv.DictWriter(text, ["path", "split", "row"], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for entry in _read(file):
        path = entry.get("path")
        writer.writerow({**entry, "path": str(file.absolute().parent / path) if path else ""})
    return text.getvalue()


def exclude_items(benchmark: Benchmark, file: Path) -> Benchmark:
    """``benchmark`` without the items that the CSV ``file`` lists, and with a note that says how many.

    An item is named by its ``path`` (relative to the list), or by its ``split`` and ``row``. If there is a column
    ``exclude``, only the rows that say yes in it count. Listed items that are not in the data are an error.
    """
    places = {
        str(Path(path).absolute()): (name, row)
        for name, split in benchmark.splits.items()
        if isinstance(split.items, ImageFiles)
        for row, path in enumerate(split.items.paths)
    }
    kept = {name: np.ones(len(split), dtype=bool) for name, split in benchmark.splits.items()}
    for number, entry in enumerate(_read(file), start=1):
        where = f"{file}: row {number}"
        name, row = _place(entry, places, file.absolute().parent, where)
        if name not in kept or not 0 <= row < len(kept[name]):
            raise UserError(f"{where}: there is no row {row} in {name!r}; the data have {_sizes(benchmark)}")
        label = benchmark.class_names[benchmark.splits[name].labels[row]]
        if entry.get("label", label) != label:
            raise UserError(f"{where}: {name} row {row} has the label {label!r}, the list says {entry['label']!r}")
        kept[name][row] = False
    splits = {name: split.take(np.flatnonzero(kept[name])) for name, split in benchmark.splits.items()}
    dropped = sum(int((~rows).sum()) for rows in kept.values())
    total = sum(len(rows) for rows in kept.values())
    note = f"left out {dropped} of {counted(total, 'item')}, listed in {file}"
    return replace(
        benchmark,
        train=splits["train"],
        test=splits["test"],
        gallery=splits.get("gallery"),
        notes=(*benchmark.notes, note),
    )


def _read(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        raise UserError(f"{file}: no such file; expected a .csv with {COLUMNS}")
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            rows = [row for row in reader if (row.get("exclude") or "yes").strip().lower() in ("yes", "true", "1")]
            columns = set(reader.fieldnames or ())
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file}: not a table of separated values ({error})") from error
    if "path" not in columns and not columns >= {"split", "row"}:
        raise UserError(f"{file}: expected {COLUMNS}; the first line has {', '.join(sorted(columns)) or 'nothing'}")
    return rows


def _place(
    entry: Mapping[str, str], places: Mapping[str, tuple[str, int]], folder: Path, where: str
) -> tuple[str, int]:
    if path := entry.get("path"):
        if (found := places.get(str(folder / path))) is None:
            raise UserError(f"{where}: {path} is not one of the data")
        return found
    try:
        return entry["split"], int(entry["row"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: expected {COLUMNS}") from None


def _sizes(benchmark: Benchmark) -> str:
    return ", ".join(f"{len(split)} in {name}" for name, split in benchmark.splits.items())
