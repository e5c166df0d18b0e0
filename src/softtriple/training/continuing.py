"""`train --from RUN`: a new run whose encoder and centres start where RUN ended."""

from pathlib import Path

import torch

from softtriple.config import Config, with_values
from softtriple.data import absolute_spec
from softtriple.data.sources.table import SUFFIXES
from softtriple.errors import UserError
from softtriple.losses import Loss
from softtriple.training.directory import RunDir
from softtriple.training.run import Run

# Settings that cannot change, because the weights would not fit.
FIXED = ("backbone", "dim", "pooling", "layer_norm", "hidden")


def continued_config(start: str | Path, data: object) -> Config:
    """The configuration of the run ``start`` for training on ``data``, with a new schedule."""
    directory = RunDir(Path(start).absolute())
    config = directory.with_own_lists(directory.read_config())
    values = {
        "train.start": str(directory.path),
        "train.minutes": None,
        "train.milestones": "auto",
        "train.stop_after": "auto",
        "train.interpolate": "auto",
    }
    if not isinstance(data, str) or absolute_spec(data) != config.dataset:  # other data: only the columns still apply
        values |= {"data.split": None, "data.test_share": None, "data.on_error": "stop"}
        values |= {"data.exclude": None, "data.labels": None}
        if not isinstance(data, str) or Path(data).suffix not in SUFFIXES:
            values |= {"data.path": None, "data.text": None, "data.label": None}
    return with_values(config, values)


def check_start(config: Config) -> None:
    """UserError unless the run to start from, if any, is finished and its weights fit the configuration."""
    start = config.train.start
    if start is None:
        return
    directory = RunDir(Path(start))
    stored = directory.read_config()
    if not (directory.encoder / "encoder.json").is_file():
        raise UserError(
            f"{start}: the run is not finished, so there is nothing to start from. Finish it with --resume."
        )
    for name in FIXED:
        before, now = getattr(stored.model, name), getattr(config.model, name)
        if before != now:
            raise UserError(
                f"model.{name} is {before!r} in {start} and cannot become {now!r}: the weights would not fit. "
                "Leave it out, or train without --from."
            )


@torch.no_grad()
def keep_centers(loss: Loss, class_names: tuple[str, ...], start: str) -> int:
    """Copy the centres of classes that the run ``start`` has too, by name, to ``loss``; returns their number."""
    run = Run.load(start)
    known, part = run.centers(), loss.shard
    centers = loss.centers if part is None else part.centers
    if known is None or centers is None or known.shape[1:] != centers.shape[1:]:
        return 0
    rows = {name: row for row, name in enumerate(run.encoder.class_names)}
    first = 0 if part is None else part.classes.start
    for row, name in enumerate(class_names[first : first + len(centers)]):
        if name in rows:
            centers[row] = known[rows[name]].to(centers)
    return len(rows.keys() & set(class_names))
