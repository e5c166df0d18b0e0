"""Checkpoints that are there whole or not at all, the newest two of them."""

import dataclasses
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softtriple import dist
from softtriple.files import appearing_file, explained
from softtriple.losses.sharded import ShardedSoftTripleLoss

FORMAT = 1
KEEP = 2


@dataclass(frozen=True)
class Position:
    """How far a run is: whole epochs, batches of the next one, and what their loss was."""

    epoch: int = 0
    batch: int = 0
    items: int = 0
    loss_sum: float = 0.0

    def after(self, items: int, loss: float) -> "Position":
        """How far it is after one batch more, of so many items and this mean loss."""
        return Position(self.epoch, self.batch + 1, self.items + items, self.loss_sum + loss * items)


def save_checkpoint(
    folder: Path,
    position: Position,
    encoder: nn.Module,
    loss: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Write the state at ``position``, then drop all but the newest; every rank must call it, the first one writes."""
    loss_state, optimizer_state = whole_states(loss, optimizer, folder)
    if not dist.is_main():
        return
    state = {
        "format": FORMAT,
        "position": dataclasses.asdict(position),
        "encoder": encoder.state_dict(),
        "loss": loss_state,
        "optimizer": optimizer_state,
        "scaler": scaler.state_dict(),
        "random": torch.get_rng_state(),
    }
    with appearing_file(folder / f"epoch-{position.epoch:05}-batch-{position.batch:07}.pt") as temporary:
        _write(state, temporary)
    for old in find_checkpoints(folder)[:-KEEP]:
        old.unlink()


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest last."""
    # By number: the names have room for that many digits and may need more.
    return sorted(folder.glob("epoch-*.pt"), key=lambda path: [int(digits) for digits in re.findall(r"\d+", path.stem)])


def load_checkpoint(
    folder: Path, encoder: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Position:
    """Put the newest state back and return its position; the beginning if there is none."""
    found = find_checkpoints(folder)
    if not found:
        return Position()
    state = read_state(found[-1])
    try:
        loss_state, optimizer_state = own_states(loss, optimizer, state["loss"], state["optimizer"])
        encoder.load_state_dict(state["encoder"])
        loss.load_state_dict(loss_state)
        optimizer.load_state_dict(optimizer_state)
        if state.get("scaler"):  # empty where it has nothing to do, missing in older checkpoints
            scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        return Position(**state["position"])
    except Exception as error:  # a strange state makes each of these fail in its own way
        raise ValueError(f"{found[-1]}: not the state of this run ({_first_line(error)})") from error


def read_state(path: Path) -> dict[str, Any]:
    """The state in a checkpoint file; nothing in it is ever executed."""
    try:
        # torch does not look at the checksums: it would load a flipped bit as another number.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"wrong checksum of {damaged}")
        # Ranks on one machine share what they map, and read their own rows alone.
        several = dist.world_size() > 1
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=several)
    except Exception as error:  # damaged archives raise whatever their reader meets first
        reason = _first_line(error)
        raise ValueError(f"{path}: not a readable checkpoint ({reason}); delete it to use the one before") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path}: a checkpoint of another version of softtriple; train again, or use that version")
    return state


def _write(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch speaks of "unexpected pos 64 vs 0" where the operating system said that the disk is full.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


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
