"""Checkpoints: written atomically, the newest two kept, independent of the number of ranks."""

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
from softtriple.errors import UserError, first_line
from softtriple.files import atomic_write, naming_file
from softtriple.losses import Loss

FORMAT = 1
KEEP = 2

State = dict[str, Any]


@dataclass(frozen=True)
class Position:
    """How far training is: finished epochs, and the batches, items and summed loss of the current one."""

    epoch: int = 0
    batch: int = 0
    items: int = 0
    loss_sum: float = 0.0

    def after(self, items: int, loss: float) -> "Position":
        """The position after one more batch of ``items`` items with this mean loss."""
        return Position(self.epoch, self.batch + 1, self.items + items, self.loss_sum + loss * items)


def save_checkpoint(
    folder: Path,
    position: Position,
    encoder: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> None:
    """Write the state at ``position`` and keep the newest two; every rank must call it, and the first one writes."""
    loss_state, optimizer_state = _whole_states(loss, optimizer, folder)
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
    with atomic_write(folder / f"epoch-{position.epoch:05}-batch-{position.batch:07}.pt") as temporary:
        _write(state, temporary)
    for old in find_checkpoints(folder)[:-KEEP]:
        old.unlink()


def find_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, newest last."""
    # By number: numbers may have more digits than the names are padded to.
    return sorted(folder.glob("epoch-*.pt"), key=lambda path: [int(digits) for digits in re.findall(r"\d+", path.stem)])


def load_checkpoint(
    folder: Path, encoder: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler
) -> Position:
    """Restore the newest checkpoint and return its position, or the start if there is none."""
    checkpoints = find_checkpoints(folder)
    if not checkpoints:
        return Position()
    state = read_state(checkpoints[-1])
    try:
        loss_state, optimizer_state = _own_states(loss, optimizer, state["loss"], state["optimizer"])
        encoder.load_state_dict(state["encoder"])
        loss.load_state_dict(loss_state)
        optimizer.load_state_dict(optimizer_state)
        if state["scaler"]:  # empty if there is nothing to scale
            scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["random"])
        return Position(**state["position"])
    except Exception as error:  # the state of another run raises many types
        raise UserError(f"{checkpoints[-1]}: not a checkpoint of this run ({first_line(error)})") from error


def read_state(path: Path) -> State:
    """The state in a checkpoint file; nothing in it is executed."""
    try:
        # torch does not verify the checksums of the archive, so it would load a flipped bit.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"wrong checksum of {damaged}")
        # Ranks on one machine share the mapped file and read only their own rows.
        several = dist.world_size() > 1
        state: State = torch.load(path, map_location="cpu", weights_only=True, mmap=several)
    except Exception as error:  # damaged archives raise many types
        raise UserError(
            f"{path}: not a readable checkpoint ({first_line(error)}). Move it away to resume from the one before."
        ) from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise UserError(f"{path}: written by another version of softtriple. Resume with that version.")
    return state


def _write(state: State, path: Path) -> None:
    with path.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch replaces "no space left on device" by "unexpected pos 64 vs 0".
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


# For losses that split their classes over ranks: files contain all rows, so a run resumes on any number of ranks.


def _whole_states(loss: Loss, optimizer: torch.optim.Optimizer, folder: Path) -> tuple[State, State]:
    """States of loss and optimiser with the rows of all ranks, on the first one; every rank must call it."""
    states = loss.state_dict(), optimizer.state_dict()
    with naming_file(folder):
        return _with_rows(loss, optimizer, states, lambda rows: dist.rows_on_main(rows, folder))


def _own_states(
    loss: Loss, optimizer: torch.optim.Optimizer, loss_state: State, optimizer_state: State
) -> tuple[State, State]:
    """This rank's part of whole states; in one process the states themselves."""
    shard = loss.shard
    if shard is None or dist.world_size() == 1:
        return loss_state, optimizer_state
    classes = slice(shard.classes.start, shard.classes.stop)
    # Cloned, so that nothing refers to the mapped file.
    return _with_rows(loss, optimizer, (loss_state, optimizer_state), lambda rows: rows[classes].clone())


def _with_rows(
    loss: Loss, optimizer: torch.optim.Optimizer, states: tuple[State, State], change: Callable[[Tensor], Tensor]
) -> tuple[State, State]:
    """``states`` with ``change`` applied to tensors with a row per class: the centres and their Adam moments."""
    shard = loss.shard
    if shard is None:
        return states
    loss_state, optimizer_state = states
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    place = next(number for number, parameter in enumerate(parameters) if parameter is shard.centers)

    def changed(entries: State) -> State:
        # A tensor without dimensions counts steps or draws.
        return {
            key: change(value) if isinstance(value, Tensor) and value.ndim else value for key, value in entries.items()
        }

    entries = {
        number: changed(entry) if number == place else entry for number, entry in optimizer_state["state"].items()
    }
    return changed(loss_state), {**optimizer_state, "state": entries}
