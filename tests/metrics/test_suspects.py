import numpy as np
import pytest
import torch

from softtriple.metrics.suspects import (
    TEMPERATURES,
    _ClassModel,
    _Judgement,
    _log_posterior,
    _shares,
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


@pytest.mark.parametrize(("classes", "size"), [(2, 1), (4, 3), (30, 1)])
def test_few_items_without_structure_are_judged_with_care(classes: int, size: int) -> None:
    features = torch.randn(classes * size, 8, generator=torch.Generator().manual_seed(0))
    check = check_labels(features, torch.arange(classes).repeat_interleave(size))
    assert not check.odds.isnan().any()
    assert check.wrong.mean() < 0.5


def test_folds_deal_each_class_evenly() -> None:
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 6, 100))
    fold = deal(labels, 5, 1)
    for label in range(6):
        counts = fold[labels == label].bincount(minlength=5)
        assert counts.max() - counts.min() <= 1


def test_reduction_keeps_the_largest_components() -> None:
    features, _ = clusters()
    assert torch.allclose(reduced(features, 16), features - features.mean(dim=0), atol=1e-5)
    values = torch.linalg.svdvals(features - features.mean(dim=0))
    assert float(reduced(features, 5).square().sum()) == pytest.approx(float(values[:5].square().sum()), rel=1e-4)


def test_one_row_of_a_wrong_scale_does_not_decide_the_metric() -> None:
    features, labels = clusters(noise=1.0)
    scaled = features.clone()
    scaled[7] *= 1000
    expected, check = check_labels(features, labels), check_labels(scaled, labels)
    others = torch.arange(len(labels)) != 7
    assert float((expected.closeness - check.closeness)[others].abs().median()) < 0.05


def test_block_size_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = clusters(noise=1.0)
    whole = check_labels(features, labels)
    monkeypatch.setattr("softtriple.metrics.suspects.AT_ONCE", 400)
    parts = check_labels(features, labels)
    torch.testing.assert_close(whole.odds, parts.odds, rtol=1e-3, atol=1e-3)


def similar_pairs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Classes 0 and 1, 2 and 3, and so on overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(20).repeat_interleave(30)
    centers = torch.randn(10, 16, generator=generator).repeat_interleave(2, dim=0)
    centers = centers + 0.3 * torch.randn(20, 16, generator=generator)
    return centers[labels] + 0.45 * torch.randn(len(labels), 16, generator=generator), labels


@pytest.mark.parametrize("confused", [False, True])
def test_probabilities_count_the_wrong_labels(confused: bool) -> None:
    """Labels flipped at random, or to the similar class: their number follows from the probabilities."""
    features, labels = similar_pairs()
    wrong = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))[:60]
    given = labels.clone()
    given[wrong] = labels[wrong] ^ 1 if confused else (labels[wrong] + 7) % 20
    check = check_labels(features, given)
    assert float(check.wrong.sum()) == pytest.approx(60, rel=0.35)
    doubted = (check.wrong > 0.5).nonzero().flatten()
    assert len(doubted) > 15
    assert torch.isin(doubted, wrong).float().mean() > 0.7


def test_right_labels_of_similar_classes_are_not_doubted() -> None:
    features, labels = similar_pairs()
    check = check_labels(features, labels)
    assert (check.evidence > 0).sum() > 20, "the classes overlap"
    assert (check.wrong > 0.5).sum() <= 3


def test_confusions_are_told_from_random_flips() -> None:
    """The same evidence for the same class weighs more if labels of these two classes are often confused."""
    classes = torch.tensor([[0, 1, 2], [1, 0, 2], [2, 3, 0], [3, 2, 0]]).repeat_interleave(50, dim=0)
    scores = torch.tensor([0.0, -8.0, -12.0]).repeat(200, 1)  # most labels are right
    scores[::10, :2] = torch.tensor([-0.7, -0.7])  # some items are between their class and the similar one
    doubt = {}
    for kind, other in (("confused", 1), ("random", 2)):
        some = scores.clone()
        some[5::10, 0], some[5::10, other] = -8.0, 0.0  # of each class, five are clearly of another
        normalizers = torch.stack([(t * some).logsumexp(dim=1) for t in TEMPERATURES])
        judgement = _Judgement(classes, some, normalizers, torch.zeros(200))
        posterior = _log_posterior(judgement, torch.ones(200, dtype=torch.bool), 4)
        torch.testing.assert_close(posterior.exp().sum(dim=1), torch.ones(200, dtype=torch.float64))
        doubt[kind] = float(posterior[0, 1].exp())
    assert doubt["confused"] > 1.5 * doubt["random"]


def test_shares_of_sources_are_estimated() -> None:
    likelihood = torch.zeros(3, 1000, dtype=torch.float64)
    likelihood[0, :700] = likelihood[1, 700:] = 1.0
    assert _shares(likelihood).tolist() == pytest.approx([0.7, 0.3, 0.0], abs=0.01)
