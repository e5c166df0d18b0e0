"""What held-out training classes showed in the trials that decide how long a head trains (``trials.json``)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.errors import UserError
from softtriple.files import write_text
from softtriple.training.choose import Trial


class Gain(NamedTuple):
    """What the head ``share`` of the way from its start to that after ``epoch`` gains on held-out items."""

    epoch: int
    share: float
    recall: float
    map_at_r: float


def write_gains(file: Path, splits: Sequence[Mapping[tuple[int, float], Trial]]) -> None:
    """Write the mean over ``splits`` of what each epoch and share gained."""
    rows = [
        [epoch, share, *(float(np.mean([gains[epoch, share][metric] for gains in splits])) for metric in (0, 1))]
        for epoch, share in splits[0]
    ]
    write_text(file, json.dumps({"columns": list(Gain._fields), "rows": rows}) + "\n")


def read_gains(file: Path) -> tuple[Gain, ...]:
    """The gains in ``file``; none if nothing was tried."""
    if not file.is_file():
        return ()
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
        return tuple(Gain(int(epoch), float(share), float(r), float(m)) for epoch, share, r, m in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not a table of trials ({error})") from error
