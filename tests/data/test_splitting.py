import numpy as np
import pytest

from softtriple.data.benchmark import divide, index_names, name_order

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
        ([0, 0], None, None, "1 of the classes cannot be divided"),
        ([0, 1], "halves", None, "split = 'halves' is neither"),
        ([0, 1], "classes", 1.5, "share of 1.5"),
        ([0, 1], "instances", None, "nothing to test on"),
    ],
)
def test_divisions_that_cannot_be(labels, split, share, message):
    with pytest.raises(ValueError, match=message):
        divide(np.array(labels), split, share, None)
