"""A sheet: a table with a head that says how it was made, as plain text, Markdown and a self-contained HTML page."""

import base64
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from softtriple.papers.runs import Facts
from softtriple.report.page import html_page

NOTHING = "–"
MINUS = "\N{MINUS SIGN}"
INTERVAL = "95 % interval"


class Number(NamedTuple):
    """A share: its mean over seeds with their standard deviation, or of one run with an interval if that has one."""

    mean: float
    spread: float | None = None
    interval: tuple[float, float] | None = None
    values: tuple[float, ...] = ()  # of each seed

    @property
    def percent(self) -> str:
        """The mean in per cent."""
        return f"{100 * self.mean:.1f}"

    @property
    def uncertainty(self) -> str:
        """The standard deviation or the interval in per cent, where there is one."""
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
    """The number that one value for each seed makes; ``interval`` is that of a single one. None without any value."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if len(known) == 1:
        return Number(known[0], interval=interval, values=(known[0],))
    return Number(statistics.mean(known), statistics.stdev(known), values=tuple(known))


def uncertainty_label(numbers: Iterable[Number | None]) -> str:
    """What the uncertainty of these numbers is, as the label of a line."""
    seeds = max((len(found.values) for found in numbers if found is not None), default=1)
    return INTERVAL if seeds < 2 else f"± standard deviation of {seeds} seeds"


def bars_caption(numbers: Iterable[Number | None]) -> str:
    """What the bars of a figure of these numbers show."""
    label = uncertainty_label(numbers)
    # Runs with the same test classes rise and fall together: such bars may overlap and the runs still differ.
    shared = " over the choice of test classes, which all runs share" if label == INTERVAL else ""
    return f"bars: {label}{shared}"


def as_json(found: Number | None) -> dict[str, Any] | None:
    """The number for programs: shares, as in a report."""
    return None if found is None else found._asdict()


@dataclass(frozen=True)
class Line:
    """One line of cells; ``strong`` for those that are the point of the table."""

    label: str
    cells: tuple[str, ...]
    strong: bool = False


@dataclass(frozen=True)
class Block:
    """Lines that belong together."""

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


def to_text(sheet: Sheet) -> str:
    """For a terminal."""
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
    told = [f"{name:<{width}}{value}" for name, value in sheet.facts]
    return "\n".join([sheet.title, "", *told, "", *table, *([""] if sheet.notes else []), *sheet.notes])


def to_markdown(sheet: Sheet, pictures: Sequence[str] = ()) -> str:
    """For a repository; ``pictures`` are names of files beside it."""
    lines = [f"# {_marked(sheet.title)}", ""]
    lines += [f"- {name}: {_marked(value)}" for name, value in sheet.facts]
    lines += ["", f"| | | {' | '.join(sheet.columns)} |", f"|---|---|{'---:|' * len(sheet.columns)}"]
    for block in sheet.blocks:
        for place, line in enumerate(block.lines):
            cells = [f"**{cell}**" if line.strong and cell != NOTHING else cell for cell in line.cells]
            title = _marked(block.title) if place == 0 else ""
            lines.append(f"| {title} | {line.label} | {' | '.join(cells)} |")
    for note in sheet.notes:
        lines += ["", _marked(note)]
    for name in pictures:
        lines += ["", f"![{_marked(sheet.title)}]({name})"]
    return "\n".join(lines) + "\n"


def to_html(sheet: Sheet, pictures: Sequence[bytes] = ()) -> str:
    """A page that needs no other file; ``pictures`` are contents of SVG files."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in sheet.columns)
    body = "".join(map(_html_block, sheet.blocks))
    notes = "".join(f"<p><small>{escape(note)}</small></p>" for note in sheet.notes)
    drawn = "".join(
        f'<figure><img style="max-width: 100%; background: #fff" alt="{escape(sheet.title)}"'
        f' src="data:image/svg+xml;base64,{base64.b64encode(picture).decode("ascii")}"></figure>'
        for picture in pictures
    )
    table = f"<table><thead><tr><td></td><td></td>{head}</tr></thead>{body}</table>"
    section = f'<section>\n<div class="scroll" tabindex="0">{table}</div>\n{notes}\n</section>\n'
    return html_page(sheet.title, sheet.facts, f"{section}{drawn}\n")


def _html_block(block: Block) -> str:
    rows = []
    for place, line in enumerate(block.lines):
        title = f'<th scope="rowgroup" rowspan="{len(block.lines)}">{escape(block.title)}</th>' if place == 0 else ""
        mark = ("<strong>", "</strong>") if line.strong else ("", "")
        cells = "".join(f"<td>{mark[0]}{escape(cell)}{mark[1]}</td>" for cell in line.cells)
        rows.append(f'<tr>{title}<th scope="row"><small>{escape(line.label)}</small></th>{cells}</tr>')
    return f"<tbody>{''.join(rows)}</tbody>"


def _marked(text: str) -> str:
    """Text with those characters escaped that Markdown reads as marks."""
    return "".join(f"\\{character}" if character in "\\`*_|[]<>" else character for character in text)
