"""The loop is a loop: whoever iterates decides about logging and stopping."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softtriple.models import Encoder


class Step(NamedTuple):
    """One batch that was learned from."""

    loss: Float[Tensor, ""]  # a tensor: .item() would wait for a GPU
    items: int
    updated: bool  # whether the optimiser has made its step, and the state is one to keep


def train_epoch(
    encoder: Encoder,
    loss: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    *,
    first: int = 0,
    accumulate: int = 1,
    device: torch.device | str = "cpu",
    half: torch.dtype | None = None,
) -> Iterator[Step]:
    """One pass over ``batches`` of inputs for stage ``first``; yields after each batch.

    ``accumulate`` batches make one step of the optimiser. With ``half`` the encoder computes in that precision, but
    never the loss.
    """
    encoder.train()
    scaler = torch.amp.GradScaler(str(device).split(":")[0], enabled=half is torch.float16)
    optimizer.zero_grad(set_to_none=True)
    waiting = 0
    for inputs, labels in batches:
        with torch.autocast(str(device).split(":")[0], dtype=half, enabled=half is not None):
            embeddings = encoder.run_from(inputs.to(device), first)
        value = loss(embeddings, labels.to(device))
        scaler.scale(value / accumulate).backward()
        waiting = (waiting + 1) % accumulate
        if not waiting:
            _step(optimizer, scaler)
        yield Step(value.detach(), len(labels), updated=not waiting)
    if waiting:
        _step(optimizer, scaler)


def _step(optimizer: torch.optim.Optimizer, scaler: "torch.amp.GradScaler") -> None:
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
