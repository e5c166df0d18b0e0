"""The estimate of memory against what a step of training really holds."""

import pytest
import torch
from torch import Tensor

from softtriple.config import TrainConfig
from softtriple.losses import ProxyNCALoss, SoftTripleLoss, sample_classes
from softtriple.models import Encoder, EncoderConfig
from softtriple.training.optim import Memory, build_optimizer, estimate_memory


def held(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("rate", [1.0, 0.1], ids=["all classes", "sampled"])
@pytest.mark.parametrize("trainable", ["all", "head"])
def test_it_counts_what_is_held(rate: float, trainable: str) -> None:
    encoder = Encoder(EncoderConfig(backbone="mlp", in_features=6, hidden=(8,), dim=4))
    encoder.set_trainable(trainable)
    loss = sample_classes(SoftTripleLoss(200, 4, 3), rate)
    optimizer = build_optimizer(encoder, loss, TrainConfig(lr=1e-3))
    found = estimate_memory(encoder, loss, batch_size=5)
    loss(encoder(torch.randn(5, 6)), torch.arange(5)).backward()
    optimizer.step()
    parameters = [*encoder.parameters(), *loss.parameters()]
    gradients = [p.grad._values() if p.grad.is_sparse else p.grad for p in parameters if p.grad is not None]
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert found[:3] == (held(parameters), held(gradients), held(moments))
    assert found.working > 0


def test_a_loss_without_tiles_has_none() -> None:
    encoder = Encoder(EncoderConfig(backbone="linear", in_features=6, dim=4))
    assert estimate_memory(encoder, ProxyNCALoss(9, 4), batch_size=5).working == 0


def test_it_is_said_as_a_person_says_it() -> None:
    memory = Memory(1_024_000_000, 1_024_000_000, 2_048_000_000, 40_000_000)
    assert str(memory) == (
        "4.14 GB (parameters 1.02 GB, gradients 1.02 GB, optimiser 2.05 GB, tiles 40.0 MB), "
        "besides activations and data"
    )
