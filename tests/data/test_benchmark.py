import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softtriple.data.benchmark import (
    Benchmark,
    ImageArray,
    ImageFiles,
    Split,
    Texts,
    Vectors,
    contiguous_labels,
    hold_out_classes,
    part_of,
)


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
    with pytest.raises(ValueError, match="toy: test labels lie in 0…2, but there are 2 names"):
        Benchmark(name="toy", class_names=("x", "y"), train=labelled([0, 1]), test=labelled([0, 2]))


def test_splits_of_two_kinds_are_refused():
    vectors = Split(Vectors(np.zeros((1, 2), dtype=np.float32)), np.array([0]))
    with pytest.raises(ValueError, match="test holds Vectors"):
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
