"""Gains on held-out training classes in the trials that decide how long a head is trained (``trials.json``)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.errors import UserError
from softtriple.files import write_text
from softtriple.training.choose import Trial


class Gain(NamedTuple):
    """Gain over the initial head of the one ``share`` of the way to the head after ``epoch``, on held-out items."""

    epoch: int
    share: float
    recall: float
    map_at_r: float


def write_gains(file: Path, splits: Sequence[Mapping[tuple[int, float], Trial]]) -> None:
    """Write the mean gain over ``splits`` of each epoch and share."""
    rows = [
        [epoch, share, *(float(np.mean([gains[epoch, share][metric] for gains in splits])) for metric in (0, 1))]
        for epoch, share in splits[0]
    ]
    write_text(file, json.dumps({"columns": list(Gain._fields), "rows": rows}) + "\n")


def read_gains(file: Path) -> tuple[Gain, ...]:
    """The gains in ``file``; empty if there were no trials."""
    if not file.is_file():
        return ()
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return tuple(Gain(int(epoch), float(share), float(r), float(m)) for epoch, share, r, m in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not a table of trials ({error})") from error
