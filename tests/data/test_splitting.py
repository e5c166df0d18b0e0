import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softtriple.data.benchmark import (
    Split,
    Texts,
)
from softtriple.data.splitting import (
    contiguous_labels,
    divide,
    divided,
    hold_out_classes,
    index_names,
    name_order,
    part_of,
)

LABELS = np.repeat(np.arange(5), 4)


def labelled(labels: list[int]) -> Split:
    return Split(Texts(tuple(f"t{i}" for i in range(len(labels)))), np.array(labels, dtype=np.int64))


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
