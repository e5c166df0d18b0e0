"""Losses over pairs and triplets against plain loops, and against pytorch-metric-learning."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning.distances import LpDistance
from tests.losses.problems import assert_same_with_gradient, random_batch
from tests.reference import pairs_by_the_book as book
from tests.reference.softtriple_by_the_book import unit
from torch import nn

from softtriple.losses import LiftedStructureLoss, MarginLoss, NPairsLoss, SemiHardTripletLoss
from softtriple.losses.pairs import (
    distances,
    draw_triplets,
    margin_loss,
    negative_weights,
    relations,
    semi_hard_distances,
    triplet_loss,
)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 9),
    num_classes=st.integers(1, 4),
    margin=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_semi_hard_is_the_reference(size: int, num_classes: int, margin: float, seed: int) -> None:
    embeddings, labels = random_batch(seed, size, num_classes, 3)
    expected = book.semi_hard(embeddings, labels.tolist(), margin)
    found = SemiHardTripletLoss(num_classes, 3, margin=margin)(embeddings, labels)
    assert_same_with_gradient(found, expected, embeddings)


def test_semi_hard_negative_is_the_next_farther_one_or_the_farthest() -> None:
    distance = torch.tensor([[0.0, 0.5, 0.9, 0.1, 0.7]])
    negative = torch.tensor([[False, False, False, True, True]])
    found = semi_hard_distances(distance.expand(5, 5).clone(), negative.expand(5, 5))[0]
    torch.testing.assert_close(found, torch.tensor([0.1, 0.7, 0.7, 0.7, 0.7]))


def test_semi_hard_satisfied_margin_costs_nothing() -> None:
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    labels = torch.tensor([0, 0, 1, 1])
    assert SemiHardTripletLoss(2, 2, margin=3.9)(embeddings, labels) == 0
    assert SemiHardTripletLoss(2, 2, margin=4.5)(embeddings, labels).item() == pytest.approx(0.5)


def test_triplet_loss_is_equation_2() -> None:
    random = torch.Generator().manual_seed(0)
    anchor, positive, negative = torch.randn(3, 20, 4, generator=random, dtype=torch.float64)
    triplets = [F.normalize(rows, dim=-1) for rows in (anchor, positive, negative)]
    expected = [
        book.triplet(*(unit(row) for row in rows), margin=0.3) for rows in zip(anchor, positive, negative, strict=True)
    ]
    found = triplet_loss(*triplets, margin=0.3)
    torch.testing.assert_close(found, torch.stack(expected))
    assert 0 < (found > 0).sum() < len(found)


def test_triplet_loss_is_zero_exactly_where_equation_1_holds() -> None:
    random = torch.Generator().manual_seed(1)
    x = F.normalize(torch.randn(3, 200, 4, generator=random), dim=-1)
    squared = (x[0] - x[2]).square().sum(-1) - (x[0] - x[1]).square().sum(-1)
    # Between unit vectors squared distances are twice the products, so a margin of 0.1 becomes 0.2.
    assert torch.equal(triplet_loss(x[0], x[1], x[2], margin=0.1) == 0, squared >= 0.2)


def test_lifted_of_pytorch_metric_learning_without_its_normalisation() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(12, 5, generator=random, dtype=torch.float64)
    labels = torch.arange(12) % 4
    theirs = peer.LiftedStructureLoss(neg_margin=1, distance=LpDistance(normalize_embeddings=False))
    torch.testing.assert_close(LiftedStructureLoss(4, 5, length=None)(embeddings, labels), theirs(embeddings, labels))


def test_lifted_length_is_the_length_of_all_embeddings() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(8, 5, generator=random), torch.arange(8) % 2
    by_hand = LiftedStructureLoss(2, 5, length=None)(3 * F.normalize(embeddings, dim=-1), labels)
    torch.testing.assert_close(LiftedStructureLoss(2, 5, length=3.0)(embeddings, labels), by_hand)


def test_lifted_does_not_overflow_for_distant_embeddings() -> None:
    embeddings = torch.tensor([[1e6, 0.0], [-1e6, 0.0], [0.0, 1e6], [0.0, -1e6]], requires_grad=True)
    value = LiftedStructureLoss(2, 2, length=None)(embeddings, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 8),
    num_classes=st.integers(1, 4),
    margin=st.sampled_from([0.0, 1.0]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    seed=st.integers(0, 10_000),
)
def test_lifted_is_the_reference(size: int, num_classes: int, margin: float, spread: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    embeddings = spread * torch.randn(size, 3, generator=random, dtype=torch.float64)
    embeddings.requires_grad_()
    labels = torch.randint(num_classes, (size,), generator=random)
    expected = book.lifted(embeddings, labels.tolist(), margin)
    found = LiftedStructureLoss(num_classes, 3, margin=margin, length=None)(embeddings, labels)
    assert_same_with_gradient(found, expected, embeddings)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 9),
    num_classes=st.integers(1, 4),
    l2=st.sampled_from([0.0, 0.002, 1.0]),
    length=st.sampled_from([None, 1.0, 4.5]),
    seed=st.integers(0, 10_000),
)
def test_n_pairs_is_the_reference_on_the_pairs_of_a_batch(
    size: int, num_classes: int, l2: float, length: float | None, seed: int
) -> None:
    embeddings, labels = random_batch(seed, size, num_classes, 3)
    waiting: dict[int, int] = {}
    pairs = []
    for row, label in enumerate(labels.tolist()):
        if label in waiting:
            pairs.append((waiting.pop(label), row, label))
        else:
            waiting[label] = row
    used = embeddings if length is None else length * F.normalize(embeddings, dim=-1)
    expected = book.n_pairs([used[a] for a, _, _ in pairs], [used[p] for _, p, _ in pairs], [y for *_, y in pairs], 0.0)
    lengths = sum((embeddings[a].square().sum() + embeddings[p].square().sum() for a, p, _ in pairs), start=0.0)
    expected = expected + l2 / 4 * lengths / max(len(pairs), 1)
    found = NPairsLoss(num_classes, 3, l2=l2, length=length)(embeddings, labels)
    assert_same_with_gradient(found, expected, embeddings)


def test_n_pairs_of_pairs_side_by_side() -> None:
    embeddings, _ = random_batch(0, 8, 1, 3)
    labels = torch.tensor([2, 2, 0, 0, 1, 1, 0, 0])
    expected = book.n_pairs(list(embeddings[::2]), list(embeddings[1::2]), labels[::2].tolist(), l2=0.002)
    torch.testing.assert_close(NPairsLoss(3, 3, length=None)(embeddings, labels), expected)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(2, 9),
    num_classes=st.integers(1, 4),
    margin=st.sampled_from([0.0, 0.2]),
    nu=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10_000),
)
def test_margin_is_the_papers_on_the_triplets_it_draws(
    size: int, num_classes: int, margin: float, nu: float, seed: int
) -> None:
    embeddings, labels = random_batch(seed, size, num_classes, 4)
    loss = MarginLoss(num_classes, 4, margin=margin, nu=nu).double()
    with torch.no_grad():
        loss.betas.uniform_(0.6, 1.5, generator=torch.Generator().manual_seed(seed))
    positive, negative = relations(labels)
    distance = distances(F.normalize(embeddings.detach(), dim=-1))
    torch.manual_seed(seed)
    drawn = draw_triplets(positive, negative_weights(distance, negative, 4, 0.5, 1.4))
    triplets = list(zip(*(rows.tolist() for rows in drawn), strict=True))
    expected = book.margin(embeddings, triplets, [loss.betas[labels[a]] for a, _, _ in triplets], margin, nu)

    torch.manual_seed(seed)
    found = loss(embeddings, labels)

    torch.testing.assert_close(found, expected)
    inputs = (embeddings, loss.betas)
    nothing = 0 * embeddings.sum() + 0 * loss.betas.sum()
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(expected + nothing, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("nu", [0.0, 0.3])
def test_margin_of_pytorch_metric_learning_on_the_same_triplets(nu: float) -> None:
    embeddings, labels = random_batch(0, 12, 3, 6)
    theirs = peer.MarginLoss(margin=0.2, nu=nu, beta=1.1, learn_beta=True, num_classes=3).double()
    positive, negative = relations(labels)
    distance = distances(F.normalize(embeddings, dim=-1))
    drawn = draw_triplets(positive, negative.double())
    betas = torch.full((3,), 1.1, dtype=torch.float64)[labels[drawn.anchors]]
    torch.testing.assert_close(margin_loss(distance, drawn, betas, 0.2, nu), theirs(embeddings, labels, tuple(drawn)))


@pytest.mark.parametrize("dim", [2, 3, 16, 512])
def test_weights_of_negatives_are_the_papers(dim: int) -> None:
    random = torch.Generator().manual_seed(dim)
    distance = 0.2 + 1.7 * torch.rand(6, 6, generator=random, dtype=torch.float64)
    distance[0] = 1.7  # none near enough: all negatives alike
    negative = relations(torch.arange(6) % 3)[1]
    weights = negative_weights(distance, negative, dim, 0.5, 1.4)
    expected = [
        book.negative_probabilities(row, mask, dim, 0.5, 1.4)
        for row, mask in zip(distance.tolist(), negative.tolist(), strict=True)
    ]
    torch.testing.assert_close(weights / weights.sum(dim=1, keepdim=True), torch.tensor(expected, dtype=torch.float64))


def test_negatives_are_drawn_as_often_as_their_weights_say() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    positive, negative = relations(labels)
    weights = negative * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    torch.manual_seed(0)
    counts = torch.zeros(6, 6)
    for _ in range(3000):
        drawn = draw_triplets(positive, weights)
        assert torch.equal(torch.stack(drawn[:2], dim=1), positive.nonzero())
        counts.index_put_((drawn.anchors, drawn.negatives), torch.ones(len(drawn.anchors)), accumulate=True)
    shares = counts[:5] / counts[:5].sum(dim=1, keepdim=True)  # the last example has no positive
    torch.testing.assert_close(shares, (weights / weights.sum(dim=1, keepdim=True))[:5], rtol=0, atol=0.03)


def test_drawn_distances_are_spread_evenly() -> None:
    """The point of the weights: on a sphere of many dimensions nearly all distances are near √2."""
    random = torch.Generator().manual_seed(0)
    x = F.normalize(torch.randn(1500, 16, generator=random, dtype=torch.float64), dim=-1)
    distance = distances(x)
    negative = ~torch.eye(1500, dtype=torch.bool)
    weights = negative_weights(distance, negative, 16, nearest=0.8, farthest=1.4)
    torch.manual_seed(0)
    drawn = torch.multinomial(weights, 20, replacement=True)
    found = distance.gather(1, drawn)
    in_range = distance[(distance > 1.0) & (distance < 1.4)]
    assert (in_range > 1.2).double().mean().item() > 0.7
    assert (found[found > 1.0] > 1.2).double().mean().item() == pytest.approx(0.5, abs=0.05)


def test_boundaries_learn_at_their_own_rate() -> None:
    encoder = nn.Linear(3, 4)
    loss = MarginLoss(5, 4, beta_lr=0.03)
    groups = loss.param_groups(encoder, lr=0.001, center_lr=7.0)
    assert [group["lr"] for group in groups] == [0.001, 0.03]
    assert groups[1]["params"] == [loss.betas]
    assert loss.betas.tolist() == pytest.approx([1.2] * 5)


def test_seeded_draws_repeat() -> None:
    embeddings, labels = random_batch(3, 20, 4, 6)
    loss = MarginLoss(4, 6)
    values = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        values.append(loss(embeddings, labels).item())
    assert values[0] == values[1] != values[2]
    assert not math.isnan(values[2])


def test_long_embeddings_are_an_error_only_if_their_length_matters() -> None:
    labels, random = torch.tensor([0, 0, 1, 1]), torch.Generator().manual_seed(0)
    embeddings = 1e12 * torch.randn(4, 3, generator=random)
    any_length = NPairsLoss(2, 3, l2=0.0)
    assert torch.equal(any_length(embeddings, labels), any_length(embeddings / 2**30, labels))
    for loss in (NPairsLoss(2, 3), NPairsLoss(2, 3, length=None, l2=0.0)):
        with pytest.raises(ValueError, match="their products would overflow"):
            loss(embeddings, labels)
