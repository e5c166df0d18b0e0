"""States of which each rank has a part: whole in files, so that a run goes on with any number of ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softtriple import dist
from softtriple.files import explained
from softtriple.losses.sharded import ShardedSoftTripleLoss

State = dict[str, Any]


def find_shard(loss: nn.Module) -> ShardedSoftTripleLoss | None:
    """The part of ``loss`` whose centres are split by class, if there is one."""
    return next((module for module in loss.modules() if isinstance(module, ShardedSoftTripleLoss)), None)


def whole_states(loss: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> tuple[State, State]:
    """States of loss and optimiser with the rows of all ranks, on the first one; every rank must ask.

    Where there are several ranks, the rows lie in files without a name in ``folder``, not in memory.
    """
    states = loss.state_dict(), optimizer.state_dict()
    with explained(folder):
        return _with_rows(loss, optimizer, states, lambda rows: dist.rows_on_main(rows, folder))


def own_states(
    loss: nn.Module, optimizer: torch.optim.Optimizer, loss_state: State, optimizer_state: State
) -> tuple[State, State]:
    """The part of whole states that belongs to this rank; in one process the states themselves."""
    shard = find_shard(loss)
    if shard is None or dist.world_size() == 1:
        return loss_state, optimizer_state
    classes = slice(shard.classes.start, shard.classes.stop)
    # Cloned, so that nothing refers to the whole, which is a mapped file.
    return _with_rows(loss, optimizer, (loss_state, optimizer_state), lambda rows: rows[classes].clone())


def _with_rows(
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    states: tuple[State, State],
    change: Callable[[Tensor], Tensor],
) -> tuple[State, State]:
    """``states`` with every tensor changed that has a row for each class: the centres, and what Adam knows of them."""
    shard = find_shard(loss)
    if shard is None:
        return states
    loss_state, optimizer_state = states
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    place = next(number for number, parameter in enumerate(parameters) if parameter is shard.centers)

    def changed(entries: State) -> State:
        # A tensor without dimensions is a count of steps or draws.
        return {
            key: change(value) if isinstance(value, Tensor) and value.ndim else value for key, value in entries.items()
        }

    entries = {
        number: changed(entry) if number == place else entry for number, entry in optimizer_state["state"].items()
    }
    return changed(loss_state), {**optimizer_state, "state": entries}
