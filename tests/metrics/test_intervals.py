"""Bootstrap intervals: what they must contain, and how wide they must be."""

import numpy as np
import pytest
import torch

from softtriple.metrics.intervals import class_intervals


def test_width_is_that_of_the_mean_of_class_means():
    # 400 classes of 10 queries that all share one value: the standard error is that of 400 numbers, not of 4000.
    random = np.random.default_rng(0)
    labels = torch.arange(400).repeat_interleave(10)
    values = torch.from_numpy(random.normal(size=400))[labels]
    [(low, high)] = class_intervals(values[:, None], labels, resamples=4000)
    assert (high - low) / 2 == pytest.approx(1.96 * values.std().item() / 20, rel=0.1)
    assert low < values.mean().item() < high


def test_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for seed in range(200):
        labels = torch.from_numpy(np.repeat(np.arange(40), random.integers(2, 8, size=40)))
        values = torch.from_numpy((random.random(40)[labels] + random.random(len(labels))) / 2)
        [(low, high)] = class_intervals(values[:, None], labels, resamples=200, seed=seed)
        covered += low <= 0.5 <= high
    assert 0.87 <= covered / 200 <= 0.99


def test_columns_are_independent_and_the_seed_decides():
    torch.manual_seed(0)
    values, labels = torch.rand(60, 3), torch.arange(60) % 7
    together = class_intervals(values, labels, resamples=100, seed=5)
    assert together == [class_intervals(values[:, [m]], labels, resamples=100, seed=5)[0] for m in range(3)]
    assert together != class_intervals(values, labels, resamples=100, seed=6)


def test_intervals_are_those_of_samples_drawn_one_by_one():
    torch.manual_seed(0)
    values, labels = torch.rand(3000, 2).double(), torch.arange(3000) // 2
    random, means = np.random.default_rng(3), []
    for _ in range(1000):  # more than are drawn at a time
        drawn = torch.from_numpy(random.integers(1500, size=1500))
        means.append(torch.cat([values[0::2][drawn], values[1::2][drawn]]).mean(dim=0).numpy())
    expected = np.quantile(means, [0.025, 0.975], axis=0).T
    np.testing.assert_allclose(class_intervals(values, labels, seed=3), expected, rtol=1e-12)


def test_equal_values_have_no_width():
    assert class_intervals(torch.full((6, 1), 0.25), torch.tensor([0, 0, 0, 1, 2, 2])) == [(0.25, 0.25)]


def test_level_is_checked():
    with pytest.raises(ValueError, match="level = 95"):
        class_intervals(torch.ones(2, 1), torch.tensor([0, 1]), level=95.0)
