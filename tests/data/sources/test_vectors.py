import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from softtriple.data import VectorFile, load_benchmark, read_vectors, write_vectors
from softtriple.errors import UserError

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = np.array([0, 1, 1, 0])


def same(one: VectorFile, two: VectorFile) -> bool:
    return (
        np.array_equal(one.vectors, two.vectors)
        and np.array_equal(one.labels, two.labels)
        and (one.class_names, one.paths) == (two.class_names, two.paths)
    )


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
@pytest.mark.parametrize(
    "content",
    [
        VectorFile(vectors=VECTORS, labels=LABELS),
        VectorFile(vectors=VECTORS, labels=LABELS, class_names=("ä", "b", "unused")),
        VectorFile(vectors=VECTORS, labels=LABELS + 7, paths=("p", "q q", "ř", "s")),
    ],
)
def test_what_is_written_is_read(tmp_path, content, suffix):
    write_vectors(tmp_path / f"v{suffix}", content)
    assert same(read_vectors(tmp_path / f"v{suffix}"), content)
    assert [file.name for file in tmp_path.iterdir()] == [f"v{suffix}"]


def test_numpy_and_pyarrow_alone_are_enough(tmp_path):
    np.savez(tmp_path / "v.npz", vectors=VECTORS.astype(np.float64), labels=["b", "a", "a", "b"])
    pq.write_table(
        pa.table({"vectors": VECTORS.tolist(), "labels": ["b", "a", "a", "b"], "other": [1, 2, 3, 4]}),
        tmp_path / "v.parquet",
    )
    expected = VectorFile(vectors=VECTORS, labels=np.array([1, 0, 0, 1]), class_names=("a", "b"))
    assert same(read_vectors(tmp_path / "v.npz"), expected)
    assert same(read_vectors(tmp_path / "v.parquet"), expected)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": LABELS}, "no array 'vectors', only labels"),
        ({"vectors": VECTORS}, "no array 'labels', only vectors"),
        ({"vectors": VECTORS[0], "labels": LABELS}, "shape items×dim, not float32 of shape 3"),
        ({"vectors": VECTORS.astype(str), "labels": LABELS}, "vectors must be numbers"),
        ({"vectors": VECTORS[:0], "labels": LABELS[:0]}, "contains no vectors"),
        ({"vectors": VECTORS, "labels": LABELS[:3]}, "4 vectors but 3 labels"),
        ({"vectors": VECTORS, "labels": LABELS, "paths": ["a"]}, "4 vectors but 1 paths"),
        ({"vectors": VECTORS, "labels": LABELS / 2}, "one integer or string per vector, not float64"),
        ({"vectors": VECTORS, "labels": LABELS, "class_names": ["a"]}, r"labels are in 0…1, but there are 1 class_n"),
        (
            {"vectors": VECTORS, "labels": ["a", "b", "a", "b"], "class_names": ["a"]},
            "class_names cannot be used with string labels",
        ),
        ({"vectors": VECTORS, "labels": np.array(["a", 1, 2, 3], dtype=object)}, "not a readable .npz of plain"),
    ],
)
def test_a_file_with_a_fault_is_named(tmp_path, arrays, message):
    np.savez(tmp_path / "v.npz", **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        read_vectors(tmp_path / "v.npz")
    assert str(caught.value).startswith(str(tmp_path / "v.npz"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"vectors": [[1.0], [1.0, 2.0, 3.0]], "labels": [0, 1]}, "lists of numbers of equal length"),
        ({"vectors": [1.0, 2.0], "labels": [0, 1]}, "lists of numbers of equal length"),
        ({"vectors": [[1.0], [2.0]], "labels": [0, None]}, "column 'labels' is empty in 1 row"),
    ],
)
def test_a_table_with_a_fault_is_named(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "v.parquet")
    with pytest.raises(ValueError, match=message):
        read_vectors(tmp_path / "v.parquet")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_rows_that_are_not_finite_stop_or_are_skipped(tmp_path, value):
    vectors = VECTORS.astype(np.float64)
    vectors[2, 1] = value
    np.savez(tmp_path / "v.npz", vectors=vectors, labels=LABELS, paths=list("abcd"))
    with pytest.raises(ValueError, match=r"1 of 4 vectors are not finite \(rows 2\)\. .*--on-error skip"):
        read_vectors(tmp_path / "v.npz")
    content = read_vectors(tmp_path / "v.npz", on_error="skip")
    assert content.paths == ("a", "b", "d")
    assert content.skipped == 1
    notes = load_benchmark(str(tmp_path / "v.npz"), on_error="skip").notes
    assert any("left out 1 vector with NaN or infinity" in note for note in notes)


def test_labels_with_gaps_become_classes(tmp_path):
    np.savez(tmp_path / "v.npz", vectors=VECTORS, labels=np.array([10, 9, 9, 10]))
    benchmark = load_benchmark(str(tmp_path / "v.npz"))
    assert benchmark.class_names == ("9", "10")
    assert benchmark.train.labels.tolist() == [0, 0]


def test_parquet_with_vectors_is_found_by_its_column(tmp_path):
    write_vectors(tmp_path / "v.parquet", VectorFile(vectors=VECTORS, labels=LABELS))
    assert load_benchmark(str(tmp_path / "v.parquet")).kind == "vector"


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot write vectors as \.npy; expected \.npz or \.parquet"):
        write_vectors(tmp_path / "v.npy", VectorFile(vectors=VECTORS, labels=LABELS))
    (tmp_path / "v.npy").touch()
    with pytest.raises(ValueError, match=r"cannot read vectors from \.npy; expected \.npz or \.parquet"):
        read_vectors(tmp_path / "v.npy")
    with pytest.raises(UserError, match="no such file"):
        read_vectors(Path("absent.npz"))


def test_without_pyarrow_the_error_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "v.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"softtriple\[parquet\]"):
        read_vectors(tmp_path / "v.parquet")
