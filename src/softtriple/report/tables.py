"""The tables of a report: a column per method, numbers with their intervals, and what training changed in words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from softtriple.errors import UserError, counted
from softtriple.metrics import Difference, Report, difference_intervals
from softtriple.report.pictures import ClassCenters, Query
from softtriple.training.baseline import verdict
from softtriple.training.trials import Gain

NUM_HARDEST = 10


@dataclass(frozen=True, eq=False)
class Method:
    """What a page shows of one trained model."""

    name: str
    report: Report
    losses: tuple[float, ...]  # mean training loss of each epoch
    distinct_centers: tuple[int, ...]  # of each class; () if the loss has no centres
    queries: tuple[Query, ...]
    classes: tuple[ClassCenters, ...] = ()
    baselines: Mapping[str, Report] = field(default_factory=dict)  # of untrained embeddings, the one to beat first
    prefixes: Mapping[int, Report] = field(default_factory=dict)  # of the beginnings of the embeddings, by width
    held_out_recall: tuple[tuple[int, float], ...] = ()  # epoch and Recall@1 on held-out training classes
    gains: tuple[Gain, ...] = ()  # on held-out training classes in trials, if these decided how long to train
    chosen: Gain | None = None  # of them


class Cell(NamedTuple):
    """A number as shown, its uncertainty, and whether it is the best of several."""

    text: str
    note: str = ""
    best: bool = False


class Table(NamedTuple):
    """A table with a column per method."""

    explanation: str
    corner: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


def metrics_table(methods: Sequence[Method]) -> tuple[list[str], Table]:
    """A sentence for each method on what training changed, and a table of all metrics.

    The baseline to beat and the differences to it come right after the methods. Runs of version 0.1 have no baseline.
    """
    several, reports, baselines = len(methods) > 1, [method.report for method in methods], methods[0].baselines
    columns, verdicts, differences = [method.name for method in methods], [], []
    if baselines:
        name, *more = baselines
        changes = [f"{method.name}: difference" for method in methods] if several else ["difference"]
        columns = [*(columns if several else ["trained"]), name, *changes, *more]
        for method in methods:
            sentence, paired = _verdict(name, baselines[name], method.report)
            verdicts.append(f"{method.name}: {sentence[0].lower()}{sentence[1:]}" if several else sentence)
            differences.append(paired)
    rows = []
    for title, metric, shares in _shares([*reports, *baselines.values()]):
        trained, untrained = shares[: len(reports)], shares[len(reports) :]
        cells = _cells(trained, [_uncertainty(report, metric) for report in reports])
        if baselines:
            first, *others = _cells(untrained, bold=False)
            cells.append(first)
            cells += [_difference(untrained[0], *pair, metric) for pair in zip(trained, differences, strict=True)]
            cells += others
        rows.append((title, cells))
    if any(method.distinct_centers for method in methods):
        means = [f"{np.mean(m.distinct_centers):.1f}" if m.distinct_centers else "–" for m in methods]
        rows.append(("Distinct centres per class", [Cell(mean) for mean in means]))
    return verdicts, Table(_explanation(reports, next(iter(baselines), ""), any(differences)), "", columns, rows)


def _explanation(reports: Sequence[Report], baseline: str, paired: bool) -> str:
    text = f"In per cent, for {'; '.join(dict.fromkeys(map(_evaluated, reports)))}."
    if len(reports) > 1:
        text += " The best value of each row is bold."
    if baseline:
        text += f" Differences are to {baseline}, in percentage points."
    if paired or any(report.intervals for report in reports):
        text += " Small print: 95 % interval over the choice of test classes"
        text += ", paired for differences." if paired else "."
    if any(_uncertainty(report, "nmi") for report in reports):
        text += " Small print of NMI and AMI: spread over restarts of k-means."
    if any(report.incomplete for report in reports):
        text += " Incomplete benchmark: some of its items are missing, so do not compare with published numbers."
    return text


def _verdict(name: str, baseline: Report, trained: Report) -> tuple[str, dict[str, Difference]]:
    """What training changed, in a sentence, and the paired differences by metric if there are any."""
    try:
        differences = difference_intervals(baseline, trained)
    except UserError as error:
        return f"There is no paired difference to {name}: {error}.", {}
    if (warning := verdict(baseline, trained)) is not None:
        return re.sub(r"(?<![\w-])-(?=\d)", "−", warning), differences
    recall, precision = differences["recall@1"], differences["map_at_r"]
    if recall.low > 0:
        sentence = (
            f"Trained embeddings retrieve {100 * recall.mean:.1f} points more at R@1 (95 % interval "
            f"{_interval(recall, 1)}) than {name}, and {100 * precision.mean:.1f} points more at MAP@R "
            f"({_interval(precision, 1)})."
        )
    else:
        sentence = (
            f"Trained embeddings gain {100 * precision.mean:.1f} points at MAP@R (95 % interval "
            f"{_interval(precision, 1)}) over {name}, whose R@1 is already "
            f"{100 * baseline.precision_at_1:.1f} and changes by {_signed(recall.mean, 1)} ({_interval(recall, 1)})."
        )
    return sentence, differences


def _difference(start: float | None, trained: float | None, paired: Mapping[str, Difference], metric: str) -> Cell:
    if start is None or trained is None:  # such as the accuracy, which needs a trained loss
        return Cell("–")
    return Cell(_signed(trained - start, 2), _interval(paired[metric], 2) if metric in paired else "")


def _interval(difference: Difference, decimals: int) -> str:
    return f"{_signed(difference.low, decimals)} to {_signed(difference.high, decimals)}"


def _signed(share: float, decimals: int) -> str:
    return f"{100 * share:+.{decimals}f}".replace("-", "−")


def _shares(reports: Sequence[Report]) -> list[tuple[str, str, list[float | None]]]:
    """Title, name and values of each metric that one of the reports has."""
    shares: list[tuple[str, str, list[float | None]]] = [
        *(
            (f"Recall@{k}", f"recall@{k}", [report.recall.get(k) for report in reports])
            for k in sorted({k for report in reports for k in report.recall})
        ),
        ("MAP@R", "map_at_r", [report.map_at_r for report in reports]),
        ("R-precision", "r_precision", [report.r_precision for report in reports]),
        ("NMI", "nmi", [report.nmi for report in reports]),
        ("AMI", "ami", [report.ami for report in reports]),
        ("Accuracy", "accuracy", [report.accuracy for report in reports]),
    ]
    return [row for row in shares if any(value is not None for value in row[2])]


def _evaluated(report: Report) -> str:
    queries, classes = counted(report.num_queries, "query"), counted(report.num_classes, "class")
    text = f"{queries} of {classes} against {counted(report.num_gallery, 'item')}"
    if report.num_without_positives:
        text += f", {report.num_without_positives} left out because no other item has their class"
    if report.num_zero_vectors:
        text += f", {counted(report.num_zero_vectors, 'zero vector')}"
    return text


def _uncertainty(report: Report, name: str) -> str:
    if name in report.intervals:
        low, high = report.intervals[name]
        return f"{_percent(low)} to {_percent(high)}"
    if name in ("nmi", "ami") and report.kmeans is not None:
        spread = report.kmeans.nmi_spread if name == "nmi" else report.kmeans.ami_spread
        return "" if spread is None else f"spread {_percent(spread)}"
    return ""


def prefix_table(methods: Sequence[Method]) -> Table | None:
    """Recall@1 and MAP@R of every width that was trained to work by itself."""
    if not any(method.prefixes for method in methods):
        return None
    columns = [
        f"{method.name}: {title}" if len(methods) > 1 else title for method in methods for title in ("R@1", "MAP@R")
    ]
    rows = []
    for width in sorted({width for method in methods for width in method.prefixes}):
        cells = []
        for report in (method.prefixes.get(width) for method in methods):
            shares = [None, None] if report is None else [report.recall[1], report.map_at_r]
            notes = ["", ""] if report is None else [_uncertainty(report, name) for name in ("recall@1", "map_at_r")]
            cells += _cells(shares, notes, bold=False)
        rows.append((str(width), cells))
    explanation = "The first numbers of each embedding, searched by themselves; in per cent."
    return Table(explanation, "Dimensions", columns, rows)


def hardest_table(methods: Sequence[Method]) -> Table | None:
    """Recall@1 of the classes that are retrieved worst."""
    recalls = [method.report.recall_per_class for method in methods]
    names = {name for recall in recalls for name in recall}
    if not names:
        return None
    mean = {name: float(np.mean([recall[name] for recall in recalls if name in recall])) for name in names}
    hardest = sorted(names, key=lambda name: (mean[name], name))[:NUM_HARDEST]
    explanation = f"Recall@1 in per cent: the {len(hardest)} lowest of {counted(len(names), 'class')}"
    explanation += ", by the mean over methods." if len(methods) > 1 else "."
    rows = [(name, _cells([recall.get(name) for recall in recalls])) for name in hardest]
    return Table(explanation, "Class", [method.name for method in methods], rows)


def _cells(shares: Sequence[float | None], notes: Sequence[str] | None = None, *, bold: bool = True) -> list[Cell]:
    shown = ["–" if share is None else _percent(share) for share in shares]
    known = [share for share in shares if share is not None]
    best = _percent(max(known)) if bold and len(known) > 1 else None
    return [Cell(text, note, text == best) for text, note in zip(shown, notes or [""] * len(shown), strict=True)]


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
