"""HTL against loops over classes, levels and triplets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.problems import assert_same_with_gradient, random_batch
from tests.reference import htl_by_the_book as book
from torch import Tensor

from softtriple.losses import HTLLoss


def training_set(seed: int, num_classes: int, per_class: int) -> tuple[Tensor, Tensor]:
    """Classes of different tightness at random places, some of them near each other."""
    random = torch.Generator().manual_seed(seed)
    centers = torch.randn(num_classes, 3, generator=random, dtype=torch.float64)
    centers[1::2] = centers[: len(centers[1::2])] + 0.3 * centers[1::2]
    spread = 0.6 * torch.rand(num_classes, 1, generator=random, dtype=torch.float64)
    labels = torch.arange(num_classes * per_class) % num_classes
    noise = torch.randn(len(labels), 3, generator=random, dtype=torch.float64)
    return centers[labels] + spread[labels] * noise, labels


@settings(deadline=None, max_examples=25)
@given(
    num_classes=st.integers(2, 6),
    levels=st.sampled_from([1, 4, 16]),
    squared=st.booleans(),
    size=st.integers(1, 8),
    seed=st.integers(0, 10_000),
)
def test_tree_margins_and_loss_are_the_papers(
    num_classes: int, levels: int, squared: bool, size: int, seed: int
) -> None:
    loss = HTLLoss(num_classes, 3, levels=levels, squared=squared).double()
    items, item_labels = training_set(seed, num_classes, per_class=3)
    loss.start_epoch(items, item_labels)

    distances = book.class_distances(items, item_labels.tolist(), num_classes)
    bounds = book.thresholds(distances, levels)
    expected_levels = [
        [book.merge_level(distances, bounds, p, q) for q in range(num_classes)] for p in range(num_classes)
    ]
    assert loss.class_levels.tolist() == expected_levels
    torch.testing.assert_close(loss.thresholds, torch.tensor(bounds, dtype=torch.float64))
    spreads = torch.tensor(distances, dtype=torch.float64).diagonal()
    torch.testing.assert_close(loss.spreads, spreads)

    embeddings, labels = random_batch(seed, size, num_classes, 3)
    margins = [[0.1 + bounds[level] - distances[p][p] for level in row] for p, row in enumerate(expected_levels)]
    expected = book.htl(embeddings, labels.tolist(), margins, squared=squared)
    found = loss(embeddings, labels)
    assert_same_with_gradient(found, expected, embeddings)


def test_without_a_tree_the_margin_is_beta() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(9, 3, generator=random, dtype=torch.float64), torch.arange(9) % 3
    expected = book.htl(embeddings, labels.tolist(), [[0.25] * 3] * 3, squared=True)
    torch.testing.assert_close(HTLLoss(3, 3, beta=0.25)(embeddings, labels), expected)


def test_levels_are_an_ultrametric() -> None:
    loss = HTLLoss(30, 3)
    loss.start_epoch(*training_set(0, 30, per_class=4))
    levels = loss.class_levels.int()
    assert torch.equal(levels, levels.T)
    assert (levels.diagonal() == 0).all()
    assert set(levels[~torch.eye(30, dtype=torch.bool)].tolist()) <= set(range(1, 17))
    through = torch.maximum(levels[:, :, None], levels[None, :, :])  # p to q by way of r
    assert (levels[:, None, :] <= through).all()


def test_a_new_epoch_replaces_the_tree() -> None:
    loss, (items, labels) = HTLLoss(4, 3), training_set(1, 4, per_class=3)
    loss.start_epoch(items, labels)
    before = loss.thresholds.clone()
    loss.start_epoch(items * torch.tensor([1.0, 3.0, 9.0]), labels)
    assert not torch.equal(loss.thresholds, before)
    assert loss.state_dict() == {}


def test_a_class_comes_with_its_nearest_classes() -> None:
    loss, (items, labels) = HTLLoss(8, 3, neighborhood=3), training_set(2, 8, per_class=5)
    loss.start_epoch(items, labels)
    distances = book.class_distances(items, labels.tolist(), 8)
    rows = loss.choose_classes(torch.tensor([5, 0]))
    assert rows.shape == (2, 3)
    for anchor, row in zip([5, 0], rows.tolist(), strict=True):
        others = sorted((q for q in range(8) if q != anchor), key=lambda q, p=anchor: distances[p][q])
        assert row == [anchor, *others[:2]]
    assert HTLLoss(8, 3, per_class=7).per_class == 7


def test_a_neighborhood_has_at_most_all_classes() -> None:
    loss = HTLLoss(3, 3, neighborhood=10)
    loss.start_epoch(*training_set(3, 3, per_class=2))
    assert sorted(loss.choose_classes(torch.tensor([1]))[0].tolist()) == [0, 1, 2]


def test_classes_of_one_example_take_the_mean_spread() -> None:
    items, labels = training_set(4, 4, per_class=3)
    kept = (labels != 2) | (torch.arange(len(labels)) < 4)
    loss = HTLLoss(4, 3).double()
    loss.start_epoch(items[kept], labels[kept])
    torch.testing.assert_close(loss.spreads[2], loss.spreads[[0, 1, 3]].mean())
    loss.start_epoch(items[:4], labels[:4])
    assert loss.spreads.tolist() == [0.0] * 4


def test_what_is_missing_is_named() -> None:
    loss, (items, labels) = HTLLoss(5, 3), training_set(5, 4, per_class=3)
    with pytest.raises(ValueError, match="start_epoch"):
        loss.choose_classes(torch.tensor([0]))
    with pytest.raises(ValueError, match="class 4 has no embeddings"):
        loss.start_epoch(items, labels)
    with pytest.raises(ValueError, match="levels = 300 must be at most 255"):
        HTLLoss(5, 3, levels=300)
