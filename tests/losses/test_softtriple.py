"""SoftTriple against plain loops over the paper's sums, and against the laws it obeys."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.losses.problems import random_problem, with_centers
from tests.reference import softtriple_by_the_book as book
from torch import Tensor

from softtriple import SoftTripleLoss
from softtriple.errors import UserError
from softtriple.losses import Settings, center_spread, sample_classes, softtriple_objective
from softtriple.losses.softtriple import draw_pairs


def loss_with(centers: Tensor, **options: float) -> SoftTripleLoss:
    num_classes, k, dim = centers.shape
    return with_centers(SoftTripleLoss(num_classes, dim, k, **options), centers)


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 6),
    num_classes=st.integers(1, 8),
    k=st.integers(1, 6),
    dim=st.integers(2, 7),
    scale=st.sampled_from([1.0, 20.0, 150.0]),
    gamma=st.sampled_from([0.003, 0.1, 2.0]),
    margin=st.sampled_from([0.0, 0.01, 0.4]),
    tau=st.sampled_from([-0.3, 0.0, 0.2, 1.0]),
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
    embeddings, labels, centers = random_problem(seed, batch, num_classes, k, dim)
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


def test_order_of_centers_and_of_classes_does_not_matter() -> None:
    embeddings, labels, centers = random_problem(4, 7, 6, 4, 5)
    value = loss_with(centers)(embeddings, labels)
    torch.testing.assert_close(loss_with(centers[:, [2, 0, 3, 1]])(embeddings, labels), value)
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    torch.testing.assert_close(loss_with(centers[order])(embeddings, order.argsort()[labels]), value)


def test_lengths_do_not_matter() -> None:
    embeddings, labels, centers = random_problem(5, 4, 3, 3, 5)
    value = loss_with(centers)(embeddings, labels)
    torch.testing.assert_close(loss_with(centers * 7)(embeddings * 0.01, labels), value)


def test_coincident_centers_count_as_one_center() -> None:
    embeddings, labels, centers = random_problem(6, 5, 4, 1, 6)
    value = loss_with(centers, tau=0.0)(embeddings, labels)
    torch.testing.assert_close(loss_with(centers.repeat(1, 3, 1), tau=0.7)(embeddings, labels), value)


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
@pytest.mark.usefixtures("unchecked")  # checking the annotations in every step takes longer than the step
def test_training_on_one_cluster_a_class_merges_the_centers(tau: float, epsilon: float) -> None:
    """The run that turns a peer's regulariser into NaN at step 401."""
    torch.manual_seed(0)
    modes = F.normalize(torch.randn(20, 64), dim=1)
    loss = SoftTripleLoss(20, 64, 10, tau=tau)
    optimizer = torch.optim.Adam(loss.param_groups(center_lr=0.01), eps=epsilon, weight_decay=1e-4)
    for _ in range(1000):
        labels = torch.randint(20, (32,))
        value = loss(modes[labels] + 0.04 * torch.randn(32, 64), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        assert value.isfinite()
    assert loss.centers.isfinite().all()
    assert loss.distinct_centers().float().mean() < 2


def test_below_zero_tau_pushes_centers_apart() -> None:
    embeddings, labels, centers = random_problem(0, 12, 3, 4, 6)
    spreads = {}
    for tau in (-5.0, 0.0, 5.0):
        loss = loss_with(centers, tau=tau)
        optimizer = torch.optim.Adam([loss.centers], lr=0.05)
        for _ in range(20):
            optimizer.zero_grad()
            loss(embeddings, labels).backward()
            optimizer.step()
        spreads[tau] = center_spread(F.normalize(loss.centers.detach(), dim=-1))
    assert spreads[-5.0] > spreads[0.0] > spreads[5.0]


@pytest.mark.parametrize("tau", [0.0, 0.2])
@pytest.mark.parametrize("prefixes", [(), (3,)])
def test_synthesis_is_that_of_plain_loops(tau: float, prefixes: tuple[int, ...]) -> None:
    embeddings, labels, centers = random_problem(1, 8, 4, 3, 5)
    options = {"scale": 20.0, "gamma": 0.1, "margin": 0.01, "tau": tau}
    loss = with_centers(SoftTripleLoss(4, 5, 3, synthesis=0.75, prefixes=prefixes, **options), centers)
    torch.manual_seed(7)
    value = loss(embeddings, labels)
    gradients = torch.autograd.grad(value, (embeddings, loss.centers))
    torch.manual_seed(7)  # the same draws again
    pairs = draw_pairs(labels, 0.75)
    shares = torch.distributions.Beta(0.4, 0.4).sample((pairs.shape[1],)).double()
    unit, unit_centers = F.normalize(embeddings, dim=-1), F.normalize(centers, dim=-1)
    expected = sum(
        book.synthesis(unit[:, :d], labels, unit_centers[..., :d], pairs.T.tolist(), shares, **options)
        for d in (*prefixes, 5)
    )
    torch.testing.assert_close(value, expected)
    for ours, by_the_book in zip(gradients, torch.autograd.grad(expected, (embeddings, centers)), strict=True):
        torch.testing.assert_close(ours, by_the_book)


def test_synthesis_mixes_different_classes_in_training_only() -> None:
    labels = torch.tensor([0, 0, 0, 1, 2, 2, 1, 0])
    for seed in range(20):
        torch.manual_seed(seed)
        one, other = draw_pairs(labels, 0.5)
        assert len(one) <= 4
        assert (labels[one] != labels[other]).all()
    embeddings, labels, centers = random_problem(2, 24, 3, 2, 4)
    torch.manual_seed(0)
    loss = with_centers(SoftTripleLoss(3, 4, 2, synthesis=1.0), centers)
    plain = loss_with(centers)(embeddings, labels)
    torch.testing.assert_close(loss.eval()(embeddings, labels), plain)
    assert loss.train()(embeddings, labels) != plain


def test_synthesis_needs_all_centers_in_one_process() -> None:
    with pytest.raises(UserError, match=r"synthesis = 0\.5"):
        sample_classes(SoftTripleLoss(10, 4, 2, synthesis=0.5), 0.5, seed=0)


@pytest.mark.parametrize("tau", [0.0, 0.2])
def test_prefixes_add_the_loss_of_each_beginning(tau: float) -> None:
    """By hand: the objective on slices of embeddings and centres, each slice normalised by itself."""
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(5, 3, 8, generator=random, dtype=torch.float64)
    embeddings = torch.randn(6, 8, generator=random, dtype=torch.float64)
    labels = torch.randint(5, (6,), generator=random)
    loss = SoftTripleLoss(5, 8, 3, tau=tau, prefixes=[2, 5])
    loss.centers = torch.nn.Parameter(centers.clone())
    by_hand = [tensor.clone().requires_grad_() for tensor in (embeddings, centers)]
    x, w = by_hand
    expected = sum(softtriple_objective(x[:, :d], labels, w[..., :d], loss.settings) for d in (2, 5, 8))
    expected.backward()
    ours = embeddings.clone().requires_grad_()
    for _ in range(2):  # the second time in recycled memory
        ours.grad = loss.centers.grad = None
        value = loss(ours, labels)
        value.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(ours.grad, x.grad)
        torch.testing.assert_close(loss.centers.grad, w.grad)


def test_a_prefix_is_trained_as_a_loss_of_its_width_would_be() -> None:
    """What the first numbers get from the other widths aside, their own loss is that of the shorter embedding."""
    whole = SoftTripleLoss(4, 6, 2, prefixes=[3])
    plain, short = SoftTripleLoss(4, 6, 2), SoftTripleLoss(4, 3, 2)
    with torch.no_grad():
        plain.centers.copy_(whole.centers)
        short.centers.copy_(whole.centers[..., :3])
    x, labels = torch.randn(5, 6), torch.randint(4, (5,))
    torch.testing.assert_close(whole(x, labels), plain(x, labels) + short(x[:, :3], labels))
    assert whole.working_bytes(5) > plain.working_bytes(5)


@pytest.mark.parametrize("prefixes", [[3, 2], [2, 2], [8], [9], [0], [-1], [1.5]])
def test_prefixes_must_grow_below_the_width(prefixes: list[int], unchecked: None) -> None:
    with pytest.raises(ValueError, match="prefixes"):
        SoftTripleLoss(4, 8, prefixes=prefixes)
