"""SoftTriple against the paper written as loops, and against the laws it obeys."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import softtriple_by_the_book as book
from torch import Tensor

from softtriple import HardTripleLoss, NormalizedSoftmaxLoss, SoftmaxLoss, SoftTripleLoss
from softtriple.losses.hardtriple import nearest_similarity, span_similarity
from softtriple.losses.softtriple import center_spread, margin_softmax, soft_similarity, softtriple_objective
from softtriple.losses.tiled import Settings


def problem(seed: int, batch: int, num_classes: int, k: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(batch, dim, generator=random, dtype=torch.float64, requires_grad=True)
    centers = torch.randn(num_classes, k, dim, generator=random, dtype=torch.float64, requires_grad=True)
    return embeddings, torch.randint(num_classes, (batch,), generator=random), centers


def loss_with(centers: Tensor, **options: float) -> SoftTripleLoss:
    num_classes, k, dim = centers.shape
    loss = SoftTripleLoss(num_classes, dim, k, **options).to(centers.dtype)
    with torch.no_grad():
        loss.centers.copy_(centers)
    return loss


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 6),
    num_classes=st.integers(1, 8),
    k=st.integers(1, 6),
    dim=st.integers(2, 7),
    scale=st.sampled_from([1.0, 20.0, 150.0]),
    gamma=st.sampled_from([0.003, 0.1, 2.0]),
    margin=st.sampled_from([0.0, 0.01, 0.4]),
    tau=st.sampled_from([0.0, 0.2, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradients_are_the_papers(
    batch: int,
    num_classes: int,
    k: int,
    dim: int,
    scale: float,
    gamma: float,
    margin: float,
    tau: float,
    seed: int,
) -> None:
    embeddings, labels, centers = problem(seed, batch, num_classes, k, dim)
    options = {"scale": scale, "gamma": gamma, "margin": margin, "tau": tau}
    expected = book.objective(embeddings, labels, centers, **options)
    by_embeddings, by_centers = torch.autograd.grad(expected, (embeddings, centers))

    readable = softtriple_objective(embeddings, labels, centers, Settings(**options))
    readable_gradients = torch.autograd.grad(readable, (embeddings, centers))
    loss = loss_with(centers, **options)
    fast = loss(embeddings, labels)
    fast_gradients = torch.autograd.grad(fast, (embeddings, loss.centers))

    for value, (found_by_embeddings, found_by_centers) in (
        (readable, readable_gradients),
        (fast, fast_gradients),
    ):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(found_by_embeddings, by_embeddings, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(found_by_centers, by_centers, rtol=1e-8, atol=1e-9)


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
    embeddings, labels, centers = problem(seed, batch, num_classes, k, 5)
    hard = HardTripleLoss(num_classes, 5, k, margin=margin).double()
    with torch.no_grad():
        hard.centers.copy_(centers)
    expected = book.hard_triple(embeddings, labels, centers, scale=20.0, margin=margin)
    found = hard(embeddings, labels)
    torch.testing.assert_close(found, expected)
    by_book = torch.autograd.grad(expected, (embeddings, centers))
    torch.testing.assert_close(torch.autograd.grad(found, (embeddings, hard.centers)), by_book)


def test_gamma_to_zero_is_hard_triple() -> None:
    embeddings, labels, centers = problem(1, 6, 5, 4, 8)
    hard = HardTripleLoss(5, 8, 4, margin=0.05).double()
    with torch.no_grad():
        hard.centers.copy_(centers)
    soft = loss_with(centers, gamma=1e-5, margin=0.05, tau=0.0)
    torch.testing.assert_close(soft(embeddings, labels), hard(embeddings, labels))
    torch.testing.assert_close(soft.similarities(embeddings), hard.similarities(embeddings))


def test_one_center_without_margin_is_the_normalised_softmax() -> None:
    embeddings, labels, centers = problem(2, 6, 5, 1, 8)
    logits = 20.0 * F.normalize(embeddings, dim=1) @ F.normalize(centers[:, 0], dim=1).T
    softmax = NormalizedSoftmaxLoss(5, 8).double()
    with torch.no_grad():
        softmax.centers.copy_(centers)
    torch.testing.assert_close(softmax(embeddings, labels), F.cross_entropy(logits, labels))
    same = loss_with(centers, margin=0.0, tau=0.0)(embeddings, labels)
    torch.testing.assert_close(same, F.cross_entropy(logits, labels))


def test_plain_softmax_is_cross_entropy_of_products() -> None:
    embeddings, labels, centers = problem(3, 6, 5, 1, 8)
    plain = SoftmaxLoss(5, 8).double()
    with torch.no_grad():
        plain.centers.copy_(centers)
    torch.testing.assert_close(plain(embeddings, labels), F.cross_entropy(embeddings @ centers[:, 0].T, labels))
    torch.testing.assert_close(plain.predict(embeddings), (embeddings @ centers[:, 0].T).argmax(1))


@pytest.mark.parametrize("at_once", [1, 100, 1000])
def test_predictions_by_runs_of_classes_are_those_of_all(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    embeddings, _, centers = problem(3, 6, 50, 3, 8)
    loss = loss_with(centers)
    expected = loss.similarities(embeddings).argmax(dim=1)
    sizes: list[int] = []

    def watched(embeddings: Tensor, run: Tensor, gamma: float) -> Tensor:
        sizes.append(len(run))
        return soft_similarity(embeddings, run, gamma)

    monkeypatch.setattr("softtriple.losses.softtriple.soft_similarity", watched)
    monkeypatch.setattr("softtriple.losses.softtriple.AT_ONCE", at_once)
    assert torch.equal(loss.predict(embeddings), expected)
    assert sum(sizes) == 50
    assert max(sizes) == {1: 1, 100: 5, 1000: 50}[at_once]


def test_of_equally_similar_classes_the_first_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softtriple.losses.softtriple.AT_ONCE", 1)
    loss = loss_with(torch.eye(3)[[1, 0, 1, 0, 2], None])
    assert loss.predict(torch.eye(3)).tolist() == [1, 0, 4]


def test_order_of_centers_and_of_classes_does_not_matter() -> None:
    embeddings, labels, centers = problem(4, 7, 6, 4, 5)
    value = loss_with(centers)(embeddings, labels)
    torch.testing.assert_close(loss_with(centers[:, [2, 0, 3, 1]])(embeddings, labels), value)
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    torch.testing.assert_close(loss_with(centers[order])(embeddings, order.argsort()[labels]), value)


def test_lengths_do_not_matter() -> None:
    embeddings, labels, centers = problem(5, 4, 3, 3, 5)
    value = loss_with(centers)(embeddings, labels)
    torch.testing.assert_close(loss_with(centers * 7)(embeddings * 0.01, labels), value)


def test_coincident_centers_count_as_one_center() -> None:
    embeddings, labels, centers = problem(6, 5, 4, 1, 6)
    value = loss_with(centers, tau=0.0)(embeddings, labels)
    torch.testing.assert_close(loss_with(centers.repeat(1, 3, 1), tau=0.7)(embeddings, labels), value)


def test_proposition_1_softmax_is_a_smoothed_maximum_over_triplets() -> None:
    embeddings, labels, centers = problem(7, 1, 6, 1, 5)
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
    embeddings, _, centers = problem(8, 5, 4, 6, 7)
    x, w = F.normalize(embeddings, dim=1), F.normalize(centers, dim=-1)
    soft = soft_similarity(x, w, 0.1)
    assert (soft <= nearest_similarity(x, w) + 1e-12).all()
    assert (soft >= torch.einsum("bd,ckd->bck", x, w).mean(-1) - 1e-12).all()


def test_span_similarity_is_the_distance_by_least_squares() -> None:
    embeddings, _, centers = problem(9, 5, 4, 3, 7)
    x, w = F.normalize(embeddings, dim=1), F.normalize(centers, dim=-1)
    found = span_similarity(x, w)
    for i in range(5):
        for c in range(4):
            z = torch.linalg.lstsq(w[c].T, x[i]).solution
            assert found[i, c].item() == pytest.approx(-(w[c].T @ z - x[i]).norm().item(), abs=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [0.0, 1e-7, 1e-5, math.pi], ids=str)
@pytest.mark.parametrize("form", ["readable", "fast"])
def test_regulariser_is_finite_where_centers_meet(dtype: torch.dtype, gap: float, form: str) -> None:
    first = torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
    second = torch.tensor([math.cos(gap), math.sin(gap), 0.0], dtype=dtype)
    third = torch.tensor([0.0, 0.6, 0.8], dtype=dtype)
    loss = loss_with(torch.stack([first, second, third])[None], tau=1.0)
    # With one class the cross-entropy is zero, and the regulariser stands alone.
    fast, readable = loss(third[None], torch.tensor([0])), center_spread(F.normalize(loss.centers, dim=-1))
    value = fast if form == "fast" else readable
    (gradient,) = torch.autograd.grad(value, loss.centers)
    assert value.isfinite()
    assert gradient.isfinite().all()
    # A pair pulls with a force of at most one, whatever its distance: no blow-up close to merging.
    assert gradient.abs().max() < 0.5
    expected = (2 * math.sin(gap / 2) + math.dist(first, third) + math.dist(second, third)) / 6
    assert value.item() == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("epsilon", [1e-2, 1e-8])
@pytest.mark.parametrize("tau", [0.2, 1.0])
def test_training_on_one_cluster_a_class_merges_the_centers(tau: float, epsilon: float) -> None:
    """The run that turns a peer's regulariser into NaN at step 401."""
    torch.manual_seed(0)
    modes = F.normalize(torch.randn(20, 64), dim=1)
    loss = SoftTripleLoss(20, 64, 10, tau=tau)
    optimizer = torch.optim.Adam(loss.param_groups(center_lr=0.01), eps=epsilon, weight_decay=1e-4)
    for _ in range(2000):
        labels = torch.randint(20, (32,))
        value = loss(modes[labels] + 0.04 * torch.randn(32, 64), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        assert value.isfinite()
    assert loss.centers.isfinite().all()
    assert loss.distinct_centers().float().mean() < 2
