"""The whole path in about a minute: SoftTriple and the single-centre softmax on rendered characters, side by side."""

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from softtriple.config import Config, with_settings
from softtriple.losses import SoftTripleLoss
from softtriple.metrics import Report
from softtriple.progress import Reporter, duration
from softtriple.report.pictures import write_page
from softtriple.training.directory import RunDir
from softtriple.training.train import train

METHODS = {
    "softmax, one centre": ["loss.name=softmax-norm"],
    "SoftTriple, K = 10": ["loss.name=softtriple", "loss.centers_per_class=10"],
}
BUDGET = ["train.epochs=4", "train.milestones=[3]", "train.batch_size=64"]


@dataclass(frozen=True)
class Result:
    """How one method did."""

    report: Report
    distinct_centers: float  # mean over classes


def run(out: Path, reporter: Reporter, command: str) -> tuple[dict[str, Result], Path]:
    """Train both methods under the same budget in ``out``; their results, and the page that shows them."""
    if out.exists() and any(out.iterdir()):
        raise FileExistsError(f"{out}: it exists and is not overwritten; choose another --out")
    start = time.monotonic()
    outcomes, results = {}, {}
    for name, settings in METHODS.items():
        reporter.note(f"\n{name}")
        config = with_settings(Config(dataset="glyphs"), [*BUDGET, *settings])
        outcome = train(config, RunDir(out / config.loss.name), reporter)
        assert isinstance(outcome.loss, SoftTripleLoss)  # the softmax is its case K = 1
        outcomes[name] = outcome
        results[name] = Result(outcome.report, outcome.loss.distinct_centers().float().mean().item())
    page = RunDir(out)
    write_page(page, outcomes, command, [("Time", duration(time.monotonic() - start))])
    return results, page.page_file


def free_folder() -> Path:
    """runs/demo, or runs/demo-2, runs/demo-3 and so on if it is taken: nothing is ever overwritten."""
    names = itertools.chain(["demo"], (f"demo-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / name for name in names) if not path.exists())


def table(results: Mapping[str, Result]) -> str:
    """The figures of both methods, shares in per cent."""
    titles = ("R@1", "R@2", "R@4", "R@8", "MAP@R", "NMI", "centres per class")
    lines = [f"{'':<20}" + "".join(f"{title:>{len(title) + 3}}" for title in titles)]
    for name, result in results.items():
        report = result.report
        assert report.nmi is not None
        shares = [*(report.recall[k] for k in (1, 2, 4, 8)), report.map_at_r, report.nmi]
        cells = [*(100 * share for share in shares), result.distinct_centers]
        lines.append(f"{name:<20}" + "".join(f"{c:>{len(t) + 3}.1f}" for t, c in zip(titles, cells, strict=True)))
    return "\n".join(lines)
