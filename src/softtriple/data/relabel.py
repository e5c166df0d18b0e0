"""Corrected labels: a table of items and their new classes, applied to a benchmark."""

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from softtriple.data.benchmark import Benchmark, Items, Split
from softtriple.data.identity import item_ids
from softtriple.errors import UserError, counted

COLUMNS = ("item", "label")


def read_labels(path: Path) -> dict[str, str]:
    """The new class of each item, by its id; empty: the item is left out.

    A .csv file with the columns ``item`` (the absolute path of a file, or the id in a store) and ``label``; others are
    ignored.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise UserError(f"{path}: no column {missing[0]!r}; a table of labels has the columns item and label")
            return {row["item"]: (row["label"] or "").strip() for row in rows if row["item"]}
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; --labels takes a .csv file with the columns item and label") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as a table of labels ({error})") from error


def apply_labels(benchmark: Benchmark, labels: Mapping[str, str], source: str) -> Benchmark:
    """``benchmark`` with the new ``labels``; ``source`` names them in messages.

    An item whose new class is in another split only moves there, so that a split by class stays one. A class that is in
    none is new, and stays with its item.
    """
    splits = {"train": benchmark.train, "test": benchmark.test, "gallery": benchmark.gallery}
    present = {name: split for name, split in splits.items() if split is not None}
    names = [*benchmark.class_names, *sorted({*labels.values()} - {"", *benchmark.class_names})]
    number = {name: place for place, name in enumerate(names)}
    classes = {name: set(split.labels.tolist()) for name, split in present.items()}
    copies: Counter[str] = Counter()
    parts: dict[str, list[Split]] = {name: [] for name in present}
    changed, dropped = 0, 0
    for name, split in present.items():
        new = split.labels.copy()
        target = np.full(len(split), name, dtype=object)
        for row, one in enumerate(item_ids(split.items, copies)):
            if one not in labels:
                continue
            if labels[one] == "":
                target[row], dropped = "", dropped + 1
                continue
            label = number[labels[one]]
            changed += int(label != new[row])
            new[row] = label
            if label not in classes[name]:
                target[row] = next((other for other in present if label in classes[other]), name)
        relabelled = replace(split, labels=new)
        for other in present:
            parts[other].append(relabelled.take(np.flatnonzero(target == other)))
    if not changed and not dropped:
        raise UserError(
            f"{source}: none of {counted(len(labels), 'label')} changes an item of {benchmark.name}; items are named "
            "by their absolute path or by their id in the store"
        )
    made = {name: _joined(some) for name, some in parts.items()}
    return replace(
        benchmark,
        train=made["train"],
        test=made["test"],
        gallery=made.get("gallery"),
        class_names=tuple(names),
        notes=(*benchmark.notes, f"{source}: {counted(changed, 'item')} relabelled, {dropped} left out"),
    )


def _joined(parts: list[Split]) -> Split:
    first, *others = [part for part in parts if len(part)] or parts[:1]
    if not others:
        return first
    every = [first, *others]
    fine = [part.fine_labels for part in every if part.fine_labels is not None]
    return Split(
        _together([part.items for part in every]),
        np.concatenate([part.labels for part in every]),
        np.concatenate(fine) if len(fine) == len(every) else None,
    )


def _together(parts: list[Items]) -> Items:
    (name,) = parts[0].__match_args__
    entries = [getattr(part, name) for part in parts]
    joined: Any = np.concatenate(entries) if isinstance(entries[0], np.ndarray) else tuple(chain(*entries))
    return type(parts[0])(joined)
