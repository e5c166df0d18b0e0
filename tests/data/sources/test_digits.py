import numpy as np

from softtriple.data import load_benchmark


def test_digits_are_half_and_half():
    digits = load_benchmark("digits")
    assert set(digits.train.labels) == set(digits.test.labels) == set(range(10))
    assert len(digits.train) + len(digits.test) == 1797
    assert np.abs(np.bincount(digits.train.labels) - np.bincount(digits.test.labels)).max() <= 1
    assert digits.train.items.values.max() == 1.0
