"""The page of a run, or of several methods on the same data: one HTML file that needs no server, script or network.

`render_page` is a pure function from a `Page` to a string. All text in a page may come from file names and tables of
the user, so it reaches the HTML through `_text` and nowhere else.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from io import BytesIO

import numpy as np
from jaxtyping import UInt8
from PIL import Image as PillowImage

from softtriple.metrics import Report
from softtriple.report.charts import center_histogram, line_sample, loss_curves

Image = UInt8[np.ndarray, "height width 3"]

_STYLE = files("softtriple.report").joinpath("page.css").read_text("utf-8")


@dataclass(frozen=True, eq=False)
class Found:
    """One retrieved item."""

    picture: Image | str  # pixels, or a short text where the data are texts or vectors
    class_name: str
    score: float
    same_class: bool


@dataclass(frozen=True, eq=False)
class Retrieved:
    """One query and its nearest neighbours, best first."""

    picture: Image | str
    class_name: str
    found: tuple[Found, ...]


@dataclass(frozen=True, eq=False)
class CenterGroup:
    """The items of a class that are nearest to one of its centres, merged ones counted as one."""

    count: int  # how many training items fall to it
    pictures: tuple[Image | str, ...]  # a few of them


@dataclass(frozen=True, eq=False)
class ClassCenters:
    """What the centres of one class stand for."""

    class_name: str
    distinct: int  # how many it has left; one that is nearest to no item has no group
    groups: tuple[CenterGroup, ...]


@dataclass(frozen=True, eq=False)
class Method:
    """One trained model and what it does on the data of the page."""

    name: str
    report: Report
    losses: tuple[float, ...]  # mean training loss of each epoch
    distinct_centers: tuple[int, ...]  # for each class; () where the loss has no centres
    retrieved: tuple[Retrieved, ...]
    classes: tuple[ClassCenters, ...] = ()


@dataclass(frozen=True, eq=False)
class Page:
    """All that a page shows; methods that show retrieved examples show them for the same queries."""

    title: str
    facts: tuple[tuple[str, str], ...]  # ("data", "glyphs"), ("command", "softtriple demo")
    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("methods: a page shows at least one, got none")
        first, *others = [method for method in self.methods if method.retrieved] or self.methods[:1]
        for other in others:
            if not _same_queries(first.retrieved, other.retrieved):
                raise ValueError(f"retrieved: {other.name!r} must show the queries of {first.name!r}, in their order")


def render_page(page: Page) -> str:
    """The page as HTML."""
    sections = (
        _metrics(page.methods),
        _training(page.methods),
        _retrieved(page.methods),
        _centers(page.methods),
        _hardest_classes(page.methods),
    )
    return html_page(page.title, page.facts, "".join(sections))


def html_page(title: str, facts: Sequence[tuple[str, str]], main: str) -> str:
    """A page that needs no other file and may load none: title and facts at its head, and ``main``, which is HTML."""
    told = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
{f"<dl>{told}</dl>" if told else ""}
</header>
<main>
{main}</main>
</body>
</html>
"""


# Numbers


def _metrics(methods: Sequence[Method]) -> str:
    reports = [method.report for method in methods]
    rows: list[tuple[str, str, list[float | None]]] = [
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
    body = [
        _row(title, _shares(shares, [_uncertainty(report, name) for report in reports]))
        for title, name, shares in rows
        if any(share is not None for share in shares)
    ]
    if any(method.distinct_centers for method in methods):
        means = [f"{np.mean(m.distinct_centers):.1f}" if m.distinct_centers else "–" for m in methods]
        body.append(_row("Distinct centres per class", means))
    explanation = f"Per cent, for {'; '.join(dict.fromkeys(map(_what_was_evaluated, reports)))}."
    if len(methods) > 1:
        explanation += " The best of a row is bold."
    if any(report.intervals for report in reports):
        explanation += " Small print: 95 % interval over the choice of test classes."
    if any(_uncertainty(report, "nmi") for report in reports):
        explanation += " Small print of NMI and AMI: spread over runs of k-means."
    return _section("Retrieval and clustering", explanation, _table("", [method.name for method in methods], body))


def _what_was_evaluated(report: Report) -> str:
    text = f"{report.num_queries} queries of {report.num_classes} classes against {report.num_gallery} items"
    if report.num_without_positives:
        text += f", {report.num_without_positives} left out that have no other item of their class"
    if report.num_zero_vectors:
        text += f", {report.num_zero_vectors} vectors being zero"
    return text


def _uncertainty(report: Report, name: str) -> str:
    if name in report.intervals:
        low, high = report.intervals[name]
        return f"{_percent(low)} to {_percent(high)}"
    if name in ("nmi", "ami") and report.kmeans is not None:
        spread = report.kmeans.nmi_spread if name == "nmi" else report.kmeans.ami_spread
        return "" if spread is None else f"spread {_percent(spread)}"
    return ""


_NUM_HARDEST = 10


def _hardest_classes(methods: Sequence[Method]) -> str:
    tables = [method.report.recall_per_class for method in methods]
    names = {name for table in tables for name in table}
    if not names:
        return ""
    mean = {name: float(np.mean([table[name] for table in tables if name in table])) for name in names}
    hardest = sorted(names, key=lambda name: (mean[name], name))[:_NUM_HARDEST]
    ranks = sorted({min(method.report.recall) for method in methods if method.report.recall_per_class})
    return _section(
        "Hardest classes",
        f"Recall@{' or '.join(map(str, ranks))} in per cent: the {len(hardest)} lowest of {len(names)} classes"
        + (", by the mean of the methods." if len(methods) > 1 else "."),
        _table(
            "Class",
            [method.name for method in methods],
            [_row(name, _shares([table.get(name) for table in tables])) for name in hardest],
        ),
    )


def _shares(shares: Sequence[float | None], notes: Sequence[str] | None = None) -> list[str]:
    """Table cells in per cent, each with its note in small print; among several, the best as shown are bold."""
    shown = [None if share is None else _percent(share) for share in shares]
    known = [share for share in shares if share is not None]
    best = _percent(max(known)) if len(known) > 1 else None
    cells = []
    for number, note in zip(shown, notes or [""] * len(shown), strict=True):
        cell = "–" if number is None else f"<strong>{number}</strong>" if number == best else number
        cells.append(f"{cell} <small>{note}</small>" if note else cell)
    return cells


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _table(corner: str, columns: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in columns)
    first = f'<th scope="col">{corner}</th>' if corner else "<td></td>"
    # The frame can be scrolled, so it takes the keyboard's focus.
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{first}{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(title: str, cells: Sequence[str]) -> str:
    return f'<tr><th scope="row">{_text(title)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


# Curves


def _training(methods: Sequence[Method]) -> str:
    charts = []
    if any(method.losses for method in methods):
        caption = "Mean training loss of each epoch."
        if len(methods) > 1:
            caption += f" Compare heights only between methods with the same loss.{_legend(methods)}"
        charts.append(_figure(loss_curves([method.losses for method in methods]), caption))
    most = max((count for method in methods for count in method.distinct_centers), default=0)
    for place, method in enumerate(methods):
        if max(method.distinct_centers, default=1) > 1:  # one centre per class makes no picture
            caption = f"{_text(method.name)}: classes by the number of centres they have left after merging."
            charts.append(_figure(center_histogram(method.distinct_centers, most, place), caption))
    return _section("Training", "", f'<div class="charts">{"".join(charts)}</div>') if charts else ""


def _legend(methods: Sequence[Method]) -> str:
    entries = [
        f"<li>{line_sample(place)}{_text(method.name)}</li>" for place, method in enumerate(methods) if method.losses
    ]
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _figure(chart: str, caption: str) -> str:
    return f"<figure>{chart}<figcaption>{caption}</figcaption></figure>"


# Items


def _retrieved(methods: Sequence[Method]) -> str:
    shown = [method for method in methods if method.retrieved]
    rows = []
    for answers in zip(*(method.retrieved for method in shown), strict=True):
        query = answers[0]
        lists = "".join(_neighbors(method.name, answer) for method, answer in zip(shown, answers, strict=True))
        rows.append(
            f'<li><figure class="query">{_item(query.picture, f"Query: {query.class_name}")}'
            f"<figcaption>{_name(query.class_name)}</figcaption></figure>"
            f'<div class="answers">{lists}</div></li>'
        )
    explanation = (
        "A query, then its nearest neighbours, best first, with their similarity. "
        "Those of another class than the query's have a red frame, a ✗ and their class."
    )
    return _section("Retrieved examples", explanation, f'<ol class="queries">{"".join(rows)}</ol>') if rows else ""


def _neighbors(method_name: str, answer: Retrieved) -> str:
    right = sum(found.same_class for found in answer.found)
    heading = f"{_text(method_name)} <small>{right} of {len(answer.found)} right</small>"
    items = "".join(map(_neighbor, answer.found))
    return f'<div><h3>{heading}</h3><ol class="items">{items}</ol></div>'


def _neighbor(found: Found) -> str:
    if found.same_class:
        picture = _item(found.picture, f"Same class: {found.class_name}")
        return f"<li>{picture}<small>{found.score:.2f}</small></li>"
    picture = _item(found.picture, f"Wrong class: {found.class_name}")
    mark = f'<b title="{_text(found.class_name)}">✗&nbsp;{_name(found.class_name)}</b>'
    return f'<li class="wrong">{picture}<small>{found.score:.2f} {mark}</small></li>'


def _centers(methods: Sequence[Method]) -> str:
    shown = [method for method in methods if method.classes]
    content = ""
    for method in shown:
        cards = "".join(_class_card(class_centers) for class_centers in method.classes)
        content += f'<h3>{_text(method.name)}</h3><div class="cards">{cards}</div>'
    explanation = "Training items by the centre of their class that is nearest to them; a few of each."
    return _section("Centres of some classes", explanation, content) if shown else ""


def _class_card(class_centers: ClassCenters) -> str:
    groups = []
    for number, group in enumerate(class_centers.groups, start=1):
        pictures = "".join(f"<li>{_item(picture, class_centers.class_name)}</li>" for picture in group.pictures)
        items = f'<ul class="items">{pictures}</ul>' if pictures else ""
        groups.append(f"<li><small>Centre {number}: {_count(group.count, 'item')}</small>{items}</li>")
    holding, distinct = len(class_centers.groups), class_centers.distinct
    centers = f"{holding} of {distinct} distinct centres hold items" if distinct > 1 else "1 distinct centre"
    heading = f"{_text(class_centers.class_name)} <small>{centers}</small>"
    return f'<article><h4>{heading}</h4><ol class="groups">{"".join(groups)}</ol></article>'


_FEW_PIXELS = 48  # pictures up to this side show their pixels as squares
_THUMBNAIL = 96  # larger pictures are reduced to this side


def _item(picture: Image | str, description: str) -> str:
    if isinstance(picture, str):
        return f'<p class="text">{_text(picture)}</p>'
    image = PillowImage.fromarray(picture)
    if max(image.size) <= _FEW_PIXELS:
        style, side, source = "pixels", _FEW_PIXELS, _data_url(image, "png")
    else:
        image.thumbnail((_THUMBNAIL, _THUMBNAIL))
        # PNG is the smaller one for drawings, JPEG for photos.
        smaller = min(_data_url(image, "png"), _data_url(image, "jpeg"), key=len)
        style, side, source = "photo", 3 * _THUMBNAIL // 4, smaller  # sharp on dense screens
    return f'<img class="{style}" width="{side}" height="{side}" alt="{_text(description)}" src="{source}">'


def _data_url(image: PillowImage.Image, kind: str) -> str:
    buffer = BytesIO()
    image.save(buffer, kind, optimize=True)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


# Parts of the above


def _section(title: str, explanation: str, content: str) -> str:
    paragraph = f"<p>{explanation}</p>" if explanation else ""
    return f"<section><h2>{title}</h2>{paragraph}{content}</section>\n"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _text(text: str) -> str:
    """Text of any origin made safe for HTML, also as an attribute and also where it cannot be written as UTF-8."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def _name(text: str) -> str:
    """The name of a class, which may break after an underscore to fit under its picture."""
    return _text(text).replace("_", "_<wbr>")


def _same_queries(some: Sequence[Retrieved], others: Sequence[Retrieved]) -> bool:
    return len(some) == len(others) and all(
        one.class_name == other.class_name and np.array_equal(one.picture, other.picture)
        for one, other in zip(some, others, strict=True)
    )
