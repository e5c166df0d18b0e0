"""HardTriple against plain loops, and as the limit of SoftTriple."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.problems import random_problem, with_centers
from tests.reference import softtriple_by_the_book as book

from softtriple import HardTripleLoss, SoftTripleLoss
from softtriple.losses.hardtriple import span_similarity


@settings(deadline=None, max_examples=30)
@given(
    batch=st.integers(1, 6),
    num_classes=st.integers(1, 5),
    k=st.integers(1, 4),
    margin=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 10_000),
)
def test_hard_triple_and_its_gradient_are_the_papers(
    batch: int, num_classes: int, k: int, margin: float, seed: int
) -> None:
    embeddings, labels, centers = random_problem(seed, batch, num_classes, k, 5)
    hard = with_centers(HardTripleLoss(num_classes, 5, k, margin=margin), centers)
    expected = book.hard_triple(embeddings, labels, centers, scale=20.0, margin=margin)
    found = hard(embeddings, labels)
    torch.testing.assert_close(found, expected)
    by_book = torch.autograd.grad(expected, (embeddings, centers))
    torch.testing.assert_close(torch.autograd.grad(found, (embeddings, hard.centers)), by_book)


def test_gamma_to_zero_is_hard_triple() -> None:
    embeddings, labels, centers = random_problem(1, 6, 5, 4, 8)
    hard = with_centers(HardTripleLoss(5, 8, 4, margin=0.05), centers)
    soft = SoftTripleLoss(5, 8, 4, gamma=1e-5, margin=0.05, tau=0.0).double()
    soft.load_state_dict(hard.state_dict())
    torch.testing.assert_close(soft(embeddings, labels), hard(embeddings, labels))
    torch.testing.assert_close(soft.similarities(embeddings), hard.similarities(embeddings))


def test_span_similarity_is_the_distance_by_least_squares() -> None:
    embeddings, _, centers = random_problem(9, 5, 4, 3, 7)
    x, w = F.normalize(embeddings, dim=1), F.normalize(centers, dim=-1)
    found = span_similarity(x, w)
    for i in range(5):
        for c in range(4):
            z = torch.linalg.lstsq(w[c].T, x[i]).solution
            assert found[i, c].item() == pytest.approx(-(w[c].T @ z - x[i]).norm().item(), abs=1e-3)
