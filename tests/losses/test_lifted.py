"""Lifted structure against loops over pairs, and against pytorch-metric-learning."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning.distances import LpDistance
from tests.reference import lifted_by_the_book as book

from softtriple.losses import LiftedStructureLoss


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 8),
    num_classes=st.integers(1, 4),
    margin=st.sampled_from([0.0, 1.0]),
    spread=st.sampled_from([0.1, 1.0, 5.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient_are_the_papers(
    size: int, num_classes: int, margin: float, spread: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    embeddings = spread * torch.randn(size, 3, generator=random, dtype=torch.float64)
    embeddings.requires_grad_()
    labels = torch.randint(num_classes, (size,), generator=random)
    expected = book.lifted(embeddings, labels.tolist(), margin)
    found = LiftedStructureLoss(num_classes, 3, margin=margin, length=None)(embeddings, labels)
    torch.testing.assert_close(found, expected)
    (by_book,) = torch.autograd.grad(expected + 0 * embeddings.sum(), embeddings)
    torch.testing.assert_close(torch.autograd.grad(found, embeddings)[0], by_book)


def test_pytorch_metric_learning_without_its_normalisation() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(12, 5, generator=random, dtype=torch.float64)
    labels = torch.arange(12) % 4
    theirs = peer.LiftedStructureLoss(neg_margin=1, distance=LpDistance(normalize_embeddings=False))
    torch.testing.assert_close(LiftedStructureLoss(4, 5, length=None)(embeddings, labels), theirs(embeddings, labels))


def test_length_is_the_length_of_all_embeddings() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(8, 5, generator=random), torch.arange(8) % 2
    by_hand = LiftedStructureLoss(2, 5, length=None)(3 * F.normalize(embeddings, dim=-1), labels)
    torch.testing.assert_close(LiftedStructureLoss(2, 5, length=3.0)(embeddings, labels), by_hand)


def test_far_embeddings_do_not_overflow() -> None:
    embeddings = torch.tensor([[1e6, 0.0], [-1e6, 0.0], [0.0, 1e6], [0.0, -1e6]], requires_grad=True)
    value = LiftedStructureLoss(2, 2, length=None)(embeddings, torch.tensor([0, 0, 1, 1]))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()
