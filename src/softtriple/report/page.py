"""The report of a run, or of several methods on the same data: one HTML file without scripts or other files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from softtriple.data.sampling import Rows
from softtriple.errors import UserError
from softtriple.files import write_text
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.metrics import Calibration
from softtriple.report.calibration import describe
from softtriple.report.charts import center_histogram, gain_curves, line_sample, loss_curves, recall_curves
from softtriple.report.pictures import (
    Query,
    center_examples,
    example_queries,
    example_rows,
    telling_rows,
)
from softtriple.report.tables import Method, hardest_table, metrics_table, prefix_table
from softtriple.report.templating import render
from softtriple.training import Run
from softtriple.training.trials import Gain, read_gains

NUM_QUERIES, NUM_NEIGHBORS = 4, 5  # queries of each kind
REASONS = {
    "Most confident errors": "the nearest neighbour has another class and the highest similarity",
    "Hardest correct": "the nearest neighbour has the right class, with the smallest lead over another one",
}
HELD_OUT = "validation_recall@1"  # of a log entry


@dataclass(frozen=True, eq=False)
class Page:
    """Everything that a page shows; methods with example queries have the same ones.

    All methods are compared with the baselines of the first one.
    """

    title: str
    facts: tuple[tuple[str, str], ...]  # ("Data", "glyphs"), ("Command", "softtriple demo")
    methods: tuple[Method, ...]
    calibration: Calibration | None = None

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
    # Of the first run, so that all methods show the same queries.
    shown = telling_rows(first.test_embeddings, NUM_QUERIES)
    shown["Picked at random"] = example_rows(benchmark.test, NUM_QUERIES)
    page = Page(
        title=f"softtriple on {benchmark.name}",
        facts=(
            ("Data", "; ".join(benchmark.notes) or benchmark.name),
            ("Encoder", f"{model.backbone}, {model.dim} dimensions, trained: {describe_trainable(model.trainable)}"),
            ("Training", f"epochs: {train.epochs}, batch size {train.batch_size}, seed {train.seed}"),
            ("Command", command),
            *facts,
        ),
        methods=tuple(_method(name, run, shown) for name, run in named.items()),
        calibration=first.calibration if len(named) == 1 else None,
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
    verdicts, metrics = metrics_table(page.methods)
    return render(
        "report.html",
        title=page.title,
        facts=page.facts,
        verdicts=verdicts,
        metrics=metrics,
        prefixes=prefix_table(page.methods),
        charts=_charts(page.methods),
        calibration=None if page.calibration is None else describe(page.calibration),
        examples=_examples(page.methods),
        reasons=REASONS,
        several=len(page.methods) > 1,
        with_centers=[method for method in page.methods if method.classes],
        hardest=hardest_table(page.methods),
    )


def _method_name(run: Run) -> str:
    loss = run.config.loss
    return loss.name if loss.centers_per_class == "auto" else f"{loss.name}, K = {loss.centers_per_class}"


def _method(name: str, run: Run, shown: Mapping[str, Rows]) -> Method:
    centers = run.centers()
    queries = tuple(
        query
        for reason, rows in shown.items()
        for query in example_queries(
            run.test_embeddings, run.benchmark().test, rows=rows, num_neighbors=NUM_NEIGHBORS, reason=reason
        )
    )
    gains = () if run.directory is None else read_gains(run.directory.trials_file)
    train = run.config.train
    return Method(
        name=name,
        report=run.report,
        losses=tuple(entry["loss"] for entry in run.log),
        distinct_centers=() if centers is None else tuple(count_distinct(centers, MERGED).tolist()),
        queries=queries,
        classes=center_examples(run),
        baselines=run.baselines,
        prefixes={**run.prefixes, run.encoder.dim: run.report} if run.prefixes else {},
        held_out_recall=tuple((entry["epoch"], entry[HELD_OUT]) for entry in run.log if HELD_OUT in entry),
        gains=gains,
        chosen=next((one for one in gains if one[:2] == (train.stop_after, train.interpolate)), None),
    )


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
    for place, method in enumerate(methods):
        if method.gains:
            chart = _gain_chart(method, place)
            charts.append(chart if len(methods) == 1 else chart._replace(caption=f"{method.name}: {chart.caption}"))
    most = max((count for method in methods for count in method.distinct_centers), default=0)
    for place, method in enumerate(methods):
        if max(method.distinct_centers, default=1) > 1:  # one centre per class is not worth a chart
            caption = f"{method.name}: number of classes by number of distinct centres."
            charts.append(Chart(center_histogram(method.distinct_centers, most, place), caption, []))
    return charts


def _gain_chart(method: Method, place: int) -> Chart:
    shares = sorted({one.share for one in method.gains if one.epoch})
    lines = [[(0, 0.0), *((one.epoch, one.recall) for one in method.gains if one.share == share)] for share in shares]
    caption = (
        "Recall@1 on held-out training classes, in points above the start: the mean of the trials that decided how "
        f"long to train, and how far to move from the start to the trained head. {_choice(method.chosen)}"
    )
    legend = [(line_sample(number), f"{100 * share:.0f} % of the way") for number, share in enumerate(shares)]
    return Chart(gain_curves(lines, place), caption, legend)


def _choice(chosen: Gain | None) -> str:
    if chosen is None:
        return ""
    if not chosen.epoch:
        return "Chosen: the start, as no training helped in every trial."
    return f"Chosen: epoch {chosen.epoch}, {100 * chosen.share:.0f} % of the way ({100 * chosen.recall:+.1f} points)."


def _legend(methods: Sequence[Method], lines: Sequence[Sequence[object]]) -> list[tuple[Markup, str]]:
    if len(methods) == 1:
        return []
    return [(line_sample(n), method.name) for n, (method, line) in enumerate(zip(methods, lines, strict=True)) if line]


Example = tuple[Query, list[tuple[str, Sequence[object]]]]


def _examples(methods: Sequence[Method]) -> list[tuple[str, list[Example]]]:
    """Each query with the neighbours that every method finds for it, by the reason why it is shown."""
    shown = [method for method in methods if method.queries]
    examples = [
        (queries[0], [(method.name, query.neighbors) for method, query in zip(shown, queries, strict=True)])
        for queries in zip(*(method.queries for method in shown), strict=True)
    ]
    return [(reason, list(some)) for reason, some in groupby(examples, key=lambda example: example[0].reason)]


def _same_queries(some: Sequence[Query], others: Sequence[Query]) -> bool:
    return len(some) == len(others) and all(
        one.class_name == other.class_name and np.array_equal(one.picture, other.picture)
        for one, other in zip(some, others, strict=True)
    )
