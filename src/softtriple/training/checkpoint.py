"""Checkpoints that are there whole or not at all, the newest two of them."""

import dataclasses
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

FORMAT = 1
KEEP = 2


@dataclass(frozen=True)
class Position:
    """How far a run is: whole epochs, batches of the next one, and what their loss was."""

    epoch: int = 0
    batch: int = 0
    items: int = 0
    loss_sum: float = 0.0


def save_checkpoint(
    folder: Path, position: Position, encoder: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write the state at ``position``, then drop all but the newest."""
    state = {
        "format": FORMAT,
        "position": dataclasses.asdict(position),
        "encoder": encoder.state_dict(),
        "loss": loss.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
    }
    temporary = folder / ".checkpoint.tmp"
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / f"epoch-{position.epoch:05}-batch-{position.batch:07}.pt")
    for old in sorted(folder.glob("epoch-*.pt"))[:-KEEP]:
        old.unlink()


def load_checkpoint(folder: Path, encoder: nn.Module, loss: nn.Module, optimizer: torch.optim.Optimizer) -> Position:
    """Put the newest state back and return its position; the beginning if there is none."""
    found = sorted(folder.glob("epoch-*.pt"))
    if not found:
        return Position()
    state = read_state(found[-1])
    encoder.load_state_dict(state["encoder"])
    loss.load_state_dict(state["loss"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return Position(**state["position"])


def read_state(path: Path) -> dict[str, Any]:
    """The state in a checkpoint file; nothing in it is ever executed."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path}: not a readable checkpoint ({reason}); delete it to use the one before") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path}: a checkpoint of another version of softtriple; train again, or use that version")
    return state
