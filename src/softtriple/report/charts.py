"""The charts of the report page: SVG elements to stand inside HTML, readable on a light and on a dark page."""

import re
from collections.abc import Sequence
from html import escape
from io import StringIO
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, those that show on white and on black; dashes tell methods apart without colour.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 2.0), (1.0, 1.5), (6.0, 2.0, 1.0, 2.0))  # in widths of the line
_INK = "#010203"  # stands for the colour of the text around the chart

_INCHES = (5.0, 3.2)
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "softtriple",  # the same chart twice gives the same ids
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _INK,
    "grid.alpha": 0.15,
}


def loss_curves(losses: Sequence[Sequence[float]]) -> str:
    """The losses of each method by epoch, a line a method."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.add_subplot(xlabel="epoch", ylabel="mean loss")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y")
        for place, values in enumerate(losses):
            epochs = range(1, len(values) + 1)
            color, dashes = _line(place)
            axes.plot(epochs, values, color=color, dashes=dashes, linewidth=2, marker=".", markersize=6)
        return _svg(figure, "losses", "Training loss by epoch")


def line_sample(place: int) -> str:
    """The line that `loss_curves` draws for the method at ``place``, for a legend."""
    color, dashes = _line(place)
    lengths = " ".join(f"{2 * length:g}" for length in dashes) or "none"
    path = f'<path d="M0 5H32" stroke="{color}" stroke-width="2" stroke-dasharray="{lengths}"/>'
    return f'<svg viewBox="0 0 32 10" aria-hidden="true">{path}</svg>'


def center_histogram(distinct_centers: Sequence[int], most: int, place: int) -> str:
    """How many classes have 1 to ``most`` distinct centres, in the colour of the method at ``place``."""
    sizes, classes = np.unique(distinct_centers, return_counts=True)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.add_subplot(xlabel="distinct centres", ylabel="classes", xlim=(0.4, most + 0.6))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        color, _ = _line(place)
        bars = axes.bar(sizes, classes, color=color)
        axes.bar_label(bars, padding=2)
        axes.margins(y=0.12)
        words = ", ".join(f"{size} in {count} classes" for size, count in zip(sizes, classes, strict=True))
        return _svg(figure, f"centers-{place}", f"Distinct centres: {words}")


def _line(place: int) -> tuple[str, tuple[float, ...]]:
    return _COLORS[place % len(_COLORS)], _DASHES[place % len(_DASHES)]


def _svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an element: its ids begin with ``name``, its size is left to the page."""
    buffer = StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    _, opening, content = re.split(r"(<svg[^>]*>)", buffer.getvalue(), maxsplit=1)
    (view_box,) = re.findall(r'viewBox="[^"]*"', opening)
    # A style element inside the SVG would apply to the whole page.
    content = re.sub(r"<style.*?</style>", "", content, flags=re.DOTALL)
    content = content.replace(_INK, "currentColor").replace("xlink:href", "href")
    for reference in (' id="', 'href="#', "url(#"):
        content = content.replace(reference, f"{reference}{name}-")
    return f'<svg {view_box} role="img" aria-label="{escape(description)}">{content}'
