"""The whole path in about a minute: SoftTriple and the single-centre softmax on rendered characters, side by side."""

import time
from collections.abc import Mapping
from pathlib import Path

from softtriple.config import Config, with_settings
from softtriple.experiment import train
from softtriple.illustrate import write_page
from softtriple.metrics import Report
from softtriple.progress import Reporter, duration
from softtriple.training.run import RunDir

METHODS = {
    "softmax, one centre": ["loss.name=softmax-norm"],
    "SoftTriple": ["loss.name=softtriple", "loss.centers_per_class=10"],
}
BUDGET = ["train.epochs=4", "train.milestones=[3]", "train.batch_size=64"]


def run(out: Path, reporter: Reporter, command: str) -> tuple[dict[str, Report], Path]:
    """Train both methods under the same budget in ``out``; their reports, and the page that shows them."""
    start = time.monotonic()
    outcomes = {}
    for name, settings in METHODS.items():
        reporter.note(f"\n{name}")
        config = with_settings(Config(dataset="glyphs"), [*BUDGET, *settings])
        outcomes[name] = train(config, RunDir(out / name.split(",")[0].lower()), reporter)
    page = RunDir(out)
    write_page(page, outcomes, command, [("Time", duration(time.monotonic() - start))])
    return {name: outcome.report for name, outcome in outcomes.items()}, page.page_file


def table(reports: Mapping[str, Report]) -> str:
    """The figures of both methods, in per cent."""
    lines = [f"{'':<22}" + "".join(f"{title:>8}" for title in ("R@1", "R@2", "R@4", "R@8", "MAP@R", "NMI"))]
    for name, report in reports.items():
        shares = [*(report.recall[k] for k in (1, 2, 4, 8)), report.map_at_r, report.nmi or 0.0]
        lines.append(f"{name:<22}" + "".join(f"{100 * share:>8.1f}" for share in shares))
    return "\n".join(lines)
