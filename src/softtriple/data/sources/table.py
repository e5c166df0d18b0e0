"""Tables of images or texts: .csv, .tsv, .jsonl or .parquet with a column of paths or texts and a column of labels.

Columns with common names are recognised; others are named by an option. A column called "split" assigns rows to
training or testing.
"""

import csv
import json
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.data.benchmark import Benchmark, ImageFiles, Labels, OnError, Rows, Split, Texts
from softtriple.data.images import ImageError
from softtriple.data.sources.folder import SKIP, TEST_NAMES
from softtriple.data.sources.vectors import read_parquet
from softtriple.data.splitting import Division, Splitting, check_no_division, divide, divided, index_names
from softtriple.errors import UserError, did_you_mean, first_few

Columns = dict[str, list[str]]

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
# The first name of each is preferred to the others.
PATH_NAMES = ("path", "file", "image", "filename")
TEXT_NAMES = ("text", "utterance", "sentence", "query", "question")
LABEL_NAMES = ("label", "intent", "category", "class", "kind")


class _Chosen(NamedTuple):
    """The columns to use; ``column`` contains paths or texts."""

    kind: str
    column: str
    label: str


def load_table(
    table: Path,
    *,
    path: str | None = None,
    text: str | None = None,
    label: str | None = None,
    splitting: Splitting,
    on_error: OnError = "stop",
) -> Benchmark:
    """Load a table of images (column ``path``) or texts (column ``text``) with a column of labels.

    Columns that are not given are recognised by their names. Paths are relative to the folder of the table. ``split``
    is "classes", "instances", "none" or a column with the values train and test, by default the column "split" if there
    is one. Rows with a missing image, a blank text or no label are an error; ``on_error="skip"`` leaves them out.
    """
    columns = _read(table)
    chosen = _choose_columns(table, columns, path, text, label)
    values, names = columns[chosen.column], columns[chosen.label]
    if not names:
        raise UserError(f"{table}: the table has no rows")
    if chosen.kind == "image":
        values = [str(table.parent / value) for value in values]
    faults = _find_faults(table, chosen, values, names)
    if faults and (on_error == "stop" or len(faults) == len(names)):
        few = first_few(faults.values(), separator="; ")
        raise UserError(f"{table}: {len(faults)} of {len(names)} rows cannot be used: {few}. {SKIP}")
    notes = [f"columns: {chosen.column!r} ({chosen.kind}) and {chosen.label!r} (label)"]
    if faults:
        notes.append(f"{table}: left out {len(faults)} of {len(names)} rows")

    kept = np.array([row for row in range(len(names)) if row not in faults])
    labels, class_names = index_names([names[row] for row in kept])
    items = ImageFiles(tuple(values)) if chosen.kind == "image" else Texts(tuple(values))
    division = _divide(table, columns, kept, labels, splitting)
    return divided(table.stem, Split(items.take(kept), labels), class_names, division, notes, [*faults.values()])


def _choose_columns(table: Path, columns: Columns, path: str | None, text: str | None, label: str | None) -> _Chosen:
    if path is not None and text is not None:
        raise UserError(f"{table}: path = {path!r} and text = {text!r} cannot both be used; remove one of them")
    for column in (path, text, label):
        if column is not None and column not in columns:
            raise UserError(f"{table}: no column {column!r}; {did_you_mean(column, columns)}")
    if path is None and text is None:
        item = _recognise(table, columns, {"path": PATH_NAMES, "text": TEXT_NAMES}, exclude=label)
        path, text = (item, None) if item.lower() in PATH_NAMES else (None, item)
    column = path or text
    assert column is not None
    label = label or _recognise(table, columns, {"label": LABEL_NAMES}, exclude=column)
    return _Chosen("image" if path else "text", column, label)


def _recognise(table: Path, columns: Columns, known: dict[str, tuple[str, ...]], exclude: str | None) -> str:
    """The column whose name is one of ``known``, by option; the name of the option itself is preferred."""
    usual = [name for names in known.values() for name in names]
    options = " or ".join(f"--set data.{option}=COLUMN" for option in known)
    for names in (list(known), usual):
        candidates = [name for name in columns if name.lower() in names and name != exclude]
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise UserError(f"{table}: columns {', '.join(candidates)} could be meant; choose one with {options}")
    raise UserError(
        f"{table}: no column {', '.join(usual)}; the first line has {', '.join(map(repr, columns))}. "
        f"Name the column with {options}; if the file has no header line, add one such as text,label"
    )


def _find_faults(table: Path, chosen: _Chosen, values: Sequence[str], names: Sequence[str]) -> dict[int, str]:
    """What is wrong with each row that cannot be used."""
    faults: dict[int, str] = {}
    for row, (value, name) in enumerate(zip(values, names, strict=True)):
        if not name.strip():
            faults[row] = f"{table}: row {row + 1}: column {chosen.label!r} is empty"
        elif chosen.kind == "text" and not value.strip():
            faults[row] = f"{table}: row {row + 1}: column {chosen.column!r} is blank"
        elif chosen.kind == "image" and not Path(value).is_file():
            faults[row] = str(ImageError(value, "no such file"))
    return faults


def _divide(table: Path, columns: Columns, kept: Rows, labels: Labels, splitting: Splitting) -> Division:
    split = "split" if splitting == Splitting() and "split" in columns else splitting.split
    if split in (None, "classes", "instances", "none"):
        return divide(labels, *splitting)
    if split not in columns:
        choices = ["classes", "instances", "none", *columns]
        raise UserError(f"{table}: split = {split!r} is not a column or a way to split; {did_you_mean(split, choices)}")
    check_no_division(f"{table}, column {split!r},", *splitting._replace(split=None))
    values = [columns[split][row] for row in kept]
    test = next((name for name in TEST_NAMES if name in values), "test")
    parts = {part: np.flatnonzero([value == part for value in values]) for part in ("train", test)}
    if unknown := sorted(set(values) - parts.keys()):
        raise UserError(f"{table}: column {split!r} contains {unknown[0]!r}; expected train and {test}")
    for part, rows in parts.items():
        if not len(rows):
            raise UserError(f"{table}: no row has {part!r} in column {split!r}")
    return Division(parts["train"], parts[test], f"split by column {split!r}")


# Reading: every format becomes columns of strings; a missing value is "".


def _read(table: Path) -> Columns:
    match table.suffix.lower():
        case ".parquet":
            return _read_parquet(table)
        case ".jsonl":
            return _read_jsonl(table)
        case suffix:
            return _read_csv(table, "\t" if suffix == ".tsv" else None)


def _read_csv(table: Path, delimiter: str | None) -> Columns:
    text = _read_text(table)
    first = text.lstrip().partition("\n")[0]
    # The header contains no texts: its most frequent separator is the right one.
    separator = delimiter or max(",;\t", key=first.count)
    try:
        rows = [row for row in csv.reader(StringIO(text, newline=""), delimiter=separator) if row]
    except csv.Error as error:
        raise UserError(f"{table}: not a table of separated values ({error})") from error
    header, *rows = rows
    _check_distinct(table, header)
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise UserError(f"{table}: row {number} has {len(row)} fields, the header {len(header)}")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _read_jsonl(table: Path) -> Columns:
    records: list[dict[str, object]] = []
    for number, line in enumerate(_read_text(table).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{table}: line {number} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise UserError(f'{table}: line {number} is not an object; expected one such as {{"text": …, "label": …}}')
        records.append(record)
    names = dict.fromkeys(name for record in records for name in record)
    return {name: _strings(record.get(name) for record in records) for name in names}


def _read_parquet(table: Path) -> Columns:
    content = read_parquet(table)
    _check_distinct(table, content.column_names)
    try:
        return {name: _strings(content.column(name).to_pylist()) for name in content.column_names}
    except Exception as error:  # for example a date in the year 200 000
        raise UserError(f"{table}: a column cannot be converted to Python values ({error})") from error


def _read_text(table: Path) -> str:
    try:
        text = table.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{table}: not UTF-8 text ({error})") from error
    if not text.strip():
        raise UserError(f"{table}: the file is empty; expected a header line such as text,label and a row per item")
    return text


def _strings(values: Iterable[object]) -> list[str]:
    return ["" if value is None else str(value) for value in values]


def _check_distinct(table: Path, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise UserError(f"{table}: a column name is repeated in {', '.join(names)}")
