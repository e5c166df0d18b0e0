"""Class sampling: which classes take part, and what their gradient is."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from softtriple import SoftTripleLoss
from softtriple.losses import NormalizedSoftmaxLoss, ProxyNCALoss, SampledSoftTripleLoss, sample_classes
from softtriple.losses.sampled import draw_rows

NUM_CLASSES, DIM = 40, 6


def loss_of(num_classes: int = NUM_CLASSES) -> SoftTripleLoss:
    torch.manual_seed(0)
    return SoftTripleLoss(num_classes, DIM, 2, tau=0.3).double()


def sampled(loss: SoftTripleLoss, rate: float, seed: int = 0) -> SampledSoftTripleLoss:
    found = sample_classes(loss, rate, seed)
    assert isinstance(found, SampledSoftTripleLoss)
    return found


def batch(size: int = 5, num_classes: int = NUM_CLASSES) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(size)
    embeddings = torch.randn(size, DIM, generator=random, dtype=torch.float64, requires_grad=True)
    return embeddings, torch.randint(num_classes, (size,), generator=random)


@given(count=st.integers(1, 60), rate=st.floats(0.01, 0.99), positives=st.integers(0, 60), seed=st.integers(0, 1000))
def test_a_draw_has_all_positives_and_the_share_asked_for(count: int, rate: float, positives: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    own = random.integers(count, size=positives)
    rows = draw_rows(count, rate, own, random)
    assert set(own) <= set(rows)
    assert len(rows) == max(math.ceil(rate * count), len(set(own)))
    assert (np.diff(rows) > 0).all()


def test_negatives_are_drawn_evenly() -> None:
    """Each of the 8 other classes should be in 3 of 8 draws: five standard deviations are allowed."""
    draws = 2000
    counts = np.zeros(10)
    for seed in range(draws):
        counts[draw_rows(10, 0.5, np.array([3, 7]), np.random.default_rng(seed))] += 1
    assert counts[[3, 7]].tolist() == [draws, draws]
    others = np.delete(counts, [3, 7])
    np.testing.assert_allclose(others, draws * 3 / 8, atol=5 * math.sqrt(draws * 3 / 8 * 5 / 8))


def test_rate_one_is_the_loss_itself() -> None:
    loss = loss_of()
    assert sample_classes(loss, 1.0) is loss


def test_all_classes_drawn_is_the_full_loss() -> None:
    loss = loss_of()
    embeddings, labels = batch()
    expected = torch.autograd.grad(loss(embeddings, labels), (embeddings, loss.centers))
    found = sampled(loss, 0.999)(embeddings, labels)
    assert torch.equal(found, loss(embeddings, labels))
    found.backward()
    assert loss.centers.grad is not None
    assert torch.equal(embeddings.grad, expected[0])
    assert torch.equal(loss.centers.grad.to_dense(), expected[1])


def test_it_is_the_loss_over_the_sampled_classes() -> None:
    loss = loss_of()
    embeddings, labels = batch()
    part = sampled(loss, 0.3)
    part(embeddings, labels).backward()
    assert loss.centers.grad is not None
    rows, values = loss.centers.grad._indices()[0], loss.centers.grad._values()
    assert len(rows) == 12
    smaller = loss_of(12)
    with torch.no_grad():
        smaller.centers.copy_(loss.centers[rows])
    by_embeddings = embeddings.grad
    embeddings.grad = None
    value = smaller(embeddings, torch.searchsorted(rows, labels))
    value.backward()
    torch.testing.assert_close(sampled(loss, 0.3)(embeddings, labels), value)
    torch.testing.assert_close(values, smaller.centers.grad)
    torch.testing.assert_close(by_embeddings, embeddings.grad)


def test_draws_are_seeded_and_part_of_the_state() -> None:
    embeddings, labels = batch()
    first, again, other = (sampled(loss_of(), 0.3, seed) for seed in (0, 0, 1))
    values = [first(embeddings, labels).item() for _ in range(4)]
    assert [again(embeddings, labels).item() for _ in range(2)] == values[:2]
    assert other(embeddings, labels).item() != values[0]
    assert len(set(values)) == 4
    resumed = sampled(loss_of(), 0.3)
    resumed.load_state_dict(copy.deepcopy(again.state_dict()))
    assert [resumed(embeddings, labels).item() for _ in range(2)] == values[2:]


def test_in_evaluation_all_classes_count() -> None:
    loss = loss_of()
    assert torch.equal(sampled(loss, 0.3).eval()(*batch()), loss(*batch()))


def test_normalized_softmax_is_sampled_too() -> None:
    part = sample_classes(NormalizedSoftmaxLoss(NUM_CLASSES, DIM), 0.2)
    embeddings, labels = batch()
    assert part(embeddings.float(), labels).isfinite()


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, math.nan])
def test_rates_must_be_shares(rate: float) -> None:
    with pytest.raises(ValueError, match="must be above 0 and at most 1"):
        sample_classes(loss_of(), rate)


def test_only_losses_with_a_softmax_over_classes_are_sampled() -> None:
    with pytest.raises(ValueError, match="only softtriple and softmax-norm"):
        sample_classes(ProxyNCALoss(5, DIM), 0.5)


def test_prefixes_are_sampled_too() -> None:
    """With all classes drawn, the sampled loss is the whole one: the sum over the prefixes."""
    torch.manual_seed(0)
    whole = SoftTripleLoss(NUM_CLASSES, DIM, 2, tau=0.3, prefixes=[2, 4]).double()
    embeddings, labels = batch()
    part = sampled(copy.deepcopy(whole), 0.99)
    assert math.ceil(0.99 * NUM_CLASSES) == NUM_CLASSES
    torch.testing.assert_close(part(embeddings, labels), whole(embeddings, labels))
    assert part.working_bytes(5) > sampled(loss_of(), 0.99).working_bytes(5)
