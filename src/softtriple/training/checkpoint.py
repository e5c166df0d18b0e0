"""Checkpoints that are there whole or not at all, the newest two of them."""

import dataclasses
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softtriple import dist
from softtriple.files import appearing_file
from softtriple.training.sharding import own_states, whole_states

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
