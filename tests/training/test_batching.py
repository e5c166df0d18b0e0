"""Batches as losses ask for them."""

import numpy as np
import pytest
import torch

from softtriple.config import TrainConfig
from softtriple.losses import HTLLoss, NPairsLoss, SoftTripleLoss
from softtriple.training.fit import LooksAhead, row_batches

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
    assert isinstance(loss, LooksAhead)
    angles = torch.linspace(0, 1.5, 12).repeat_interleave(10) + 0.001 * torch.randn(120)
    loss.start_epoch(torch.stack([angles.cos(), angles.sin()], dim=1), torch.from_numpy(LABELS))
    for batch in row_batches(loss, LABELS, TrainConfig(batch_size=6), epoch=0):
        classes, counts = np.unique(LABELS[batch], return_counts=True)
        assert counts.tolist() == [2, 2, 2]
        assert classes[-1] - classes[0] == 2


@pytest.mark.parametrize("loss", [SoftTripleLoss(12, 4), NPairsLoss(12, 4)], ids=["shuffle", "pairs"])
def test_an_epoch_is_a_function_of_its_number(loss: torch.nn.Module) -> None:
    first, again, other = (np.concatenate(list(row_batches(loss, LABELS, TrainConfig(), epoch))) for epoch in (3, 3, 4))
    assert (first == again).all()
    assert not (first == other).all()
