"""Tables 1 to 6: every row, trained here, beside the published numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from softtriple.config import Config
from softtriple.losses import LOSSES
from softtriple.metrics import Report
from softtriple.papers.published import PublishedRow, PublishedTable
from softtriple.papers.recipes import recipe
from softtriple.papers.runs import Study, departures, make_result, measure, report_of, select
from softtriple.papers.sheets import NOTHING, Block, Facts, Line, Number, Result, as_json, uncertainty_label

PAPER = (
    "bn-inception with ImageNet weights, 224 pixels, all layers, 50 epochs; rows above SoftMax_norm as reported by the"
    " methods' own papers"
)
UNPUBLISHED = ("MAP@R",)  # measured here in addition
# Not in the paper (seeds, cached views), or shown elsewhere on the sheet (the data).
UNCOMPARED = ("dataset ", "train.seed ", "train.views ")


def make_table(table: PublishedTable, study: Study, wanted: Sequence[str] | None) -> Result:
    """Run the rows of ``table`` that are ``wanted``; rows that are not run show their published numbers alone.

    Losses that the table does not have become rows of their own, without published numbers.
    """
    table = replace(table, rows=(*table.rows, *_more_rows(table, wanted or ())))
    chosen = select({row.name: recipe(table, row) for row in table.rows}, wanted)
    measured = measure(study, chosen, report_of)
    columns = (*table.columns, *UNPUBLISHED)
    ours = {name: {column: metric_number(row.values, column) for column in columns} for name, row in measured.items()}
    return make_result(
        study,
        measured,
        title=f"Table {table.name.removeprefix('table')}: {table.caption}",
        columns=columns,
        blocks=[_block(row, ours.get(row.name)) for row in table.rows],
        notes=(
            "In per cent. ± is the standard deviation over seeds; intervals are over the choice of test classes.",
            *(f"{row.method}: {row.note}." for row in table.rows if row.note),
        ),
        numbers={
            row.name: {
                "published": dict(zip(table.columns, row.values, strict=True)),
                "ours": {column: as_json(value) for column, value in ours[row.name].items()},
                "lacking": measured[row.name].lacking,
            }
            for row in table.rows
            if row.name in ours
        },
        more_facts=(
            ("Published", PAPER),
            *_departures(study, table, {name: chosen[name] for name, row in measured.items() if row.values}),
        ),
    )


def _more_rows(table: PublishedTable, wanted: Sequence[str]) -> list[PublishedRow]:
    """A row for each loss that is ``wanted`` and not in ``table``, with the dimension of SoftTriple's."""
    (dim,) = (row.dim for row in table.rows if row.loss == "softtriple")
    present = {row.loss for row in table.rows}
    values = (None,) * len(table.columns)
    return [
        PublishedRow(loss, method=loss, dim=dim, values=values, note="not in the paper's table")
        for loss in dict.fromkeys(wanted)
        if loss in LOSSES and loss not in present
    ]


def metric_number(reports: Sequence[Report], column: str) -> Number | None:
    """The metric in a column of the tables, from one report per seed; None if no report has it."""
    if column == "NMI":
        return Number.of(report.nmi for report in reports)
    intervals = reports[0].intervals if reports else {}
    if column == "MAP@R":
        return Number.of((report.map_at_r for report in reports), intervals.get("map_at_r"))
    k = int(column.removeprefix("R@"))
    return Number.of((report.recall.get(k) for report in reports), intervals.get(f"recall@{k}"))


def _block(row: PublishedRow, ours: Mapping[str, Number | None] | None) -> Block:
    published = (*row.values, *(None for _ in UNPUBLISHED))
    lines = [Line("published", tuple(NOTHING if value is None else f"{value:.1f}" for value in published))]
    if ours is not None:
        numbers = list(ours.values())
        lines.append(Line("ours", tuple(NOTHING if n is None else n.percent for n in numbers), strong=True))
        if any(numbers):
            lines += [
                Line(uncertainty_label(numbers), tuple(NOTHING if n is None else n.uncertainty for n in numbers)),
                Line("difference", tuple(map(_difference, numbers, published))),
            ]
    return Block(f"{row.method}, {row.dim}", tuple(lines))


def _difference(ours: Number | None, published: float | None) -> str:
    if ours is None or published is None:
        return NOTHING
    # From the rounded numbers, so that a reader who subtracts them gets the same.
    return f"{float(ours.percent) - published:+.1f}".replace("-", "−")


def _departures(study: Study, table: PublishedTable, ran: Mapping[str, Config]) -> Facts:
    """Every setting in which the runs differ from the paper."""
    changed: list[str] = []
    data = Path(study.data.partition(":")[0]).name
    if data != table.data.name:
        changed.append(f"data: {data}, not {table.data.name}")
    for name, config in ran.items():
        used = study.directory(name, 0).read_config()
        changed += [text for text in departures(config, used) if not text.startswith(UNCOMPARED)]
    return (("Not the paper's", "; ".join(dict.fromkeys(changed))),) if changed else ()
