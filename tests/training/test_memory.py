"""Memory is counted before it is needed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from softtriple.config import TrainConfig
from softtriple.errors import UserError
from softtriple.losses import ProxyNCALoss, SoftTripleLoss, sample_classes
from softtriple.models import Encoder, EncoderConfig
from softtriple.training import memory
from softtriple.training.memory import Memory, activation_bytes, check_memory, estimate_memory
from softtriple.training.optim import build_optimizer


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
    assert found.scratch > 0


def test_a_loss_without_tiles_has_none() -> None:
    encoder = Encoder(EncoderConfig(backbone="linear", in_features=6, dim=4))
    assert estimate_memory(encoder, ProxyNCALoss(9, 4), batch_size=5).scratch == 0


def test_it_is_said_as_a_person_says_it() -> None:
    told = Memory(1_024_000_000, 1_024_000_000, 2_048_000_000, 40_000_000)
    for size in ("4.14 GB", "parameters 1.02 GB", "gradients 1.02 GB", "optimiser 2.05 GB", "40.0 MB"):
        assert size in str(told)


def test_activations_are_what_the_backward_pass_keeps() -> None:
    encoder = Encoder.from_backbone("conv-small", dim=4)
    kept = activation_bytes(encoder)
    side = encoder.preprocess.eval_view.size
    assert kept >= 4 * side * side  # the input of the first convolution, at least
    assert activation_bytes(encoder, torch.bfloat16) < kept
    encoder.set_trainable("head")
    assert activation_bytes(encoder) < kept / 10
    assert encoder.training
    assert activation_bytes(Encoder.from_backbone("linear", dim=4, in_features=3)) == 0


def test_too_little_memory_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    needed = Memory(parameters=10**9, gradients=10**9, optimizer=2 * 10**9, scratch=0, activations=6 * 10**9)
    check_memory(needed, torch.device("cpu"))  # where the system does not say, nothing is refused
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 9000000 kB\n")
    with pytest.raises(UserError, match=r"10\.00 GB.*9\.22 GB.*batch_size"):
        check_memory(needed, torch.device("cpu"))
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 10000000 kB\n")
    check_memory(needed, torch.device("cpu"))
