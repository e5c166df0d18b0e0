"""Tables of images or texts: .csv or .parquet with a path (or text) column, a label column, perhaps a split column."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from softtriple.data.benchmark import (
    Benchmark,
    Division,
    ImageFiles,
    OnError,
    Rows,
    Split,
    Texts,
    divide,
    divided,
    index_names,
    refuse_division,
)
from softtriple.data.images import ImageError
from softtriple.data.sources.vectors import read_parquet

Columns = dict[str, list[str]]


def load_table(
    table: Path,
    *,
    path: str | None = None,
    text: str | None = None,
    label: str = "label",
    split: str | None = None,
    test_share: float | None = None,
    seed: int | None = None,
    on_error: OnError = "stop",
) -> Benchmark:
    """Load a table of images (column ``path``) or texts (column ``text``) with a column of labels.

    Image paths count from the folder of the table. ``split`` is "classes", "instances" or the name of a column that
    says train or test; a column called "split" is used by itself. Rows whose image is missing or whose text is blank
    are an error; ``on_error="skip"`` leaves them out and says so.
    """
    columns = _read_parquet(table) if table.suffix == ".parquet" else _read_csv(table)
    kind, column = _choose_items(table, columns, path, text)
    names = _column(table, columns, label)
    if blank := [row for row, name in enumerate(names) if not name]:
        raise ValueError(f"{table}: column {label!r} is empty in {len(blank)} rows (first: row {blank[0] + 1})")
    if not names:
        raise ValueError(f"{table}: the table has no rows")

    labels, class_names = index_names(names)
    items: ImageFiles | Texts
    notes: tuple[str, ...] = ()
    if kind == "text":
        items, kept, notes = _find_texts(table, column, columns[column], on_error)
    else:
        items, kept, notes = _find_images(table, column, columns[column], on_error)
    everything = Split(items, labels).take(kept)

    if split is None and test_share is None and seed is None and "split" in columns:
        split = "split"
    if split in (None, "classes", "instances"):
        division = divide(everything.labels, split, test_share, seed)
    elif split in columns:
        refuse_division(f"{table}, column {split!r},", None, test_share, seed)
        division = _divide_by_column(table, split, [columns[split][row] for row in kept])
    else:
        raise ValueError(f"{table}: split = {split!r} is no column, nor 'classes' or 'instances'; {_listed(columns)}")
    return divided(table.stem, everything, class_names, division, notes)


def _choose_items(table: Path, columns: Columns, path: str | None, text: str | None) -> tuple[str, str]:
    if path is not None and text is not None:
        raise ValueError(f"{table}: path = {path!r} and text = {text!r} exclude each other: name one of them")
    if path is None and text is None:
        present = [name for name in ("path", "text") if name in columns]
        if len(present) != 1:
            found = "both columns path and text" if present else "no column path or text"
            raise ValueError(f"{table}: {found}; name the one to use with path or text; {_listed(columns)}")
        path, text = ("path", None) if present == ["path"] else (None, "text")
    kind, column = ("image", path) if path is not None else ("text", text)
    assert column is not None
    _column(table, columns, column)
    return kind, column


def _find_images(
    table: Path, column: str, values: list[str], on_error: OnError
) -> tuple[ImageFiles, Rows, tuple[str, ...]]:
    """The image files that ``values`` name, the rows whose file exists, and notes about the others."""
    files = [table.parent / value for value in values]
    items = ImageFiles(tuple(str(file) for file in files))
    present = np.array([file.is_file() for file in files], dtype=bool)
    if present.all():
        return items, np.arange(len(values)), ()
    missing = [values[row] for row in np.flatnonzero(~present)]
    which = f"{len(missing)} of {len(values)} images are missing"
    if on_error == "stop" or not present.any():
        few = ", ".join(missing[:3])
        raise ValueError(f"{table}: {which} ({few}); paths in column {column!r} count from {table.parent}")
    left_out = (f"left out: {ImageError(items.paths[row], 'no such file')}" for row in np.flatnonzero(~present))
    return items, np.flatnonzero(present), (*left_out, f"{table}: {which} and were left out")


def _find_texts(table: Path, column: str, values: list[str], on_error: OnError) -> tuple[Texts, Rows, tuple[str, ...]]:
    """The texts, the rows that have one, and a note about the others."""
    items, present = Texts(tuple(values)), np.array([bool(value.strip()) for value in values], dtype=bool)
    if present.all():
        return items, np.arange(len(values)), ()
    which = f"column {column!r} is blank in {(~present).sum()} of {len(values)} rows"
    if on_error == "stop" or not present.any():
        raise ValueError(f"{table}: {which} (first: row {np.flatnonzero(~present)[0] + 1}); give each row a text")
    return items, np.flatnonzero(present), (f"{table}: {which}, which were left out",)


def _column(table: Path, columns: Columns, name: str) -> list[str]:
    if name not in columns:
        raise ValueError(f"{table}: there is no column {name!r}; {_listed(columns)}")
    return columns[name]


def _listed(columns: Columns) -> str:
    return f"the columns are {', '.join(columns)}"


def _divide_by_column(table: Path, column: str, values: Sequence[str]) -> Division:
    parts: dict[str, Rows] = {part: np.flatnonzero([value == part for value in values]) for part in ("train", "test")}
    if strangers := sorted(set(values) - parts.keys()):
        raise ValueError(f"{table}: column {column!r} holds {strangers[0]!r}; only train and test are known")
    for part, rows in parts.items():
        if not len(rows):
            raise ValueError(f"{table}: no row has {part!r} in column {column!r}")
    return Division(parts["train"], parts["test"], f"split by column {column!r}")


def _read_csv(table: Path) -> Columns:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [row for row in csv.reader(file) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{table}: not a table of comma-separated values in UTF-8 ({error})") from error
    if len(set(header)) < len(header):
        raise ValueError(f"{table}: a column name occurs twice in {', '.join(header)}")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ValueError(f"{table}: row {number} has {len(row)} fields, the header {len(header)}")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _read_parquet(table: Path) -> Columns:
    content = read_parquet(table)
    if len(set(content.column_names)) < len(content.column_names):
        raise ValueError(f"{table}: a column name occurs twice in {', '.join(content.column_names)}")
    try:
        return {
            name: ["" if value is None else str(value) for value in content.column(name).to_pylist()]
            for name in content.column_names
        }
    except Exception as error:  # such as a date of the year 200 000
        raise ValueError(f"{table}: a column holds what Python cannot ({error})") from error
