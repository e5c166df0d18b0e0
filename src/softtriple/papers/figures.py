"""The drawings: functions from numbers to a matplotlib Figure, which is then written as SVG or PNG.

Colours are Okabe and Ito's, which colour-blind people tell apart; dashes, markers and crosses do without any.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from PIL import Image as PILImage

from softtriple.papers.sheets import Number
from softtriple.report.page import Image, Retrieved

COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "os^Dvp"
DASHES = ("-", "--", "-.", ":")
WRONG = "#C62828"

_STYLE: dict[Any, Any] = {
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


@dataclass(frozen=True, eq=False)
class Circle:
    """Two-dimensional embeddings with their classes, the centres of these, and what the panel says."""

    title: str
    points: Float[np.ndarray, "items 2"]
    labels: Integer[np.ndarray, " items"]
    centers: Float[np.ndarray, "classes k 2"]


def draw_centers(distinct: Mapping[str, Sequence[float]], most: int) -> Figure:
    """How many distinct centres each class has, most first; a panel for each of ``distinct``."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.4 * len(distinct), 2.8), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(distinct), sharey=True))
        for place, (axes, (title, counts)) in enumerate(zip(panels, distinct.items(), strict=True)):
            ordered = np.sort(counts)[::-1]
            axes.bar(np.arange(1, len(ordered) + 1), ordered, width=1.0, color=COLORS[place % len(COLORS)])
            mean = float(np.mean(ordered))
            # At the right, where bars are below the mean, its label stands on white.
            axes.axhline(mean, color="black", linewidth=1, linestyle="--")
            axes.annotate(
                f"mean {mean:.1f}", (1, mean), (-2, 3), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", va="bottom",
            )  # fmt: skip
            axes.set(title=title, xlabel="classes, most centres first", xlim=(0.5, len(ordered) + 0.5))
            axes.set_ylim(0, 1.15 * most)
            axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
            axes.grid(axis="y")
        panels[0].set_ylabel("distinct centres")
        return figure


def draw_curves(curves: Mapping[str, Mapping[str, Mapping[int, Number]]], *, xlabel: str, caption: str = "") -> Figure:
    """Numbers in per cent by K: a panel for each metric, a line for each variant, bars for the uncertainty."""
    with matplotlib.rc_context(_STYLE):
        columns = min(2, len(curves))
        rows = -(-len(curves) // columns)
        figure = Figure(figsize=(1.0 + 3.3 * columns, 0.4 + 2.6 * rows), layout="constrained")
        panels = [figure.add_subplot(rows, columns, place + 1) for place in range(len(curves))]
        for axes, (metric, variants) in zip(panels, curves.items(), strict=True):
            ticks = sorted({k for numbers in variants.values() for k in numbers})
            for place, (name, numbers) in enumerate(variants.items()):
                # Side by side, so that the bars of one variant do not hide those of another.
                places = [ticks.index(k) + 0.06 * (place - (len(variants) - 1) / 2) for k in numbers]
                reach = 100 * np.array([found.reach for found in numbers.values()]).reshape(-1, 2).T
                axes.errorbar(
                    places, [100 * found.mean for found in numbers.values()], reach, label=name, capsize=3,
                    color=COLORS[place % len(COLORS)], linestyle=DASHES[place % len(DASHES)],
                    marker=MARKERS[place % len(MARKERS)], linewidth=1.8, markersize=5,
                )  # fmt: skip
            axes.set_xticks(range(len(ticks)), [str(k) for k in ticks])
            axes.set(xlabel=xlabel, ylabel=f"{metric}, per cent")
            axes.grid(axis="y")
        # Outside of the panels: inside, it would lie on bars sooner or later.
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
        if caption:
            figure.supxlabel(caption, fontsize=8, color="#444444")
        return figure


def draw_retrieved(answers: Mapping[str, Sequence[Retrieved]]) -> Figure:
    """Queries and what each method finds for them, best first; those of another class have a red box and a cross."""
    first, *_ = answers.values()
    widths = [len(found[0].found) for found in answers.values()]
    columns = 1 + sum(widths)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(0.9 * columns + 0.3 * len(widths), 0.9 * len(first) + 0.4))
        # A gap before each method's pictures, as wide as a third of one.
        ratios = [1.0, *(width for count in widths for width in (0.33, *[1.0] * count))]
        grid = figure.add_gridspec(
            len(first), len(ratios), width_ratios=ratios, left=0.01, right=0.99, bottom=0.01,
            top=1 - 0.35 / (0.9 * len(first) + 0.4), wspace=0.08, hspace=0.08,
        )  # fmt: skip
        for row, query in enumerate(first):
            axes = _picture(figure.add_subplot(grid[row, 0]), query.picture)
            if row == 0:
                axes.set_title("query")
            column = 1
            for name, found in answers.items():
                for place, neighbor in enumerate(found[row].found):
                    axes = _picture(figure.add_subplot(grid[row, column + 1 + place]), neighbor.picture)
                    if not neighbor.same_class:
                        _cross_out(axes)
                    if row == 0 and place == 0:
                        axes.set_title(name, loc="left")
                column += 1 + len(found[row].found)
        return figure


def draw_circles(panels: Sequence[Circle]) -> Figure:
    """Embeddings on the unit circle with a colour and a marker for each class, and rays to the centres."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.1 * len(panels), 3.3), layout="constrained")
        for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
            axes.set_aspect("equal")
            axes.set_axis_off()
            angle = np.linspace(0, 2 * np.pi, 181)
            axes.plot(np.cos(angle), np.sin(angle), color="#bbbbbb", linewidth=1, zorder=0)
            for label in np.unique(panel.labels):
                color, marker = COLORS[label % len(COLORS)], MARKERS[label % len(MARKERS)]
                mine = panel.points[panel.labels == label]
                # Points on a circle hide each other: items of a class lie on a ring of their own, just outside.
                ring = 1.08 + 0.09 * label
                axes.plot(*(ring * mine.T), marker, color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
                for x, y in panel.centers[label]:
                    axes.annotate(
                        "", (x, y), (0, 0),
                        arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0},
                    )  # fmt: skip
                    axes.plot(0.55 * x, 0.55 * y, marker, color=color, markersize=6, markeredgecolor="white")
            axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), title=panel.title)
        return figure


def svg(figure: Figure) -> bytes:
    """The figure as the content of an SVG file."""
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    content = _saved(figure, format="svg", metadata=no_metadata)
    return re.sub(rb"data:image/png;base64,([A-Za-z0-9+/=\s]+)", _smaller_picture, content)


def png(figure: Figure) -> bytes:
    """The figure as the content of a PNG file."""
    return _saved(figure, format="png", dpi=160, metadata={"Software": None})


def _saved(figure: Figure, **options: Any) -> bytes:
    buffer = BytesIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(buffer, **options)
    return buffer.getvalue()


def _smaller_picture(png_address: re.Match[bytes]) -> bytes:
    """A picture inside an SVG as JPEG where that is far smaller: photographs are, drawings are not."""
    original, smaller = base64.b64decode(png_address[1]), BytesIO()
    with PILImage.open(BytesIO(original)) as picture:
        picture.convert("RGB").save(smaller, format="JPEG", quality=80, optimize=True)
    if 2 * len(smaller.getvalue()) > len(original):
        return png_address[0]
    return b"data:image/jpeg;base64," + base64.b64encode(smaller.getvalue())


def _picture(axes: Axes, picture: Image | str) -> Axes:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color="#bbbbbb", linewidth=0.5)
    if isinstance(picture, str):
        axes.text(0.5, 0.5, picture, ha="center", va="center", fontsize=7, wrap=True)
    else:
        axes.imshow(picture, interpolation="none", aspect="auto")
    return axes


def _cross_out(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    box = Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, edgecolor=WRONG, linewidth=3, clip_on=False)
    axes.add_patch(box)
    axes.text(
        0.93, 0.9, "×", transform=axes.transAxes, ha="right", va="top", color="white", fontsize=9, fontweight="bold",
        bbox={"boxstyle": "square,pad=0.1", "facecolor": WRONG, "edgecolor": "none"},
    )  # fmt: skip
