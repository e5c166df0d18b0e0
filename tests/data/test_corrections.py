"""Corrections of the data: items left out, and new labels, applied so that a split by class stays one."""

from pathlib import Path

import numpy as np
import pytest

from softtriple.data import Benchmark, ImageFiles, Split, Texts, make_benchmark
from softtriple.data.corrections import absolute_list, apply_labels, exclude_items, read_exclusions, read_labels
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


def vectors() -> Benchmark:
    return make_benchmark(np.eye(8, dtype=np.float32), list("aabbccdd"))


def written(folder: Path, text: str) -> Path:
    file = folder / "list.csv"
    file.write_text(text, encoding="utf-8")
    return file


def test_rows_of_splits(tmp_path: Path) -> None:
    file = written(tmp_path, "split,row,label,exclude\ntrain,1,a,yes\ntest,0,c,yes\ntest,1,c,no\ntrain,1,a,yes\n")
    smaller = exclude_items(vectors(), file)
    np.testing.assert_array_equal(smaller.train.items.values, np.eye(8, dtype=np.float32)[[0, 2, 3]])
    np.testing.assert_array_equal(smaller.test.items.values, np.eye(8, dtype=np.float32)[[5, 6, 7]])
    assert "2 of 8 items" in smaller.notes[-1]


def test_without_a_column_exclude_every_row_counts(tmp_path: Path) -> None:
    assert len(exclude_items(vectors(), written(tmp_path, "split,row\ntrain,0\ntrain,2\n")).train) == 2


def test_paths_are_relative_to_the_list(tmp_path: Path) -> None:
    paths = tuple(str(tmp_path / "photos" / f"{n}.png") for n in range(4))
    train, test = (Split(ImageFiles(paths[n : n + 2]), np.array([0, 1])) for n in (0, 2))
    benchmark = Benchmark(name="photos", class_names=("a", "b"), train=train, test=test)
    file = written(tmp_path, f"path\nphotos/1.png\n{paths[2]}\n")
    (tmp_path / "elsewhere").mkdir()
    for listed in (file, written(tmp_path / "elsewhere", absolute_list(file))):
        smaller = exclude_items(benchmark, listed)
        assert smaller.train.items == ImageFiles(paths[:1])
        assert smaller.test.items == ImageFiles(paths[3:])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name\nx\n", "column path"),
        ("split,row\ntrain,99\n", "no row 99"),
        ("split,row\nvalidation,0\n", "validation"),
        ("split,row,label\ntrain,0,z\n", "has the label 'a'"),
        ("split,row\ntrain,first\n", "row 1"),
        ("path\nnowhere.png\n", "nowhere.png is not in the data"),
    ],
)
def test_what_is_not_in_the_data_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        exclude_items(vectors(), written(tmp_path, content))


def test_the_file_is_checked_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv: no such file"):
        read_exclusions(tmp_path / "none.csv")
