"""One suite over every loss of the table."""

import copy

import pytest
import torch
from torch import Tensor, nn

from softtriple.losses import LOSSES, build_loss

NUM_CLASSES, DIM = 5, 6


def batch(size: int = 12, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(size, DIM, generator=random, dtype=dtype)
    return embeddings, torch.arange(size) % NUM_CLASSES


@pytest.fixture(params=sorted(LOSSES))
def loss(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return build_loss(request.param, NUM_CLASSES, DIM).double()


def test_value_is_a_finite_scalar(loss: nn.Module) -> None:
    value = loss(*batch())
    assert value.shape == ()
    assert value.isfinite()
    assert value.dtype == torch.float64


def test_gradient_reaches_embeddings_and_every_parameter(loss: nn.Module) -> None:
    embeddings, labels = batch()
    embeddings.requires_grad_()
    loss(embeddings, labels).backward()
    for tensor in [embeddings, *loss.parameters()]:
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().sum() > 0


def test_gradient_is_that_of_finite_differences(loss: nn.Module) -> None:
    embeddings, labels = batch(7)
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), embeddings.requires_grad_())


def test_order_of_the_batch_does_not_matter(loss: nn.Module) -> None:
    embeddings, labels = batch()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loss(embeddings[order], labels[order]), loss(embeddings, labels))


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        pytest.param([0, 1, 2], [1, 1, 1], id="one class only"),
        pytest.param([0, 1, 2, 3], [0, 1, 2, 3], id="all classes different"),
        pytest.param([0, 0, 0, 0], [0, 0, 1, 1], id="duplicates"),
        pytest.param([0], [4], id="one example"),
    ],
)
def test_degenerate_batches_have_a_value_and_a_gradient(loss: nn.Module, rows: list[int], labels: list[int]) -> None:
    embeddings = batch()[0][rows].requires_grad_()
    value = loss(embeddings, torch.tensor(labels))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


def test_training_lowers_the_loss(loss: nn.Module) -> None:
    embeddings, labels = batch()
    embeddings.requires_grad_()
    before = loss(embeddings, labels).item()
    optimizer = torch.optim.Adam([embeddings, *loss.parameters()], lr=0.03)
    for _ in range(100):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    assert loss(embeddings, labels).item() < before - 0.3


def test_float32_is_close_to_float64(loss: nn.Module) -> None:
    embeddings, labels = batch()
    single = copy.deepcopy(loss).float()(embeddings.float(), labels)
    torch.testing.assert_close(single.double(), loss(embeddings, labels), rtol=1e-4, atol=1e-4)
