import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from softtriple.data.benchmark import (
    Benchmark,
    ImageArray,
    ImageFiles,
    ImageList,
    Split,
    Texts,
    Vectors,
    absolute_path,
    fingerprint,
    item_ids,
)
from softtriple.errors import UserError


def labelled(labels: list[int]) -> Split:
    return Split(Texts(tuple(f"t{i}" for i in range(len(labels)))), np.array(labels, dtype=np.int64))


@pytest.mark.parametrize(
    "items",
    [
        ImageFiles(("a", "b", "c")),
        Texts(("a", "b", "c")),
        Vectors(np.arange(6, dtype=np.float32).reshape(3, 2)),
        ImageArray(np.arange(12, dtype=np.uint8).reshape(3, 2, 2)),
        ImageArray(np.arange(36, dtype=np.uint8).reshape(3, 2, 2, 3)),
        ImageList(tuple(np.full((2, 2, 3), i, dtype=np.uint8) for i in range(3))),
    ],
)
def test_take_keeps_order_and_repeats(items):
    def content(items):
        return next(np.asarray(value).tolist() for value in vars(items).values())

    taken = items.take(np.array([2, 0, 2]))
    assert len(taken) == 3
    assert content(taken) == [content(items)[row] for row in (2, 0, 2)]


def test_labels_and_fine_labels_follow_their_items():
    split = Split(Texts(("a", "b", "c")), np.array([0, 1, 2]), np.array([5, 6, 7]))
    taken = split.take(np.array([2, 1]))
    assert taken.items == Texts(("c", "b"))
    assert taken.labels.tolist() == [2, 1]
    assert taken.fine_labels.tolist() == [7, 6]


def test_a_label_for_each_item():
    with pytest.raises(ValueError, match="3 items but 2 labels"):
        Split(Texts(("a", "b", "c")), np.array([0, 1]))


def test_labels_outside_the_names_are_refused():
    with pytest.raises(ValueError, match="toy: test labels are in 0…2, but there are 2 names"):
        Benchmark(name="toy", class_names=("x", "y"), train=labelled([0, 1]), test=labelled([0, 2]))


def test_splits_of_two_kinds_are_refused():
    vectors = Split(Vectors(np.zeros((1, 2), dtype=np.float32)), np.array([0]))
    with pytest.raises(ValueError, match="test has Vectors, train has Texts"):
        Benchmark(name="toy", class_names=("x",), train=labelled([0]), test=vectors)


PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Texts(("ab", "c")), Texts(("a", "bc"))),
        (Texts(("a",)), ImageFiles(("a",))),
        (Vectors(np.zeros((2, 3), dtype=np.float32)), Vectors(np.zeros((3, 2), dtype=np.float32))),
        (Vectors(np.array([[1.0]], dtype=np.float32)), Vectors(np.array([[2.0]], dtype=np.float32))),
        (ImageArray(PIXELS), ImageArray(PIXELS[::-1])),
        (ImageList(tuple(PIXELS)), ImageList(tuple(PIXELS[::-1]))),
        (ImageFiles(("a", "b")), ImageFiles(("b", "a"))),
    ],
)
def test_other_items_have_another_fingerprint(one, other):
    assert fingerprint(one) == fingerprint(one.take(np.arange(len(one))))
    assert fingerprint(one) != fingerprint(other)


def test_a_fingerprint_follows_size_and_time_of_files_but_not_the_current_directory(tmp_path, monkeypatch):
    file = tmp_path / "a.png"
    file.write_bytes(b"1")
    os.utime(file, ns=(1, 1))
    first = fingerprint(ImageFiles((str(file),)))
    monkeypatch.chdir(tmp_path)
    assert fingerprint(ImageFiles(("a.png",))) == first
    os.utime(file, ns=(1, 2))
    later = fingerprint(ImageFiles((str(file),)))
    file.write_bytes(b"12")
    os.utime(file, ns=(1, 2))
    file_grown = fingerprint(ImageFiles((str(file),)))
    file.unlink()
    assert len({first, later, file_grown, fingerprint(ImageFiles((str(file),)))}) == 4


def test_a_benchmark_notices_other_labels_names_and_items():
    def toy(train=(0, 0), names=("x", "y")) -> Benchmark:
        return Benchmark(name="toy", class_names=names, train=labelled(list(train)), test=labelled([1]))

    fewer = Benchmark(name="toy", class_names=("x", "y"), train=labelled([0]), test=labelled([1]))
    marks = [item.fingerprint() for item in (toy(), toy(train=(0, 1)), toy(names=("x", "z")), fewer)]
    assert len(set(marks)) == 4
    assert toy().fingerprint() == marks[0]


# Ids of items: paths of files, hashes of everything else, and numbers for copies.


def test_files_are_named_by_their_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert item_ids(ImageFiles(("a.png", "/b.png")), Counter()) == [str(tmp_path / "a.png"), "/b.png"]
    with pytest.raises(UserError, match="Unicode"):
        absolute_path("\udcff.png")


def test_copies_are_numbered_across_calls() -> None:
    copies: Counter[str] = Counter()
    (one,) = item_ids(Texts(("one",)), copies)
    assert one.startswith("sha256:")
    assert item_ids(Texts(("one", "two")), copies)[0] == f"{one}#2"


def test_content_decides_for_arrays() -> None:
    for items in (Vectors(np.eye(2, dtype=np.float32)), ImageArray(np.arange(8, dtype=np.uint8).reshape(2, 2, 2))):
        first, second = item_ids(items, Counter())
        assert first != second
        assert item_ids(items.take(np.array([1])), Counter()) == [second]
