import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softtriple.data.sampling import in_order, m_per_class, shuffled, stream


@given(st.integers(1, 50), st.integers(1, 12), st.integers(0, 3), st.integers(0, 3))
def test_a_shuffle_has_every_row_once(num_rows, batch_size, seed, epoch):
    found = list(shuffled(num_rows, batch_size, seed, epoch))
    assert sorted(np.concatenate(found).tolist()) == list(range(num_rows))
    assert all(len(batch) == batch_size for batch in found[:-1])
    again = list(shuffled(num_rows, batch_size, seed, epoch))
    assert all(np.array_equal(one, two) for one, two in zip(found, again, strict=True))


def test_seed_and_epoch_change_the_order():
    orders = {tuple(np.concatenate(list(shuffled(30, 7, s, e)))) for s in range(4) for e in range(4)}
    assert len(orders) == 16


def test_in_order_is_in_order():
    assert [batch.tolist() for batch in in_order(5, 2)] == [[0, 1], [2, 3], [4]]


@given(st.integers(2, 6), st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
def test_batches_of_m_per_class(num_classes, items, m, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(num_classes) * 3, items))
    for rows in m_per_class(labels, 2, m, seed, epoch=0):
        classes, counts = np.unique(labels[rows], return_counts=True)
        assert len(classes) == 2
        assert counts.tolist() == [m, m]
        if items >= m:
            assert len(set(rows)) == len(rows)


def test_m_per_class_sees_classes_equally_often():
    labels = np.repeat(np.arange(6), 20)
    found = list(m_per_class(labels, 2, 4, seed=0, epoch=0))
    assert len(found) == len(labels) // 8
    assert np.bincount(labels[np.concatenate(found)]).tolist() == [20] * 6
    other = list(m_per_class(labels, 2, 4, seed=0, epoch=1))
    assert not all(np.array_equal(one, two) for one, two in zip(found, other, strict=True))


def test_samplers_refuse_what_cannot_be():
    with pytest.raises(ValueError, match="classes_per_batch = 3; expected 1 to 2"):
        next(m_per_class(np.array([0, 1]), 3, 1, 0, 0))
    with pytest.raises(ValueError, match="m = 0"):
        next(m_per_class(np.array([0, 1]), 1, 0, 0, 0))
    with pytest.raises(ValueError, match="batch_size = 0"):
        in_order(3, 0)


def test_streams_of_two_purposes_are_unrelated():
    assert not np.array_equal(stream("shuffle", 0, 0).random(4), stream("affine", 0, 0).random(4))
    assert np.array_equal(stream("shuffle", 0, 0).random(4), stream("shuffle", 0, 0).random(4))
