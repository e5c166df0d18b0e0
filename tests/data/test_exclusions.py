from pathlib import Path

import numpy as np
import pytest

from softtriple.data import Benchmark, ImageFiles, Split, make_benchmark
from softtriple.data.exclusions import absolute_list, check_exclusions, exclude_items
from softtriple.errors import UserError


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
        ("path\nnowhere.png\n", "nowhere.png is not one of the data"),
    ],
)
def test_what_is_not_in_the_data_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        exclude_items(vectors(), written(tmp_path, content))


def test_the_file_is_checked_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.csv: no such file"):
        check_exclusions(tmp_path / "none.csv")
