"""Charts: one style, the charts inside the report page, and figures as SVG and PNG files."""

import base64
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from softtriple.errors import counted

# Okabe and Ito's colours, which colour-blind people tell apart and which show on white and on black. Dashes, markers
# and crosses carry the same information without colour.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 2.0), (1.0, 1.5), (6.0, 2.0, 1.0, 2.0))  # in widths of the line

STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a "$" in the name of a class is a dollar
    "svg.fonttype": "none",
    "svg.hashsalt": "softtriple",  # the same figure twice gives the same file
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
}
_INK = "#010203"  # stands for the colour of the text around a chart
ON_PAGE: dict[Any, Any] = {
    **STYLE,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "font.size": 11,
    "grid.color": _INK,
    "grid.alpha": 0.15,
}
PAGE_INCHES = (5.0, 3.2)


# Charts inside a page: SVG elements that take the colour of its text


def loss_curves(losses: Sequence[Sequence[float]]) -> Markup:
    """The loss by epoch, one line per method."""
    return _curves([list(enumerate(values, 1)) for values in losses], "losses", "mean loss", "Training loss by epoch")


def recall_curves(recalls: Sequence[Sequence[tuple[int, float]]]) -> Markup:
    """Recall@1 on held-out classes in per cent, one line of epochs and shares per method."""
    lines = [[(epoch, 100 * share) for epoch, share in recall] for recall in recalls]
    return _curves(lines, "recalls", "Recall@1 (%)", "Recall@1 on held-out classes by epoch")


def gain_curves(gains: Sequence[Sequence[tuple[int, float]]], place: int) -> Markup:
    """What held-out classes gain in Recall@1 over the start; one line of epochs and gains per share of the way."""
    lines = [[(epoch, 100 * gain) for epoch, gain in line] for line in gains]
    description = "Gain in Recall@1 on held-out classes by epoch"
    return _curves(lines, f"gains-{place}", "Recall@1, points above start", description)


def _curves(lines: Sequence[Sequence[tuple[int, float]]], name: str, ylabel: str, description: str) -> Markup:
    with matplotlib.rc_context(ON_PAGE):
        figure = Figure(figsize=PAGE_INCHES, layout="constrained")
        axes = figure.add_subplot(xlabel="epoch", ylabel=ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(axis="y")
        if len(seen := {epoch for points in lines for epoch, _ in points}) == 1:
            axes.set_xlim(min(seen) - 0.6, min(seen) + 0.6)  # not in fractions of an epoch
        for place, points in enumerate(lines):
            color, dashes = line_style(place)
            epochs, values = [epoch for epoch, _ in points], [value for _, value in points]
            axes.plot(epochs, values, color=color, dashes=dashes, linewidth=2, marker=".", markersize=6)
        return page_element(figure, name, description)


def line_sample(place: int) -> Markup:
    """The line that the curves draw for the method at ``place``, for a legend."""
    color, dashes = line_style(place)
    lengths = " ".join(f"{2 * length:g}" for length in dashes) or "none"
    path = f'<path d="M0 5H32" stroke="{color}" stroke-width="2" stroke-dasharray="{lengths}"/>'
    return Markup(f'<svg viewBox="0 0 32 10" aria-hidden="true">{path}</svg>')


def center_histogram(distinct_centers: Sequence[int], most: int, place: int) -> Markup:
    """How many classes have 1 to ``most`` distinct centres, in the colour of the method at ``place``."""
    sizes, classes = zip(*sorted(Counter(distinct_centers).items()), strict=True)
    with matplotlib.rc_context(ON_PAGE):
        figure = Figure(figsize=PAGE_INCHES, layout="constrained")
        axes = figure.add_subplot(xlabel="distinct centres", ylabel="classes", xlim=(0.4, most + 0.6))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        bars = axes.bar(sizes, classes, color=line_style(place)[0])
        axes.bar_label(bars, padding=2)
        axes.margins(y=0.12)
        words = ", ".join(f"{size} in {counted(count, 'class')}" for size, count in zip(sizes, classes, strict=True))
        return page_element(figure, f"centers-{place}", f"Distinct centres: {words}")


def line_style(place: int) -> tuple[str, tuple[float, ...]]:
    """Colour and dashes of the line at ``place``."""
    return COLORS[place % len(COLORS)], DASHES[place % len(DASHES)]


# Figures: drawn by `draw_…` functions, written as files


def draw_centers(distinct: Mapping[str, Sequence[float]], most: int) -> Figure:
    """The number of distinct centres of each class in decreasing order, one panel per entry of ``distinct``."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.4 * len(distinct), 2.8), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(distinct), sharey=True))
        for place, (axes, (title, counts)) in enumerate(zip(panels, distinct.items(), strict=True)):
            ordered = np.sort(counts)[::-1]
            axes.bar(np.arange(1, len(ordered) + 1), ordered, width=1.0, color=line_style(place)[0])
            mean = float(np.mean(ordered))
            # At the right, where the bars are below the mean, the label is on white.
            axes.axhline(mean, color="black", linewidth=1, linestyle="--")
            axes.annotate(
                f"mean {mean:.1f}", (1, mean), (-2, 3), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", va="bottom",
            )  # fmt: skip
            axes.set(title=title, xlabel="classes, in decreasing order", xlim=(0.5, len(ordered) + 0.5))
            axes.set_ylim(0, 1.15 * most)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            axes.grid(axis="y")
        panels[0].set_ylabel("distinct centres")
        return figure


def svg(figure: Figure) -> bytes:
    """The content of an SVG file of the figure."""
    return re.sub(rb"data:image/png;base64,([A-Za-z0-9+/=\s]+)", _smaller_image, _save(figure, STYLE, format="svg"))


def png(figure: Figure) -> bytes:
    """The content of a PNG file of the figure."""
    return _save(figure, STYLE, format="png", dpi=160)


def _save(figure: Figure, style: dict[Any, Any], *, format: str, **options: Any) -> bytes:
    buffer = BytesIO()
    names = ("Creator", "Date", "Format", "Type") if format == "svg" else ("Software",)
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # a box in a PNG; an SVG keeps the text
        figure.savefig(buffer, format=format, metadata=dict.fromkeys(names), **options)
    return buffer.getvalue()


def _smaller_image(png_address: re.Match[bytes]) -> bytes:
    """An image inside an SVG as JPEG where that is far smaller, as for photographs."""
    original, smaller = base64.b64decode(png_address[1]), BytesIO()
    with Image.open(BytesIO(original)) as image:
        image.convert("RGB").save(smaller, format="JPEG", quality=80, optimize=True)
    if 2 * len(smaller.getvalue()) > len(original):
        return png_address[0]
    return b"data:image/jpeg;base64," + base64.b64encode(smaller.getvalue())


def page_element(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an element of a page, which decides its size; all its ids start with ``name``."""
    content = _save(figure, ON_PAGE, format="svg", transparent=True).decode("utf-8")
    _, opening, content = re.split(r"(<svg[^>]*>)", content, maxsplit=1)
    (view_box,) = re.findall(r'viewBox="[^"]*"', opening)
    # A style element inside the SVG would apply to the whole page.
    content = re.sub(r"<style.*?</style>", "", content, flags=re.DOTALL)
    content = content.replace(_INK, "currentColor").replace("xlink:href", "href")
    for reference in (' id="', 'href="#', "url(#"):
        content = content.replace(reference, f"{reference}{name}-")
    return Markup(f'<svg {view_box} role="img" aria-label="{escape(description)}">{content}')
