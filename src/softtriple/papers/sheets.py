"""Result sheets: a table with the settings behind it, as plain text, Markdown and a self-contained HTML page."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from softtriple.files import atomic_write, write_text
from softtriple.report.charts import png, svg
from softtriple.report.templating import data_url, render

Facts = tuple[tuple[str, str], ...]

NOTHING = "–"
INTERVAL = "95 % interval"


class Number(NamedTuple):
    """A share: the mean over seeds with their standard deviation, or the value of one run with its interval."""

    mean: float
    spread: float | None = None
    interval: tuple[float, float] | None = None
    values: tuple[float, ...] = ()  # one per seed

    @classmethod
    def of(cls, values: Iterable[float | None], interval: tuple[float, float] | None = None) -> "Number | None":
        """From one value per seed; ``interval`` is used if there is a single value. None if there are none."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        if len(known) == 1:
            return cls(known[0], interval=interval, values=(known[0],))
        return cls(statistics.mean(known), statistics.stdev(known), values=tuple(known))

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


def uncertainty_label(numbers: Iterable[Number | None]) -> str:
    """The label of the uncertainty of these numbers."""
    seeds = max((len(number.values) for number in numbers if number is not None), default=1)
    return INTERVAL if seeds < 2 else f"± standard deviation of {seeds} seeds"


def bars_caption(numbers: Iterable[Number | None]) -> str:
    """A caption for the error bars of these numbers."""
    label = uncertainty_label(numbers)
    # Runs on the same test classes vary together: bars may overlap although the difference is significant.
    shared = " over the choice of test classes, which all runs share" if label == INTERVAL else ""
    return f"bars: {label}{shared}"


def as_json(number: Number | None) -> dict[str, Any] | None:
    """The number as JSON values: shares, as in a report."""
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
    """A finished target: sheet, numbers, figure if there is one, and why nothing was run if so."""

    sheet: Sheet
    numbers: dict[str, Any] = field(default_factory=dict)
    figure: Figure | None = None
    lacking: str = ""


def write_result(result: Result, out: Path, name: str) -> tuple[Path, ...]:
    """Write ``name``.md and ``name``.html to ``out``, and the figure as SVG and PNG; returns the files."""
    drawn = {} if result.figure is None else {f"{name}.svg": svg(result.figure), f"{name}.png": png(result.figure)}
    for file, content in drawn.items():
        with atomic_write(out / file) as temporary:
            temporary.write_bytes(content)
    picture = f"{name}.svg" if drawn else None
    write_text(out / f"{name}.md", to_markdown(result.sheet, picture))
    write_text(out / f"{name}.html", to_html(result.sheet, drawn.get(f"{name}.svg")))
    return tuple(out / file for file in (f"{name}.md", f"{name}.html", *drawn))


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


def to_markdown(sheet: Sheet, picture: str | None = None) -> str:
    """The sheet for a repository; ``picture`` is the name of a file beside it."""
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
    if picture is not None:
        lines += ["", f"![{_escape_markdown(sheet.title)}]({picture})"]
    return "\n".join(lines).encode("utf-8", "replace").decode("utf-8") + "\n"


def to_html(sheet: Sheet, drawing: bytes | None = None) -> str:
    """The sheet as a page that needs no other file; ``drawing`` is the content of an SVG file."""
    picture = None if drawing is None else data_url(drawing, "image/svg+xml")
    return render("sheet.html", title=sheet.title, facts=sheet.facts, sheet=sheet, picture=picture)


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{character}" if character in "\\`*_|[]<>" else character for character in text)
