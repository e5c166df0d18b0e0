"""The demo: SoftTriple and a softmax with one centre per class on rendered characters, in about a minute."""

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softtriple.config import Config, with_values
from softtriple.errors import UserError
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.progress import Reporter, duration
from softtriple.report import write_page
from softtriple.training import Run, train

METHODS: dict[str, dict[str, Any]] = {
    "softmax, one centre": {"loss.name": "softmax-norm"},
    "SoftTriple, K = 10": {"loss.name": "softtriple", "loss.centers_per_class": 10},
}
BUDGET = {"train.epochs": 4, "train.milestones": (3,), "train.batch_size": 64}


def run(out: Path, reporter: Reporter, command: str) -> tuple[dict[str, Run], Path]:
    """Train both methods for the same number of epochs in ``out``; returns the runs and their report page."""
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} already exists. Choose another --out.")
    start = time.monotonic()
    runs = {}
    for name, settings in METHODS.items():
        reporter.note(f"\n{name}")
        config = with_values(Config(), {**BUDGET, **settings})
        runs[name] = train("glyphs", out=out / config.loss.name, config=config, reporter=reporter)
    seconds = duration(time.monotonic() - start)
    return runs, write_page(runs, command=command, path=out / "report.html", facts=[("Time", seconds)])


def free_folder() -> Path:
    """The first of runs/demo, runs/demo-2, runs/demo-3 and so on that does not exist."""
    names = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / name for name in names) if not path.exists())


def table(runs: Mapping[str, Run]) -> str:
    """The metrics of both methods in per cent, as a table."""
    titles = ("R@1", "R@2", "R@4", "R@8", "MAP@R", "NMI", "centres per class")
    lines = [f"{'':<20}" + "".join(f"{title:>{len(title) + 3}}" for title in titles)]
    for name, run in runs.items():
        report, centers = run.report, run.centers()
        assert report.nmi is not None
        assert centers is not None
        shares = [*(report.recall[k] for k in (1, 2, 4, 8)), report.map_at_r, report.nmi]
        cells = [*(100 * share for share in shares), count_distinct(centers, MERGED).float().mean().item()]
        lines.append(f"{name:<20}" + "".join(f"{c:>{len(t) + 3}.1f}" for t, c in zip(titles, cells, strict=True)))
    return "\n".join(lines)
