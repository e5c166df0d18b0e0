import numpy as np
import pytest
import torch

from softtriple.metrics.suspects import (
    _ClassModel,
    _Judgement,
    _log_posterior,
    _votes,
    check_labels,
    deal,
    reduced,
    whitened,
)


def clusters(classes: int = 8, size: int = 20, noise: float = 0.4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(size)
    centers = torch.randn(classes, 16, generator=generator)
    return centers[labels] + noise * torch.randn(len(labels), 16, generator=generator), labels


def test_flipped_labels_come_first_with_their_true_class() -> None:
    features, labels = clusters()
    wrong = torch.tensor([3, 47, 90, 151])
    given = labels.clone()
    given[wrong] = (labels[wrong] + 3) % 8
    check = check_labels(features, given)
    assert set(check.odds.argsort(descending=True)[:4].tolist()) == set(wrong.tolist())
    assert torch.equal(check.suggested[wrong], labels[wrong])
    assert (check.wrong[wrong] > 0.5).all()
    assert (check.wrong[given == labels] < 0.5).all()


def test_a_label_does_not_vouch_for_itself() -> None:
    """Changing the label of an item changes what is said about it only through the class that it is compared with."""
    features, labels = clusters(noise=1.5)
    fold = deal(labels, 5, 0)
    row = int((fold == 2).nonzero()[0])
    vectors = whitened(features, features[fold != 2], labels[fold != 2])
    probabilities = []
    for label in (0, 5):
        given = labels.clone()
        given[row] = label
        model = _ClassModel.fit(vectors[fold != 2], given[fold != 2], 8)
        by_class, _ = model.log_probability(vectors[[row]])
        everything = torch.arange(len(given))
        votes = _votes(vectors[[row]], torch.tensor([row]), vectors, everything, given, 8)
        probabilities.append(by_class + votes)
    assert torch.equal(*probabilities)


def test_minor_centers_count_for_little() -> None:
    """A few mislabelled items form a centre of the wrong class, which must not outweigh a whole class."""
    features, labels = clusters(classes=4, size=30, noise=0.3)
    given = labels.clone()
    given[:6] = 1
    check = check_labels(features, given)
    assert (check.suggested[:6] == 0).all()
    assert (check.odds[:6] > check.odds[6:].max()).all()


def test_a_class_of_one_item_is_not_judged() -> None:
    features, labels = clusters()
    given = torch.cat([labels, torch.tensor([8])])
    check = check_labels(torch.cat([features, features[:1]]), given)
    assert check.odds[-1] == -torch.inf
    assert check.wrong[-1] == 0
    assert check.odds[:-1].isfinite().all()


def test_folds_deal_each_class_evenly() -> None:
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 6, 100))
    fold = deal(labels, 5, 1)
    for label in range(6):
        counts = fold[labels == label].bincount(minlength=5)
        assert counts.max() - counts.min() <= 1


def test_reduction_keeps_the_largest_components() -> None:
    features, _ = clusters()
    assert torch.allclose(reduced(features, 16), features - features.mean(dim=0))
    values = torch.linalg.svdvals(features - features.mean(dim=0))
    assert float(reduced(features, 5).square().sum()) == pytest.approx(float(values[:5].square().sum()), rel=1e-4)


def test_block_size_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = clusters(noise=1.0)
    whole = check_labels(features, labels)
    monkeypatch.setattr("softtriple.metrics.suspects.AT_ONCE", 400)
    parts = check_labels(features, labels)
    torch.testing.assert_close(whole.odds, parts.odds, rtol=1e-3, atol=1e-3)


def test_labels_that_are_often_confused_count_more() -> None:
    """Two items with the same evidence: one mislabelled as many others are, one as no other is."""
    classes = torch.tensor([[1, 0]] * 30 + [[0, 1]] * 30 + [[2, 0]] * 20)
    likelihood = torch.zeros(80, 2)
    likelihood[:, 0] = 5.0  # most labels are right
    likelihood[:10] = torch.tensor([0.0, 6.0])  # ten items given as 1 are clearly of class 0
    likelihood[10] = likelihood[60] = torch.tensor([1.0, 2.0])  # two are in doubt, given as 1 and as 2
    found = _Judgement(classes, likelihood, torch.zeros(80))
    uniform, learned = (_log_posterior(found, 3, steps)[:, 1].exp() for steps in (0, 5))
    assert uniform[10] == uniform[60]
    assert learned[10] > 2 * learned[60]
    torch.testing.assert_close(_log_posterior(found, 3, 5).exp().sum(dim=1), torch.ones(80))
