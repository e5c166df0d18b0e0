"""Tables 1 to 6: every row trained here, beside its published numbers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softtriple.config import Config
from softtriple.metrics import Report
from softtriple.papers.published import PublishedRow, PublishedTable
from softtriple.papers.recipes import recipe
from softtriple.papers.results import Result
from softtriple.papers.runs import (
    Facts,
    Measured,
    Study,
    differences,
    facts,
    lacking_notes,
    measure,
    nothing_ran,
    report_of,
    select,
)
from softtriple.papers.sheets import MINUS, NOTHING, Block, Line, Number, Sheet, as_json, number, uncertainty_label

PAPER = (
    "bn-inception with ImageNet weights, 224 pixels, all layers for 50 epochs; rows above SoftMax_norm are those of the"
    " methods' own papers"
)
UNPUBLISHED = ("MAP@R",)  # measured here besides
# What the paper does not state: its data are named above, and it has neither seeds nor cached views.
UNCOMPARED = ("dataset ", "train.seed ", "train.views ")


def make_table(table: PublishedTable, study: Study, wanted: Sequence[str] | None) -> Result:
    """Run the rows of ``table`` that are ``wanted``, and lay them beside the published ones, which all appear."""
    recipes = {row.name: recipe(table, row) for row in table.rows}
    chosen = select(recipes, wanted)
    measured = measure(study, chosen, report_of)
    columns = (*table.columns, *UNPUBLISHED)
    ours = {name: {column: _number(found.values, column) for column in columns} for name, found in measured.items()}
    sheet = Sheet(
        title=f"Table {table.name.removeprefix('table')}: {table.caption}",
        facts=(
            *facts(study, measured),
            ("Published", PAPER),
            *_departures(study, table, {name: chosen[name] for name, found in measured.items() if found.values}),
        ),
        columns=columns,
        blocks=tuple(_block(row, ours.get(row.name)) for row in table.rows),
        notes=_notes(table, measured),
    )
    return Result(sheet, numbers=_as_json(table, ours, measured), lacking=nothing_ran(measured))


def _number(reports: Sequence[Report], column: str) -> Number | None:
    if column == "NMI":
        return number(report.nmi for report in reports)
    # Of several seeds the spread is shown; the interval of one is over the choice of test classes.
    intervals = reports[0].intervals if reports else {}
    if column == "MAP@R":
        return number((report.map_at_r for report in reports), intervals.get("map_at_r"))
    k = int(column.removeprefix("R@"))
    return number((report.recall.get(k) for report in reports), intervals.get(f"recall@{k}"))


def _block(row: PublishedRow, ours: Mapping[str, Number | None] | None) -> Block:
    published = (*row.values, *(None for _ in UNPUBLISHED))
    lines = [Line("published", tuple(NOTHING if value is None else f"{value:.1f}" for value in published))]
    if ours is not None:
        found = list(ours.values())
        lines.append(Line("ours", tuple(NOTHING if n is None else n.percent for n in found), strong=True))
        if any(found):
            lines += [
                Line(uncertainty_label(found), tuple(NOTHING if n is None else n.uncertainty for n in found)),
                Line("difference", tuple(map(_difference, found, published))),
            ]
    return Block(f"{row.method}, {row.dim}", tuple(lines))


def _difference(ours: Number | None, published: float | None) -> str:
    if ours is None or published is None:
        return NOTHING
    # Of the numbers as they are shown, so that a reader's subtraction agrees.
    return f"{float(ours.percent) - published:+.1f}".replace("-", MINUS)


def _departures(study: Study, table: PublishedTable, ran: Mapping[str, Config]) -> Facts:
    """In what the runs are not the paper's, setting by setting."""
    changed: list[str] = []
    data = Path(study.data.partition(":")[0]).name
    if data != table.data.name:
        changed.append(f"data: {data}, not {table.data.name}")
    for name, asked in ran.items():
        found = differences(asked, study.run_dir(name, 0).read_config())
        changed += [text for text in found if not text.startswith(UNCOMPARED) and text not in changed]
    return (("Not the paper's", "; ".join(changed)),) if changed else ()


def _notes(table: PublishedTable, measured: Mapping[str, Measured[Report]]) -> tuple[str, ...]:
    notes = ["In per cent. ± is a standard deviation over seeds; an interval is over the choice of test classes."]
    notes += [f"{row.method}: {row.note}." for row in table.rows if row.note]
    return (*notes, *lacking_notes(measured))


def _as_json(
    table: PublishedTable, ours: Mapping[str, Mapping[str, Number | None]], measured: Mapping[str, Measured[Report]]
) -> dict[str, Any]:
    return {
        row.name: {
            "published": dict(zip(table.columns, row.values, strict=True)),
            "ours": {column: as_json(found) for column, found in ours[row.name].items()},
            "lacking": measured[row.name].lacking,
        }
        for row in table.rows
        if row.name in ours
    }
