import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softtriple.data.benchmark import (
    Benchmark,
    ImageArray,
    ImageFiles,
    ImageList,
    Split,
    Texts,
    Vectors,
    absolute_path,
    contiguous_labels,
    divide,
    divided,
    fingerprint,
    hold_out_classes,
    index_names,
    item_ids,
    name_order,
    part_of,
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


@given(st.lists(st.integers(-5, 5), min_size=1))
def test_contiguous_labels_are_a_renaming(labels):
    original = np.array(labels, dtype=np.int64)
    renumbered, classes = contiguous_labels(original)
    np.testing.assert_array_equal(classes[renumbered], original)
    np.testing.assert_array_equal(np.unique(renumbered), np.arange(len(classes)))


@given(st.integers(2, 9), st.floats(0.01, 0.99), st.integers(0, 5))
def test_held_out_classes_are_whole_and_apart(num_classes, share, seed):
    split = labelled(list(range(num_classes)) * 2)
    kept, held_out = hold_out_classes(split, share, seed)
    assert len(kept) + len(held_out) == len(split)
    assert not set(kept.labels) & set(held_out.labels)
    assert len(set(held_out.labels)) == part_of(num_classes, share, "classes")
    again = hold_out_classes(split, share, seed)[1]
    np.testing.assert_array_equal(held_out.labels, again.labels)


def test_another_seed_holds_out_other_classes():
    split = labelled(list(range(40)))
    chosen = {tuple(hold_out_classes(split, 0.5, seed)[1].labels) for seed in range(5)}
    assert len(chosen) == 5


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(ValueError, match="between 0 and 1"):
        hold_out_classes(labelled([0, 1]), share, 0)


# Splitting.

LABELS = np.repeat(np.arange(5), 4)


def test_numbers_are_ordered_by_value_and_words_by_spelling():
    assert name_order(["10", "9", "9", "100"]) == ["9", "10", "100"]
    assert name_order(["10", "9", "x"]) == ["10", "9", "x"]


def test_labels_index_the_names():
    labels, names = index_names(["b", "a", "b"])
    assert names == ("a", "b")
    assert labels.tolist() == [1, 0, 1]


def test_by_default_the_last_classes_are_the_test():
    division = divide(LABELS, None, None, None)
    assert set(LABELS[division.train]) == {0, 1, 2}
    assert set(LABELS[division.test]) == {3, 4}
    assert "3 classes to train on, 2 others" in division.note


def test_a_seed_chooses_other_classes():
    chosen = {tuple(np.unique(LABELS[divide(LABELS, "classes", None, seed).test])) for seed in range(8)}
    assert len(chosen) > 3


def test_by_instances_every_class_is_on_both_sides():
    division = divide(LABELS, "instances", 0.25, 3)
    assert np.bincount(LABELS[division.test]).tolist() == [1] * 5
    np.testing.assert_array_equal(np.sort(np.concatenate([division.train, division.test])), np.arange(20))


def test_a_class_of_one_item_is_trained_on():
    labels = np.array([0, 0, 1])
    division = divide(labels, "instances", None, None)
    assert labels[division.test].tolist() == [0]


@pytest.mark.parametrize(
    ("labels", "split", "share", "message"),
    [
        ([0, 0], None, None, "Only 1 class found.*needs at least 2.*softtriple index"),
        ([0, 0], "instances", None, "Only 1 class found; training needs at least 2"),
        ([0, 1], "halves", None, "split = 'halves'; expected 'classes', 'instances' or 'none'"),
        ([0, 1], "classes", 1.5, "share of 1.5"),
        ([0, 1], "instances", None, "nothing to test on"),
        ([0, 1], "none", 0.5, "remove test_share"),
    ],
)
def test_divisions_that_cannot_be(labels, split, share, message):
    with pytest.raises(ValueError, match=message):
        divide(np.array(labels), split, share, None)


def test_without_a_split_everything_is_in_test_even_a_single_class():
    everything = labelled([0, 0, 0])
    benchmark = divided("one", everything, ("x",), divide(everything.labels, "none", None, None))
    assert (len(benchmark.train), len(benchmark.test)) == (0, 3)
    assert benchmark.kind == "text"
    assert benchmark.notes == ("one: test 3 texts of 1 class", "not split")


def test_notes_list_a_screenful_of_what_was_skipped():
    everything = labelled([0, 1])
    skipped = [f"{i}.png: no such file" for i in range(30)]
    benchmark = divided("toy", everything, ("x", "y"), divide(everything.labels, None, None, None), skipped=skipped)
    listed = [note for note in benchmark.notes if note.startswith("left out: ")]
    assert listed[:2] == ["left out: 0.png: no such file", "left out: 1.png: no such file"]
    assert len(listed) == 21
    assert "10 more" in listed[-1]
    assert benchmark.skipped == tuple(skipped)


# Fingerprints.

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
