"""The report of a run, or of several methods on the same data: one HTML file without scripts or other files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from softtriple.errors import UserError, counted
from softtriple.files import write_text
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.metrics import Difference, Report, difference_intervals
from softtriple.report.charts import center_histogram, line_sample, loss_curves, recall_curves
from softtriple.report.pictures import ClassCenters, Query, center_examples, example_queries
from softtriple.report.templating import render
from softtriple.training import Run
from softtriple.training.baseline import verdict

NUM_QUERIES, NUM_NEIGHBORS = 8, 4
HELD_OUT = "validation_recall@1"  # of a log entry
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
    held_out_recall: tuple[tuple[int, float], ...] = ()  # epoch and Recall@1 on held-out training classes


@dataclass(frozen=True, eq=False)
class Page:
    """Everything that a page shows; methods with example queries have the same ones.

    All methods are compared with the baselines of the first one.
    """

    title: str
    facts: tuple[tuple[str, str], ...]  # ("Data", "glyphs"), ("Command", "softtriple demo")
    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("methods: a page shows at least one, got none")
        first, *others = [method for method in self.methods if method.queries] or self.methods[:1]
        for other in others:
            if not _same_queries(first.queries, other.queries):
                raise ValueError(f"queries: {other.name!r} must show the queries of {first.name!r}, in the same order")


def write_page(
    runs: Run | Mapping[str, Run],
    *,
    command: str,
    path: Path | None = None,
    facts: Sequence[tuple[str, str]] = (),
) -> Path:
    """Write the report of a run to ``report.html`` in its directory, or that of several by name to ``path``."""
    named = {_method_name(runs): runs} if isinstance(runs, Run) else runs
    first = next(iter(named.values()))
    if path is None:
        if len(named) > 1 or first.directory is None:
            raise UserError("write_page needs a path for several runs, or for a run that was not written to disk")
        path = first.directory.page_file
    model, train, benchmark = first.config.model, first.config.train, first.benchmark()
    page = Page(
        title=f"softtriple on {benchmark.name}",
        facts=(
            ("Data", "; ".join(benchmark.notes) or benchmark.name),
            ("Encoder", f"{model.backbone}, {model.dim} dimensions, trained: {describe_trainable(model.trainable)}"),
            ("Training", f"epochs: {train.epochs}, batch size {train.batch_size}, seed {train.seed}"),
            ("Command", command),
            *facts,
        ),
        methods=tuple(_method(name, run) for name, run in named.items()),
    )
    write_text(path, render_page(page))
    return path


def describe_trainable(part: str) -> str:
    """The part of the network that ``model.trainable`` names, in words.

    Example:
        >>> describe_trainable("all"), describe_trainable("last:1"), describe_trainable("last:2")
        ('all layers', 'head and last stage', 'head and last 2 stages')
    """
    text = {"all": "all layers", "head": "head only", "lora": "head and LoRA adapters", "last:1": "head and last stage"}
    return text.get(part) or f"head and last {part.removeprefix('last:')} stages"


def render_page(page: Page) -> str:
    """The page as HTML."""
    verdicts, metrics = _metrics(page.methods)
    return render(
        "report.html",
        title=page.title,
        facts=page.facts,
        verdicts=verdicts,
        metrics=metrics,
        charts=_charts(page.methods),
        examples=_examples(page.methods),
        with_centers=[method for method in page.methods if method.classes],
        hardest=_hardest_classes(page.methods),
    )


def _method_name(run: Run) -> str:
    loss = run.config.loss
    return loss.name if loss.centers_per_class == "auto" else f"{loss.name}, K = {loss.centers_per_class}"


def _method(name: str, run: Run) -> Method:
    centers = run.centers()
    queries = example_queries(
        run.test_embeddings, run.benchmark().test, num_queries=NUM_QUERIES, num_neighbors=NUM_NEIGHBORS
    )
    return Method(
        name=name,
        report=run.report,
        losses=tuple(entry["loss"] for entry in run.log),
        distinct_centers=() if centers is None else tuple(count_distinct(centers, MERGED).tolist()),
        queries=queries,
        classes=center_examples(run),
        baselines=run.baselines,
        held_out_recall=tuple((entry["epoch"], entry[HELD_OUT]) for entry in run.log if HELD_OUT in entry),
    )


# Tables


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


def _metrics(methods: Sequence[Method]) -> tuple[list[str], Table]:
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
        return warning, differences
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


def _hardest_classes(methods: Sequence[Method]) -> Table | None:
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


# Charts and examples


class Chart(NamedTuple):
    """A chart, the text below it, and samples of its lines with their names."""

    svg: Markup
    caption: str
    legend: list[tuple[Markup, str]]


def _charts(methods: Sequence[Method]) -> list[Chart]:
    charts = []
    losses = [method.losses for method in methods]
    if any(losses):
        caption = "Mean training loss of each epoch."
        if len(methods) > 1:
            caption += " Only methods with the same loss have comparable values."
        charts.append(Chart(loss_curves(losses), caption, _legend(methods, losses)))
    recalls = [method.held_out_recall for method in methods]
    if any(recalls):
        caption = "Recall@1 on held-out training classes."
        charts.append(Chart(recall_curves(recalls), caption, _legend(methods, recalls)))
    most = max((count for method in methods for count in method.distinct_centers), default=0)
    for place, method in enumerate(methods):
        if max(method.distinct_centers, default=1) > 1:  # one centre per class is not worth a chart
            caption = f"{method.name}: number of classes by number of distinct centres."
            charts.append(Chart(center_histogram(method.distinct_centers, most, place), caption, []))
    return charts


def _legend(methods: Sequence[Method], lines: Sequence[Sequence[object]]) -> list[tuple[Markup, str]]:
    if len(methods) == 1:
        return []
    return [(line_sample(n), method.name) for n, (method, line) in enumerate(zip(methods, lines, strict=True)) if line]


def _examples(methods: Sequence[Method]) -> list[tuple[Query, list[tuple[str, Sequence[object]]]]]:
    """Each query with the neighbours that every method finds for it."""
    shown = [method for method in methods if method.queries]
    return [
        (queries[0], [(method.name, query.neighbors) for method, query in zip(shown, queries, strict=True)])
        for queries in zip(*(method.queries for method in shown), strict=True)
    ]


def _same_queries(some: Sequence[Query], others: Sequence[Query]) -> bool:
    return len(some) == len(others) and all(
        one.class_name == other.class_name and np.array_equal(one.picture, other.picture)
        for one, other in zip(some, others, strict=True)
    )
