"""Proxy losses against plain loops, pytorch-metric-learning, and the SoftTriple paper's third remark."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning import losses as peer
from tests.losses.problems import random_problem, with_centers
from tests.reference import proxies_by_the_book as book
from torch import Tensor, nn

from softtriple.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss, ProxyNCALoss
from softtriple.losses.proxies import proxy_nca


def problem(seed: int, size: int, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    embeddings, labels, centers = random_problem(seed, size, num_classes, 1, 4)
    return embeddings, labels, centers[:, 0]


def with_proxies(loss: ProxyNCALoss | ProxyAnchorLoss | NormalizedSoftmaxLoss, proxies: Tensor) -> nn.Module:
    return with_centers(loss, proxies[:, None])


def assert_same(found: Tensor, loss: nn.Module, expected: Tensor, embeddings: Tensor, proxies: Tensor) -> None:
    torch.testing.assert_close(found, expected)
    by_embeddings, by_centers = torch.autograd.grad(found, (embeddings, loss.centers))
    expected_by_embeddings, expected_by_proxies = torch.autograd.grad(expected, (embeddings, proxies))
    torch.testing.assert_close(by_embeddings, expected_by_embeddings)
    torch.testing.assert_close(by_centers[:, 0], expected_by_proxies)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 6),
    num_classes=st.integers(2, 6),
    scale=st.sampled_from([1.0, 9.0, 32.0]),
    form=st.sampled_from([(False, False), (True, False), (False, True)]),
    seed=st.integers(0, 10_000),
)
def test_proxy_nca(size: int, num_classes: int, scale: float, form: tuple[bool, bool], seed: int) -> None:
    embeddings, labels, proxies = problem(seed, size, num_classes)
    options = dict(zip(("include_own", "bounded"), form, strict=True))
    expected = book.proxy_nca(embeddings, labels.tolist(), proxies, scale, **options)
    loss = with_proxies(ProxyNCALoss(num_classes, 4, scale=scale, **options), proxies)
    assert_same(loss(embeddings, labels), loss, expected, embeddings, proxies)


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 6),
    num_classes=st.integers(1, 6),
    scale=st.sampled_from([1.0, 32.0]),
    margin=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 10_000),
)
def test_proxy_anchor(size: int, num_classes: int, scale: float, margin: float, seed: int) -> None:
    embeddings, labels, proxies = problem(seed, size, num_classes)
    expected = book.proxy_anchor(embeddings, labels.tolist(), proxies, scale, margin)
    loss = with_proxies(ProxyAnchorLoss(num_classes, 4, scale=scale, margin=margin), proxies)
    assert_same(loss(embeddings, labels), loss, expected, embeddings, proxies)


def test_proxy_anchor_of_pytorch_metric_learning() -> None:
    embeddings, labels, proxies = problem(0, 9, 5)
    theirs = peer.ProxyAnchorLoss(5, 4, margin=0.1, alpha=32).double()
    with torch.no_grad():
        theirs.proxies.copy_(proxies)
    ours = with_proxies(ProxyAnchorLoss(5, 4), proxies)
    torch.testing.assert_close(ours(embeddings, labels), theirs(embeddings, labels))


def test_proxy_nca_of_pytorch_metric_learning_keeps_the_own_proxy() -> None:
    embeddings, labels, proxies = problem(0, 9, 5)
    theirs = peer.ProxyNCALoss(5, 4, softmax_scale=9).double()
    with torch.no_grad():
        theirs.proxies.copy_(proxies)
    ours = with_proxies(ProxyNCALoss(5, 4, include_own=True), proxies)
    torch.testing.assert_close(ours(embeddings, labels), theirs(embeddings, labels))


def test_with_the_own_proxy_it_is_the_normalised_softmax() -> None:
    embeddings, labels, proxies = problem(1, 9, 5)
    softmax = with_proxies(NormalizedSoftmaxLoss(5, 4, scale=18.0), proxies)
    ours = with_proxies(ProxyNCALoss(5, 4, scale=9.0, include_own=True), proxies)
    torch.testing.assert_close(ours(embeddings, labels), softmax(embeddings, labels))


def test_remark_3_without_the_own_proxy_the_loss_is_unbounded_and_the_hinge_bounds_it() -> None:
    similarity = torch.tensor([[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    losses = [proxy_nca(similarity[[i]], labels[[i]], scale=10.0).item() for i in range(2)]
    assert losses[0] < -39  # an example at its own proxy, far from the others
    assert losses[1] > 39
    assert proxy_nca(similarity[[0]], labels[[0]], scale=10.0, bounded=True) == 0
    assert proxy_nca(similarity, labels, scale=10.0, bounded=True).item() == pytest.approx(losses[1] / 2)


def test_remark_3_is_a_smooth_maximum_over_triplets_of_example_own_and_other_proxy() -> None:
    embeddings, labels, proxies = problem(2, 6, 5)
    x, w = F.normalize(embeddings, dim=-1), F.normalize(proxies, dim=-1)
    expected = []
    for row, label in zip(x, labels.tolist(), strict=True):
        others = [c for c in range(5) if c != label]
        violation = 6.0 * torch.stack([row @ (w[c] - w[label]) for c in others])
        p = violation.softmax(dim=0)
        expected.append((p * violation).sum() - (p * p.log()).sum())
    torch.testing.assert_close(proxy_nca(x @ w.T, labels, scale=3.0), torch.stack(expected).mean())


def test_predictions_are_the_nearest_proxies() -> None:
    loss = with_proxies(ProxyNCALoss(3, 4), torch.eye(4, dtype=torch.float64)[:3])
    assert loss.predict(torch.eye(4)[[2, 0, 1]] * 5).tolist() == [2, 0, 1]


def test_forms_that_make_no_sense_are_errors() -> None:
    with pytest.raises(ValueError, match="num_classes = 1 leaves no rival proxy"):
        ProxyNCALoss(1, 4)
    with pytest.raises(ValueError, match="bounded=True has no effect with include_own=True"):
        ProxyNCALoss(3, 4, bounded=True, include_own=True)
