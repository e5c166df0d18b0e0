"""The loop, its optimiser and its rates."""

import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from softtriple.config import TrainConfig
from softtriple.errors import UserError
from softtriple.losses import HTLLoss, NPairsLoss, SoftTripleLoss
from softtriple.models import Encoder, EncoderConfig
from softtriple.progress import Reporter
from softtriple.training import fit as loop
from softtriple.training.fit import row_batches, stop_requests, train_epoch, unvalidated
from softtriple.training.optim import build_optimizer, rate_factor, set_rates
from softtriple.training.train import train


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
    assert steps[0].updated
    assert not torch.equal(loss.centers, before)


def test_the_last_incomplete_group_is_divided_by_its_own_size() -> None:
    """Three batches in groups of two: the last step is that of a plain batch, not half of one."""
    results = []
    for accumulate in (2, 1):
        encoder, loss = small_encoder(), SoftTripleLoss(3, 4, 2)
        with torch.no_grad():
            loss.centers.copy_(torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(2)))
        optimizer = torch.optim.SGD([*encoder.parameters(), *loss.parameters()], lr=0.1)
        first, second, third = batches(3)
        if accumulate == 1:
            first = tuple(torch.cat(pair) for pair in zip(first, second, strict=True))
        list(
            train_epoch(
                encoder,
                loss,
                [first, second, third] if accumulate == 2 else [first, third],
                optimizer,
                accumulate=accumulate,
            )
        )
        results.append([parameter.detach().clone() for parameter in [*encoder.parameters(), *loss.parameters()]])
    torch.testing.assert_close(results[0], results[1])


LABELS = np.repeat(np.arange(12), 10)


def test_a_loss_that_asks_for_nothing_gets_a_shuffle() -> None:
    batches = list(row_batches(SoftTripleLoss(12, 4), LABELS, TrainConfig(batch_size=32), epoch=0))
    assert [len(batch) for batch in batches] == [32, 32, 32, 24]
    assert sorted(np.concatenate(batches)) == list(range(120))


def test_examples_of_a_class_come_together() -> None:
    batches = list(row_batches(NPairsLoss(12, 4), LABELS, TrainConfig(batch_size=16), epoch=0))
    assert len(batches) == 120 // 16
    for batch in batches:
        _, counts = np.unique(LABELS[batch], return_counts=True)
        assert counts.tolist() == [2] * 8
        assert len(set(batch)) == 16


def test_a_batch_is_never_larger_than_the_classes_allow() -> None:
    labels = np.repeat(np.arange(3), 5)
    (batch, *_) = row_batches(NPairsLoss(3, 4), labels, TrainConfig(batch_size=64), epoch=0)
    assert len(batch) == 6


def test_neighbourhoods_of_classes() -> None:
    """Classes lie on a line; with neighbourhoods of three, a batch of three classes is a run of that line."""
    loss = HTLLoss(12, 2, neighborhood=3, per_class=2)
    assert loss.looks_ahead
    angles = torch.linspace(0, 1.5, 12).repeat_interleave(10) + 0.001 * torch.randn(120)
    loss.start_epoch(torch.stack([angles.cos(), angles.sin()], dim=1), torch.from_numpy(LABELS))
    for batch in row_batches(loss, LABELS, TrainConfig(batch_size=6), epoch=0):
        classes, counts = np.unique(LABELS[batch], return_counts=True)
        assert counts.tolist() == [2, 2, 2]
        assert classes[-1] - classes[0] == 2


@pytest.mark.parametrize("loss", [SoftTripleLoss(12, 4), NPairsLoss(12, 4)], ids=["shuffle", "pairs"])
def test_an_epoch_is_a_function_of_its_number(loss: torch.nn.Module) -> None:
    first, again, other = (
        np.concatenate(list(row_batches(loss, LABELS, TrainConfig(batch_size=32), epoch))) for epoch in (3, 3, 4)
    )
    assert (first == again).all()
    assert not (first == other).all()


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_is_noted_and_the_second_obeyed(number: signal.Signals) -> None:
    before = [signal.getsignal(one) for one in SIGNALS]
    with stop_requests() as stopping:
        assert not stopping()
        signal.raise_signal(number)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert [signal.getsignal(one) for one in SIGNALS] == before


def test_other_threads_have_no_signals() -> None:
    told: list[bool] = []

    def work() -> None:
        with stop_requests() as stopping:
            told.append(stopping())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert told == [False]


@pytest.mark.parametrize("bad", [1, 7, 14, 23])
def test_the_first_loss_that_is_not_finite_is_named_wherever_it_falls(bad: int) -> None:
    """Losses are looked at every ten steps; 24 steps an epoch."""

    class Sometimes(torch.nn.Module):
        calls = 0

        def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return embeddings.sum() * (float("inf") if self.calls >= bad else 1.0)

    items = np.random.default_rng(0).standard_normal((96, 5)).astype(np.float32)
    with pytest.raises(UserError, match=rf"(inf|nan) in batch {bad} of epoch 1"):
        train(
            (items, np.arange(96) % 4), loss=Sometimes(), batch_size=2, epochs=1, dim=3, reporter=Reporter(quiet=True)
        )


def test_losses_do_not_validate_while_the_loop_does() -> None:
    loss = SoftTripleLoss(3, 4, 2)
    with unvalidated(loss):
        assert not loss.validate
    assert loss.validate


@pytest.mark.usefixtures("unchecked")  # annotations cannot be checked while code is traced
def test_a_compiled_run_has_the_same_names_and_numbers_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "COMPILER", "eager")  # traces as inductor would, but needs no C++ compiler
    monkeypatch.setenv("CXX", sys.executable)
    compiled: list[torch.nn.Module] = []
    compile_module = torch.nn.Module.compile

    def counting(module: torch.nn.Module, **options: str) -> None:
        compiled.append(module)
        compile_module(module, **options)

    monkeypatch.setattr(torch.nn.Module, "compile", counting)
    images = np.random.default_rng(0).integers(0, 256, (48, 16, 16), dtype=np.uint8)
    data = (images, np.arange(48) // 6)
    settings = {"epochs": 2, "batch_size": 12, "dim": 4, "augment": "none", "input_size": 16}

    def run(name: str, resume: bool = False, **more: str) -> dict[str, torch.Tensor]:
        trained = train(data, out=tmp_path / name, resume=resume, reporter=Reporter(quiet=True), **settings, **more)
        return trained.encoder.state_dict()

    plain, fast = run("plain"), run("fast", compile="on")
    assert len(compiled) == 1
    assert plain.keys() == fast.keys()
    for name, value in plain.items():
        torch.testing.assert_close(fast[name], value)
    last = sorted((tmp_path / "fast" / "checkpoints").iterdir())[-1]
    last.unlink()
    for name, value in run("fast", resume=True, compile="on").items():
        assert torch.equal(value, fast[name])
