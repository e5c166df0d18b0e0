"""Triplet losses against loops over triplets."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import triplets_by_the_book as book
from tests.reference.softtriple_by_the_book import unit

from softtriple.losses import SemiHardTripletLoss
from softtriple.losses.triplets import semi_hard_distances, triplet_loss


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 9),
    num_classes=st.integers(1, 4),
    margin=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_semi_hard_is_the_rule_of_the_reference(size: int, num_classes: int, margin: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(size, 3, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(num_classes, (size,), generator=random)
    expected = book.semi_hard(embeddings, labels.tolist(), margin)
    found = SemiHardTripletLoss(num_classes, 3, margin=margin)(embeddings, labels)
    torch.testing.assert_close(found, expected)
    (by_book,) = torch.autograd.grad(expected + 0 * embeddings.sum(), embeddings)
    torch.testing.assert_close(torch.autograd.grad(found, embeddings)[0], by_book)


def test_the_negative_is_the_next_one_out_or_the_farthest() -> None:
    distance = torch.tensor([[0.0, 0.5, 0.9, 0.1, 0.7]])
    negative = torch.tensor([[False, False, False, True, True]])
    found = semi_hard_distances(distance.expand(5, 5).clone(), negative.expand(5, 5))[0]
    torch.testing.assert_close(found, torch.tensor([0.1, 0.7, 0.7, 0.7, 0.7]))


def test_a_satisfied_margin_costs_nothing() -> None:
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
