"""The loop is a loop: whoever iterates decides about logging and stopping."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from softtriple.models import Encoder

Batch = tuple[Tensor, Tensor]


class FromStage(nn.Module):
    """An encoder that takes the output of its first ``first`` stages: one module, whatever goes in."""

    def __init__(self, encoder: Encoder, first: int) -> None:
        super().__init__()
        self.encoder, self.first = encoder, first

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Unit vectors."""
        return self.encoder.run_from(inputs, self.first)


class Step(NamedTuple):
    """One batch that was learned from."""

    loss: Float[Tensor, ""]  # a tensor: .item() would wait for a GPU
    updated: bool  # whether the optimiser has made its step, and the state is one to keep


def train_epoch(
    encoder: nn.Module,
    loss: nn.Module,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    accumulate: int = 1,
    device: torch.device | str = "cpu",
    half: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Iterator[Step]:
    """One pass over ``batches`` of inputs and labels; yields after each batch.

    There may be fewer labels than inputs: a rank without examples of a batch runs some all the same, so that ranks
    stay in step, and gives nothing of them. ``accumulate`` batches make one step of the optimiser. With ``half`` the
    encoder computes in that precision, but never the loss; float16 needs a ``scaler``, which keeps small gradients and
    should outlive the epoch, as it finds the scale by trying.
    """
    encoder.train()
    scaler = scaler or torch.amp.GradScaler(enabled=False)
    optimizer.zero_grad(set_to_none=True)
    waiting = 0
    for inputs, labels in batches:
        with torch.autocast(str(device).split(":")[0], dtype=half, enabled=half is not None):
            embeddings = encoder(inputs.to(device))[: len(labels)]
        value = loss(embeddings, labels.to(device))
        scaler.scale(value / accumulate).backward()
        waiting = (waiting + 1) % accumulate
        if not waiting:
            _step(optimizer, scaler)
        yield Step(value.detach(), updated=not waiting)
    if waiting:
        _step(optimizer, scaler)


def _step(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
