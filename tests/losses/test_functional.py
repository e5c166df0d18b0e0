"""The functions of the paper against plain loops, and the paper's statements about them."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.problems import random_problem
from tests.reference import softtriple_by_the_book as book
from torch import Tensor

from softtriple.losses import center_spread, margin_softmax, soft_similarity
from softtriple.losses.hardtriple import nearest_similarity


@settings(deadline=None, max_examples=40)
@given(
    batch=st.integers(1, 5),
    num_classes=st.integers(1, 6),
    k=st.integers(1, 4),
    gamma=st.sampled_from([0.003, 0.1, 2.0]),
    seed=st.integers(0, 10_000),
)
def test_each_function_is_its_equation(batch: int, num_classes: int, k: int, gamma: float, seed: int) -> None:
    embeddings, labels, centers = random_problem(seed, batch, num_classes, k, 4)
    x, w = F.normalize(embeddings, dim=1), F.normalize(centers, dim=-1)
    similarity = [[book.relaxed([book.dot(row, c) for c in of_class], gamma) for of_class in w] for row in x]
    relaxed = soft_similarity(x, w, gamma)
    torch.testing.assert_close(relaxed, torch.stack([torch.stack(row) for row in similarity]))
    expected = book.softtriple_loss(similarity, labels.tolist(), 20.0, 0.1)
    torch.testing.assert_close(margin_softmax(relaxed, labels, 20.0, 0.1), expected)
    for smoothing in (0.0, 1e-5):
        torch.testing.assert_close(center_spread(w, smoothing), book.regulariser([list(c) for c in w], smoothing))


def test_proposition_1_softmax_is_a_smoothed_maximum_over_triplets() -> None:
    embeddings, labels, centers = random_problem(7, 1, 6, 1, 5)
    scale, label = 3.0, int(labels)
    x, w = F.normalize(embeddings[0], dim=0), F.normalize(centers[:, 0], dim=1)
    triplets = scale * (w - w[label]) @ x

    def smoothed(p: Tensor) -> Tensor:
        return p @ triplets + torch.special.entr(p).sum()

    loss = margin_softmax((w @ x)[None], labels, scale, margin=0.0)
    torch.testing.assert_close(smoothed(triplets.softmax(0)), loss)
    random = torch.distributions.Dirichlet(torch.full((6,), 0.5, dtype=torch.float64)).sample((500,))
    assert all(smoothed(p) <= loss + 1e-12 for p in random)


def test_theorem_1_triplets_of_centers_imply_triplets_of_examples() -> None:
    random = torch.Generator().manual_seed(0)
    checked = 0
    for _ in range(2000):
        own, other = F.normalize(torch.randn(2, 4, generator=random, dtype=torch.float64), dim=1)
        noise = 0.3 * torch.rand((), generator=random, dtype=torch.float64)
        near = torch.stack([own, own, other]) + noise * torch.randn(3, 4, generator=random, dtype=torch.float64)
        x_i, x_j, x_k = F.normalize(near, dim=1)
        epsilon = max((x_i - own).norm(), (x_j - own).norm(), (x_k - other).norm())
        delta = x_i @ own - x_i @ other
        assert x_i @ x_j - x_i @ x_k >= delta - 2 * epsilon - 1e-12
        checked += int(delta > 2 * epsilon)
    assert checked > 100  # the bound also says something: it was positive that often


def test_relaxed_similarity_lies_between_mean_and_maximum() -> None:
    embeddings, _, centers = random_problem(8, 5, 4, 6, 7)
    x, w = F.normalize(embeddings, dim=1), F.normalize(centers, dim=-1)
    soft = soft_similarity(x, w, 0.1)
    assert (soft <= nearest_similarity(x, w) + 1e-12).all()
    assert (soft >= torch.einsum("bd,ckd->bck", x, w).mean(-1) - 1e-12).all()
