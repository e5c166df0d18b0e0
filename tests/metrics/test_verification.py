"""Error rates of pairs, against scikit-learn and plain loops."""

from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score

from softtriple.metrics.verification import PAIR_BINS, pair_masses, verify


@pytest.fixture(scope="module")
def items() -> tuple[torch.Tensor, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 8)
    values = random.standard_normal((6, 5))[labels] + 0.8 * random.standard_normal((48, 5))
    return F.normalize(torch.from_numpy(values).float(), dim=1), labels


def test_every_pair_counts_once(items) -> None:
    vectors, labels = items
    masses = pair_masses(vectors, labels)
    same, different = np.zeros(PAIR_BINS), np.zeros(PAIR_BINS)
    for a, b in combinations(range(len(labels)), 2):
        place = min(int((float(vectors[a] @ vectors[b]) + 1) * PAIR_BINS / 2), PAIR_BINS - 1)
        (same if labels[a] == labels[b] else different)[place] += 1
    np.testing.assert_allclose(masses.true, same / same.sum() / 2)
    np.testing.assert_allclose(masses.false, different / different.sum() / 2)


def test_rates_are_those_of_the_pairs(items) -> None:
    vectors, labels = items
    pairs = list(combinations(range(len(labels)), 2))
    scores = np.array([float(vectors[a] @ vectors[b]) for a, b in pairs])
    same = np.array([labels[a] == labels[b] for a, b in pairs])
    found = verify(pair_masses(vectors, labels))
    assert found.auroc == pytest.approx(roc_auc_score(same, scores), abs=2e-3)
    limit = np.quantile(scores[~same], 0.99)
    assert found.fnmr_at_1_percent_fmr == pytest.approx((scores[same] < limit).mean(), abs=0.02)
    assert found.fnmr_at_0_1_percent_fmr >= found.fnmr_at_1_percent_fmr
    errors = [abs((scores[~same] >= t).mean() - (scores[same] < t).mean()) for t in scores]
    at = scores[int(np.argmin(errors))]
    assert found.equal_error_rate == pytest.approx((scores[~same] >= at).mean(), abs=0.02)
