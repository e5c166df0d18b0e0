"""The calibration of a run as a section of its report and as a figure."""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from softtriple.errors import UserError, counted
from softtriple.files import atomic_write, write_text
from softtriple.metrics import Calibration
from softtriple.report.charts import COLORS, ON_PAGE, PAGE_INCHES, STYLE, page_element, svg
from softtriple.report.templating import render
from softtriple.training import Run

# Around the section in a page, so that a later calibration replaces it without the data of the run.
START, END = "<!-- calibration -->", "<!-- end of calibration -->"
NUM_BARS = 48


class Section(NamedTuple):
    """What a page says about a calibration."""

    verdict: str
    explanation: str
    rows: list[tuple[str, str, str]]  # title, value, note
    charts: list[tuple[Markup, str]]  # with captions


def describe(calibration: Calibration) -> Section:
    """The section of a page on ``calibration``."""
    accepted, rejected = calibration.false_accept_interval, calibration.false_reject_interval
    largest, pairs = calibration.sizes[-1], calibration.pairs
    verdict = (
        f"In a gallery of {counted(calibration.gallery_classes, 'class')} with {calibration.items_per_class:.0f} items "
        f"each, a best match below {calibration.threshold:.3f} means “none of these”. That accepts "
        f"{100 * calibration.false_accept:.1f} % of unknown queries and rejects {100 * calibration.false_reject:.1f} % "
        "of known ones."
    )
    explanation = (
        f"From {counted(calibration.num_items, 'item')} of {counted(len(calibration.classes), 'class')} not trained on "
        f"({calibration.source}). Any half of the classes can be the gallery; items of the others are then unknown. "
        f"Larger galleries need a higher threshold, such as {largest.threshold:.3f} for {largest.classes:.0f} classes; "
        "softtriple search uses the one for its store. Small print: 95 % interval over the choice of classes. Rates "
        "are in per cent."
    )
    low, high = calibration.threshold_interval
    rows = [
        ("Threshold", f"{calibration.threshold:.3f}", f"{low:.3f} to {high:.3f}"),
        ("False accepts, of unknown queries", _percent(calibration.false_accept), _range(accepted)),
        ("False rejects, of known queries", _percent(calibration.false_reject), _range(rejected)),
        ("Accuracy with rejection, half of the queries unknown", _percent(calibration.accuracy), ""),
        ("Recall@1 of known queries without rejection", _percent(calibration.recall_at_1), ""),
        ("AUROC, known against unknown queries", _percent(calibration.auroc), ""),
        ("Equal error rate", _percent(calibration.equal_error_rate), ""),
        ("Calibration error", _percent(calibration.error_after), f"before: {_percent(calibration.error_before)}"),
        ("Pairs: AUROC, same class or not", _percent(pairs.auroc), ""),
        ("Pairs: equal error rate", _percent(pairs.equal_error_rate), ""),
        ("Pairs: FNMR at FMR 1 %", _percent(pairs.fnmr_at_1_percent_fmr), ""),
        ("Pairs: FNMR at FMR 0.1 %", _percent(pairs.fnmr_at_0_1_percent_fmr), ""),
        ("Pairs: calibration error", _percent(pairs.error_after), f"before: {_percent(pairs.error_before)}"),
    ]
    charts = []
    for name, draw, caption in (
        ("matches", draw_matches, "Similarity of the best match; below the threshold, the answer is none of these."),
        ("reliability", draw_reliability, "Probability of a right match against the share that is right, on classes "
         "that the probabilities were not fitted to. The size of a point is the share of queries."),
    ):  # fmt: skip
        with matplotlib.rc_context(ON_PAGE):
            figure = Figure(figsize=PAGE_INCHES, layout="constrained")
            draw(figure.add_subplot(), calibration)
            charts.append((page_element(figure, name, caption), caption))
    return Section(verdict, explanation, rows, charts)


def write_calibration(run: Run) -> list[Path]:
    """Write the figure of a run's calibration and its section of the report, if there is a report."""
    if run.directory is None or run.calibration is None:
        raise UserError("write_calibration needs a run that was written to disk and calibrated: run.calibrate()")
    directory, written = run.directory, [run.directory.calibration_file, run.directory.calibration_figure]
    with atomic_write(directory.calibration_figure) as temporary:
        temporary.write_bytes(svg(draw_calibration(run.calibration)))
    if directory.page_file.is_file():
        page = directory.page_file.read_text(encoding="utf-8")
        before, start, rest = page.partition(START)
        _, end, after = rest.partition(END)
        if start and end:  # reports of earlier versions have no place for it
            section = render("calibration.html", calibration=describe(run.calibration))
            write_text(directory.page_file, f"{before}{START}\n{section}\n{END}{after}")
            written.append(directory.page_file)
    return written


def draw_calibration(calibration: Calibration) -> Figure:
    """Best matches of known and unknown queries, and the reliability of probabilities, side by side."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
        draw_matches(left, calibration)
        draw_reliability(right, calibration)
        return figure


def draw_matches(axes: Axes, calibration: Calibration) -> None:
    """The distribution of the best similarity: of unknown queries, and of known ones with a right or wrong match."""
    curves = calibration.curves
    thresholds = np.array(curves.thresholds)
    seen = np.flatnonzero(np.array(curves.false_accept) + np.array(curves.accept) < 1.999)  # of 2: nearly all queries
    edges = np.linspace(thresholds[max(0, seen[0] - 1)], thresholds[-1], NUM_BARS + 1)
    shares = {
        "unknown": np.array(curves.false_accept),
        "known, right class": np.array(curves.right),
        "known, wrong class": np.array(curves.accept) - np.array(curves.right),
    }
    for place, (name, curve) in enumerate(shares.items()):
        density = -np.diff(np.interp(edges, thresholds, curve)) * 100
        filled: dict[str, Any] = {"fill": True, "alpha": 0.35} if place == 0 else {"linewidth": 1.8}
        style = ("-", "-", "--")[place]
        axes.stairs(density, edges, color=COLORS[(1, 0, 3)[place]], label=name, linestyle=style, **filled)
    none = f"threshold {calibration.threshold:.3f}"
    axes.axvline(calibration.threshold, color=COLORS[2], linewidth=1.8, label=none)
    low, high = calibration.threshold_interval
    axes.axvspan(low, high, color=COLORS[2], alpha=0.2, linewidth=0)
    axes.set(xlabel="similarity of the best match", ylabel="queries (%)")
    axes.grid(axis="y")
    axes.legend(frameon=False, loc="lower left", fontsize="small", bbox_to_anchor=(-0.02, 1), ncols=2, columnspacing=1)


def draw_reliability(axes: Axes, calibration: Calibration) -> None:
    """Probability against truth, with the diagonal of a perfect map."""
    bins = calibration.reliability
    axes.plot([0, 1], [0, 1], color=COLORS[2], linewidth=1, linestyle=":")
    said, true = [one.probability for one in bins], [one.true for one in bins]
    axes.plot(said, true, color=COLORS[0], linewidth=1.5)
    axes.scatter(said, true, s=[12 + 400 * one.mass for one in bins], color=COLORS[0], alpha=0.6, linewidth=0)
    axes.set(xlabel="probability", ylabel="share of right matches", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes.grid()


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _range(interval: tuple[float, float]) -> str:
    return f"{_percent(interval[0])} to {_percent(interval[1])}"
