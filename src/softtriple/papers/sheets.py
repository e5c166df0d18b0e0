"""A sheet: a table with facts on how it was made, as plain text, Markdown and a self-contained HTML page."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from softtriple.files import atomic_write, write_text
from softtriple.report.charts import png, svg
from softtriple.report.templating import data_url, render

Facts = tuple[tuple[str, str], ...]

NOTHING = "–"
MINUS = "\N{MINUS SIGN}"
INTERVAL = "95 % interval"


class Number(NamedTuple):
    """A share: the mean over seeds with their standard deviation, or the value of one run with its interval."""

    mean: float
    spread: float | None = None
    interval: tuple[float, float] | None = None
    values: tuple[float, ...] = ()  # one per seed

    @property
    def percent(self) -> str:
        """The mean in per cent."""
        return f"{100 * self.mean:.1f}"

    @property
    def uncertainty(self) -> str:
        """The standard deviation or the interval in per cent, or a dash."""
        if self.spread is not None:
            return f"{100 * self.spread:.1f}"
        if self.interval is None:
            return NOTHING
        low, high = self.interval
        return f"{100 * low:.1f}–{100 * high:.1f}"

    @property
    def reach(self) -> tuple[float, float]:
        """How far the uncertainty reaches below and above the mean."""
        if self.interval is not None:
            return self.mean - self.interval[0], self.interval[1] - self.mean
        return self.spread or 0.0, self.spread or 0.0


def number(values: Iterable[float | None], interval: tuple[float, float] | None = None) -> Number | None:
    """The number made of one value per seed; ``interval`` belongs to a single value. None if there is no value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Number(known[0], interval=interval, values=(known[0],))
    return Number(statistics.mean(known), statistics.stdev(known), values=tuple(known))


def uncertainty_label(numbers: Iterable[Number | None]) -> str:
    """What the uncertainty of these numbers is, as the label of a line."""
    seeds = max((len(number.values) for number in numbers if number is not None), default=1)
    return INTERVAL if seeds < 2 else f"± standard deviation of {seeds} seeds"


def bars_caption(numbers: Iterable[Number | None]) -> str:
    """What the error bars of a figure of these numbers show."""
    label = uncertainty_label(numbers)
    # Runs with the same test classes vary together: their bars may overlap although the runs differ.
    shared = " over the choice of test classes, which all runs share" if label == INTERVAL else ""
    return f"bars: {label}{shared}"


def as_json(number: Number | None) -> dict[str, Any] | None:
    """The number for programs: shares, as in a report."""
    return None if number is None else number._asdict()


@dataclass(frozen=True)
class Line:
    """A line of cells; ``strong`` for the lines that matter most."""

    label: str
    cells: tuple[str, ...]
    strong: bool = False


@dataclass(frozen=True)
class Block:
    """Lines under one title."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Sheet:
    """A table: facts on how it was made, blocks of lines, and notes below."""

    title: str
    facts: Facts
    columns: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Result:
    """A finished target: its sheet, its numbers, its figure if it has one, and why nothing was run if nothing was."""

    sheet: Sheet
    numbers: dict[str, Any] = field(default_factory=dict)
    figure: Figure | None = None
    lacking: str = ""


def write_result(result: Result, out: Path, name: str) -> tuple[Path, ...]:
    """Write ``name``.md and ``name``.html to ``out``, and the figure as SVG and PNG; returns the files."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {kind: out / f"{name}.{kind}" for kind in ("md", "html", "svg", "png")}
    if result.figure is None:
        write_text(paths["md"], to_markdown(result.sheet))
        write_text(paths["html"], to_html(result.sheet))
        return paths["md"], paths["html"]
    drawing = svg(result.figure)
    for kind, content in (("svg", drawing), ("png", png(result.figure))):
        with atomic_write(paths[kind]) as temporary:
            temporary.write_bytes(content)
    write_text(paths["md"], to_markdown(result.sheet, [paths["svg"].name]))
    write_text(paths["html"], to_html(result.sheet, [drawing]))
    return tuple(paths.values())


def to_text(sheet: Sheet) -> str:
    """The sheet for a terminal."""
    rows = [("", "", *sheet.columns)]
    for block in sheet.blocks:
        for place, line in enumerate(block.lines):
            rows.append((block.title if place == 0 else "", line.label, *line.cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    width = max((len(name) for name, _ in sheet.facts), default=0) + 2
    facts = [f"{name:<{width}}{value}" for name, value in sheet.facts]
    return "\n".join([sheet.title, "", *facts, "", *table, *([""] if sheet.notes else []), *sheet.notes])


def to_markdown(sheet: Sheet, pictures: Sequence[str] = ()) -> str:
    """The sheet for a repository; ``pictures`` are names of files beside it."""
    lines = [f"# {_escape_markdown(sheet.title)}", ""]
    lines += [f"- {name}: {_escape_markdown(value)}" for name, value in sheet.facts]
    lines += ["", f"| | | {' | '.join(sheet.columns)} |", f"|---|---|{'---:|' * len(sheet.columns)}"]
    for block in sheet.blocks:
        for place, line in enumerate(block.lines):
            cells = [f"**{cell}**" if line.strong and cell != NOTHING else cell for cell in line.cells]
            title = _escape_markdown(block.title) if place == 0 else ""
            lines.append(f"| {title} | {line.label} | {' | '.join(cells)} |")
    for note in sheet.notes:
        lines += ["", _escape_markdown(note)]
    for name in pictures:
        lines += ["", f"![{_escape_markdown(sheet.title)}]({name})"]
    return "\n".join(lines).encode("utf-8", "replace").decode("utf-8") + "\n"


def to_html(sheet: Sheet, pictures: Sequence[bytes] = ()) -> str:
    """The sheet as a page that needs no other file; ``pictures`` are contents of SVG files."""
    urls = [data_url(picture, "image/svg+xml") for picture in pictures]
    return render("sheet.html", title=sheet.title, facts=sheet.facts, sheet=sheet, pictures=urls)


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_|[]<>" else character for character in text)
