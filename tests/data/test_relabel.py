"""Corrected labels: read from a table, and applied so that a split by class stays one."""

from pathlib import Path

import numpy as np
import pytest

from softtriple.data import Benchmark, ImageFiles, Split, Texts
from softtriple.data.relabel import apply_labels, read_labels
from softtriple.errors import UserError


def benchmark() -> Benchmark:
    """Classes a and b to train on, c and d to test on."""
    return Benchmark(
        name="four",
        train=Split(ImageFiles(("/x/0", "/x/1", "/x/2", "/x/3")), np.array([0, 0, 1, 1])),
        test=Split(ImageFiles(("/x/4", "/x/5", "/x/6")), np.array([2, 2, 3])),
        class_names=("a", "b", "c", "d"),
    )


def classes(made: Benchmark, split: Split) -> dict[str, str]:
    return {path: made.class_names[label] for path, label in zip(split.items.paths, split.labels, strict=True)}


def test_labels_change_and_items_follow_their_class() -> None:
    made = apply_labels(benchmark(), {"/x/0": "b", "/x/1": "c", "/x/6": "a", "/x/3": "", "/x/4": "new"}, "labels.csv")
    assert classes(made, made.train) == {"/x/0": "b", "/x/2": "b", "/x/6": "a"}
    assert classes(made, made.test) == {"/x/1": "c", "/x/4": "new", "/x/5": "c"}
    assert made.class_names == ("a", "b", "c", "d", "new")
    assert made.notes[-1] == "labels.csv: 4 items relabelled, 1 left out"


def test_texts_are_named_by_their_content() -> None:
    data = Benchmark(
        name="texts",
        train=Split(Texts(("one", "two", "one")), np.array([0, 1, 1])),
        test=Split(Texts(("three",)), np.array([0])),
        class_names=("a", "b"),
    )
    one = "sha256:7692c3ad3540bb803c020b3aee66cd88"
    made = apply_labels(data, {f"{one}#2": "a", one: "b"}, "labels.csv")
    assert made.train.labels.tolist() == [1, 1, 0]


def test_a_table_that_changes_nothing_is_an_error() -> None:
    for labels in ({"/y/0": "b"}, {"/x/0": "a"}, {}):
        with pytest.raises(UserError, match="absolute path"):
            apply_labels(benchmark(), labels, "labels.csv")


def test_reading_a_table(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text('\ufeffitem,label,before\n/x/0, b ,a\n/x/1,,a\n"/x/a,b",c,a\n', encoding="utf-8")
    assert read_labels(table) == {"/x/0": "b", "/x/1": "", "/x/a,b": "c"}
    table.write_text("path,label\n")
    with pytest.raises(UserError, match="'item'"):
        read_labels(table)
    with pytest.raises(UserError, match="no such file"):
        read_labels(tmp_path / "nothing.csv")
    table.write_bytes(b"item,label\n\xff,a\n")
    with pytest.raises(UserError, match="cannot be read"):
        read_labels(table)
