"""The loop, its optimiser and its rates."""

import numpy as np
import pytest
import torch

from softtriple.config import TrainConfig
from softtriple.losses import SoftTripleLoss
from softtriple.models import Encoder, EncoderConfig
from softtriple.training.fit import train_epoch
from softtriple.training.optim import build_optimizer, rate_factor, set_rates


def small_encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(EncoderConfig(backbone="mlp", in_features=6, hidden=(8,), dim=4))


def batches(count: int, size: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 6, generator=random), torch.randint(3, (size,), generator=random)) for _ in range(count)]


def test_every_parameter_is_in_one_group_at_its_rate() -> None:
    encoder, loss = small_encoder(), SoftTripleLoss(3, 4, 2)
    optimizer = build_optimizer(encoder, loss, TrainConfig(lr=1e-4, head_lr=1e-3, center_lr=0.1))
    rates = {group["part"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"backbone": 1e-4, "head": 1e-3, "loss": 0.1}
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(p) for p in [*encoder.parameters(), *loss.parameters()])


def test_frozen_stages_are_left_out() -> None:
    encoder, loss = small_encoder(), SoftTripleLoss(3, 4, 2)
    encoder.set_trainable("head")
    parts = [group["part"] for group in build_optimizer(encoder, loss, TrainConfig(lr=1e-4)).param_groups]
    assert parts == ["head", "loss"]


def test_rates_drop_at_milestones_and_wait_in_warm_up() -> None:
    encoder, loss = small_encoder(), SoftTripleLoss(3, 4, 2)
    config = TrainConfig(lr=1e-4, center_lr=1e-2, milestones=(2, 4), warm_up_epochs=1)
    optimizer = build_optimizer(encoder, loss, config)
    seen = []
    for epoch in range(5):
        set_rates(optimizer, epoch, config)
        seen.append([group["lr"] for group in optimizer.param_groups])
    backbone, head, centers = np.array(seen).T
    np.testing.assert_allclose(backbone, [0, 1e-4, 1e-5, 1e-5, 1e-6])
    np.testing.assert_allclose(head, [1e-4, 1e-4, 1e-5, 1e-5, 1e-6])
    np.testing.assert_allclose(centers, [1e-2, 1e-2, 1e-3, 1e-3, 1e-4])
    assert rate_factor(0, ()) == 1.0


@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulated_batches_are_one_larger_batch(accumulate: int) -> None:
    found = []
    for joined in (False, True):
        encoder = small_encoder()
        loss = SoftTripleLoss(3, 4, 2)
        with torch.no_grad():
            loss.centers.copy_(torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(2)))
        data = batches(6)
        if joined:
            parts = [data[start : start + accumulate] for start in range(0, 6, accumulate)]
            data = [tuple(torch.cat(tensors) for tensors in zip(*part, strict=True)) for part in parts]
        # Plain gradient steps, so that a wrong scale of the gradient shows.
        optimizer = torch.optim.SGD([*encoder.parameters(), *loss.parameters()], lr=0.1)
        steps = list(train_epoch(encoder, loss, data, optimizer, accumulate=1 if joined else accumulate))
        assert [step.updated for step in steps].count(True) == 6 // accumulate
        found.append([parameter.detach().clone() for parameter in [*encoder.parameters(), *loss.parameters()]])
    torch.testing.assert_close(found[0], found[1])


def test_a_last_incomplete_group_is_learned_from_too() -> None:
    encoder, loss = small_encoder(), SoftTripleLoss(3, 4, 2)
    before = loss.centers.detach().clone()
    optimizer = torch.optim.SGD([*encoder.parameters(), *loss.parameters()], lr=0.1)
    steps = list(train_epoch(encoder, loss, batches(1), optimizer, accumulate=4))
    assert not steps[0].updated
    assert not torch.equal(loss.centers, before)
