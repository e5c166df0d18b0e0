"""HDC against loops over heads and pairs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import hdc_by_the_book as book

from softtriple.losses import HDCLoss


@settings(deadline=None, max_examples=50)
@given(
    size=st.integers(1, 8),
    num_classes=st.integers(1, 4),
    shares=st.sampled_from([[1.0, 0.5, 0.2], [1.0, 1.0, 1.0], [0.6, 0.3, 0.9]]),
    cascade=st.booleans(),
    margin=st.sampled_from([0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient_are_the_papers(
    size: int, num_classes: int, shares: list[float], cascade: bool, margin: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(size, 6, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(num_classes, (size,), generator=random)
    expected = book.hdc(embeddings, labels.tolist(), shares, cascade=cascade, margin=margin, factor=10.0)
    found = HDCLoss(num_classes, 6, shares=shares, cascade=cascade, margin=margin)(embeddings, labels)
    torch.testing.assert_close(found, expected)
    (by_book,) = torch.autograd.grad(expected + 0 * embeddings.sum(), embeddings)
    torch.testing.assert_close(torch.autograd.grad(found, embeddings)[0], by_book)


def test_a_cascade_hides_from_later_heads_what_earlier_ones_find_easy() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(8, 6, generator=random, dtype=torch.float64)
    labels = torch.arange(8) % 4
    cascade, alone = (HDCLoss(4, 6, shares=[0.3, 1.0, 1.0], cascade=flag) for flag in (True, False))
    few = embeddings.clone().requires_grad_()
    cascade(few, labels).backward()
    many = embeddings.clone().requires_grad_()
    alone(many, labels).backward()
    assert few.grad is not None
    assert many.grad is not None
    torch.testing.assert_close(few.grad[:, :2], many.grad[:, :2])  # the first head sees all in both
    assert (few.grad[:, 2:] == 0).all(dim=1).sum() > (many.grad[:, 2:] == 0).all(dim=1).sum()


@pytest.mark.parametrize("cascade", [True, False])
def test_pairs_that_a_head_has_solved_still_reach_those_after_it(cascade: bool) -> None:
    labels, random = torch.arange(30) % 3, torch.Generator().manual_seed(2)
    noise = torch.randn(30, 3, generator=random, dtype=torch.float64)
    solved = 100 * torch.eye(3, dtype=torch.float64)[labels] + noise
    collapsed = torch.ones(30, 6, dtype=torch.float64)
    value = HDCLoss(3, 9, cascade=cascade)(torch.cat([solved, collapsed], dim=1), labels)
    # Heads 2 and 3 keep as hard pairs all their negatives, at distance 0 and a loss of 10 each.
    assert value == pytest.approx(20, abs=0.1)


def test_each_head_is_normalised_by_itself() -> None:
    random = torch.Generator().manual_seed(1)
    embeddings, labels = torch.randn(6, 6, generator=random), torch.arange(6) % 3
    stretched = embeddings * torch.tensor([2.0, 2.0, 0.5, 0.5, 30.0, 30.0])
    torch.testing.assert_close(HDCLoss(3, 6)(stretched, labels), HDCLoss(3, 6)(embeddings, labels))


def test_heads_must_have_equal_width_and_sensible_shares() -> None:
    with pytest.raises(ValueError, match="embedding_size = 64 does not divide into 3 equal heads"):
        HDCLoss(3, 64)
    for shares in ([], [1.0, 0.5], [1.0, 0.5, 0.2, 0.1], [0.5, 0.0, 1.0], [1.5, 1.0, 1.0]):
        with pytest.raises(ValueError, match="must be 3 numbers above 0 and at most 1"):
            HDCLoss(3, 6, shares=shares)


def test_examples_a_class_are_an_option() -> None:
    assert HDCLoss(3, 6, per_class=5).per_class == 5
    with pytest.raises(ValueError, match="per_class = 0"):
        HDCLoss(3, 6, per_class=0)
