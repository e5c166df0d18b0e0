"""Corrections to the data as .csv files: items to leave out (``data.exclude``) and new labels (``data.labels``).

``softtriple audit`` writes the first kind, the gallery the second.
"""

import csv
from collections import Counter
from collections.abc import Mapping
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from softtriple.data.benchmark import Benchmark, ImageFiles, Items, Split, item_ids
from softtriple.errors import UserError, counted

EXCLUDED_COLUMNS = "a column path, or columns split and row"
LABEL_COLUMNS = "columns item and label"

# Items to leave out.


def read_exclusions(file: Path) -> list[dict[str, str]]:
    """The rows of the .csv ``file`` that name items to leave out.

    If there is a column ``exclude``, only the rows with "yes" in it count.
    """
    columns, rows = _read_csv(file, EXCLUDED_COLUMNS)
    if "path" not in columns and not {"split", "row"} <= {*columns}:
        raise UserError(f"{file}: expected {EXCLUDED_COLUMNS}; the first line has {', '.join(columns) or 'nothing'}")
    return [row for row in rows if (row.get("exclude") or "yes").strip().lower() in ("yes", "true", "1")]


def absolute_list(file: Path) -> str:
    """The list in ``file`` as CSV with absolute paths, which can be moved to another folder."""
    text = StringIO()
    writer = csv.DictWriter(text, ["path", "split", "row"], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for entry in read_exclusions(file):
        path = entry.get("path")
        writer.writerow({**entry, "path": str(file.absolute().parent / path) if path else ""})
    return text.getvalue()


def exclude_items(benchmark: Benchmark, file: Path) -> Benchmark:
    """``benchmark`` without the items listed in ``file``; a note says how many were left out.

    An item is named by its ``path``, relative to the folder of the list, or by its ``split`` and ``row``. Listing an
    item that is not in the data is an error.
    """
    places = {
        str(Path(path).absolute()): (name, row)
        for name, split in benchmark.splits.items()
        if isinstance(split.items, ImageFiles)
        for row, path in enumerate(split.items.paths)
    }
    kept = {name: np.ones(len(split), dtype=bool) for name, split in benchmark.splits.items()}
    for number, entry in enumerate(read_exclusions(file), start=1):
        where = f"{file}: row {number}"
        if path := entry.get("path"):
            place = places.get(str(file.absolute().parent / path))
            if place is None:
                raise UserError(f"{where}: {path} is not in the data")
            name, row = place
        else:
            try:
                name, row = entry["split"], int(entry["row"])
            except (KeyError, TypeError, ValueError):
                raise UserError(f"{where}: expected {EXCLUDED_COLUMNS}") from None
        if name not in kept or not 0 <= row < len(kept[name]):
            sizes = ", ".join(f"{len(split)} in {other}" for other, split in benchmark.splits.items())
            raise UserError(f"{where}: there is no row {row} in {name!r}; the data have {sizes}")
        label = benchmark.class_names[benchmark.splits[name].labels[row]]
        if entry.get("label", label) != label:
            raise UserError(f"{where}: {name} row {row} has the label {label!r}, the list says {entry['label']!r}")
        kept[name][row] = False
    total = sum(map(len, kept.values()))
    dropped = total - sum(int(rows.sum()) for rows in kept.values())
    return benchmark.with_splits(
        {name: split.take(np.flatnonzero(kept[name])) for name, split in benchmark.splits.items()},
        notes=(*benchmark.notes, f"left out {dropped} of {counted(total, 'item')}, listed in {file}"),
    )


# New labels.


def read_labels(file: Path) -> dict[str, str]:
    """The new class of each item, by item id; "" leaves the item out.

    ``file`` is a .csv with the columns ``item`` (the absolute path of a file, or the id in a store) and ``label``;
    other columns are ignored.
    """
    columns, rows = _read_csv(file, LABEL_COLUMNS)
    if missing := [name for name in ("item", "label") if name not in columns]:
        raise UserError(f"{file}: no column {missing[0]!r}; expected {LABEL_COLUMNS}")
    return {row["item"]: (row["label"] or "").strip() for row in rows if row["item"]}


def apply_labels(benchmark: Benchmark, labels: Mapping[str, str], source: str) -> Benchmark:
    """``benchmark`` with the new ``labels``, which messages attribute to ``source``.

    An item whose new class occurs only in another split moves to that split, so that a split by class stays one. An
    item of a class that is new altogether stays where it is.
    """
    splits = benchmark.splits
    names = [*benchmark.class_names, *sorted({*labels.values()} - {"", *benchmark.class_names})]
    number = {name: label for label, name in enumerate(names)}
    classes = {name: set(split.labels.tolist()) for name, split in splits.items()}
    copies: Counter[str] = Counter()
    parts: dict[str, list[Split]] = {name: [] for name in splits}
    changed, dropped = 0, 0
    for name, split in splits.items():
        new = split.labels.copy()
        target = np.full(len(split), name, dtype=object)
        for row, item in enumerate(item_ids(split.items, copies)):
            if item not in labels:
                continue
            if labels[item] == "":
                target[row], dropped = "", dropped + 1
                continue
            label = number[labels[item]]
            changed += int(label != new[row])
            new[row] = label
            if label not in classes[name]:
                target[row] = next((other for other in splits if label in classes[other]), name)
        relabelled = Split(split.items, new, split.fine_labels)
        for other in splits:
            parts[other].append(relabelled.take(np.flatnonzero(target == other)))
    if not changed and not dropped:
        raise UserError(
            f"{source}: none of {counted(len(labels), 'label')} changes an item of {benchmark.name}; items are named "
            "by their absolute path or by their id in the store"
        )
    return benchmark.with_splits(
        {name: _concatenate(some) for name, some in parts.items()},
        class_names=tuple(names),
        notes=(*benchmark.notes, f"{source}: {counted(changed, 'item')} relabelled, {dropped} left out"),
    )


def _concatenate(parts: list[Split]) -> Split:
    filled = [part for part in parts if len(part)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    fine = [part.fine_labels for part in filled if part.fine_labels is not None]
    return Split(
        _concatenate_items([part.items for part in filled]),
        np.concatenate([part.labels for part in filled]),
        np.concatenate(fine) if len(fine) == len(filled) else None,
    )


def _concatenate_items(parts: list[Items]) -> Items:
    (name,) = parts[0].__match_args__
    entries = [getattr(part, name) for part in parts]
    joined: Any = np.concatenate(entries) if isinstance(entries[0], np.ndarray) else tuple(chain(*entries))
    return type(parts[0])(joined)


def _read_csv(file: Path, expected: str) -> tuple[list[str], list[dict[str, str]]]:
    """Column names and rows of a .csv file; ``expected`` describes its columns in errors."""
    if not file.is_file():
        raise UserError(f"{file}: no such file; expected a .csv with {expected}")
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            reader = csv.DictReader(opened, strict=True)
            return list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file}: cannot be read as a .csv with {expected} ({error})") from error
