"""The figures of the paper: functions from numbers to a Figure, in the style of `softtriple.report.charts`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from softtriple.papers.sheets import Number
from softtriple.progress import one_line
from softtriple.report.charts import COLORS, STYLE, line_style
from softtriple.report.pictures import Picture, Query

MARKERS = "os^Dvp"
WRONG = "#C62828"


@dataclass(frozen=True, eq=False)
class Circle:
    """A panel of `draw_circles`: two-dimensional embeddings, their labels and the centres of their classes."""

    title: str
    points: Float[np.ndarray, "items 2"]
    labels: Integer[np.ndarray, " items"]
    centers: Float[np.ndarray, "classes k 2"]


def draw_curves(curves: Mapping[str, Mapping[str, Mapping[int, Number]]], *, xlabel: str, caption: str = "") -> Figure:
    """Numbers in per cent by K: one panel per metric, one line per variant, with error bars."""
    with matplotlib.rc_context(STYLE):
        columns = min(2, len(curves))
        rows = -(-len(curves) // columns)
        figure = Figure(figsize=(1.0 + 3.3 * columns, 0.4 + 2.6 * rows), layout="constrained")
        panels = [figure.add_subplot(rows, columns, place + 1) for place in range(len(curves))]
        for axes, (metric, variants) in zip(panels, curves.items(), strict=True):
            ticks = sorted({k for numbers in variants.values() for k in numbers})
            for place, (name, numbers) in enumerate(variants.items()):
                # Side by side, so that error bars do not hide each other.
                places = [ticks.index(k) + 0.06 * (place - (len(variants) - 1) / 2) for k in numbers]
                reach = 100 * np.array([number.reach for number in numbers.values()]).reshape(-1, 2).T
                color, dashes = line_style(place)
                axes.errorbar(
                    places, [100 * number.mean for number in numbers.values()], reach, label=name, capsize=3,
                    color=color, linestyle=(0, dashes) if dashes else "-", marker=MARKERS[place % len(MARKERS)],
                    linewidth=1.8, markersize=5,
                )  # fmt: skip
            axes.set_xticks(range(len(ticks)), [str(k) for k in ticks])
            axes.set(xlabel=xlabel, ylabel=f"{metric}, per cent")
            axes.grid(axis="y")
        # Not inside a panel, where it could cover an error bar.
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
        if caption:
            figure.supxlabel(caption, fontsize=8, color="#444444")
        return figure


def draw_queries(answers: Mapping[str, Sequence[Query]]) -> Figure:
    """Queries and their neighbours by each method; neighbours of another class get a red box and a cross."""
    first, *_ = answers.values()
    widths = [len(queries[0].neighbors) for queries in answers.values()]
    height = 0.9 * len(first) + 0.4
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(0.9 * (1 + sum(widths)) + 0.3 * len(widths), height))
        # A gap of a third of an image before the images of each method.
        ratios = [1.0, *(width for count in widths for width in (0.33, *[1.0] * count))]
        grid = figure.add_gridspec(
            len(first), len(ratios), width_ratios=ratios, left=0.01, right=0.99, bottom=0.01,
            top=1 - 0.35 / height, wspace=0.08, hspace=0.08,
        )  # fmt: skip
        for row, query in enumerate(first):
            axes = _draw_picture(figure.add_subplot(grid[row, 0]), query.picture)
            if row == 0:
                axes.set_title("query")
            column = 1
            for name, queries in answers.items():
                for place, neighbor in enumerate(queries[row].neighbors):
                    axes = _draw_picture(figure.add_subplot(grid[row, column + 1 + place]), neighbor.picture)
                    if not neighbor.same_class:
                        _cross_out(axes)
                    if row == 0 and place == 0:
                        axes.set_title(name, loc="left")
                column += 1 + len(queries[row].neighbors)
        return figure


def draw_circles(panels: Sequence[Circle]) -> Figure:
    """Embeddings on the unit circle, with a colour and a marker per class, and arrows to the centres."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.1 * len(panels), 3.3), layout="constrained")
        for axes, panel in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
            axes.set_aspect("equal")
            axes.set_axis_off()
            angle = np.linspace(0, 2 * np.pi, 181)
            axes.plot(np.cos(angle), np.sin(angle), color="#bbbbbb", linewidth=1, zorder=0)
            for label in np.unique(panel.labels):
                color, marker = COLORS[label % len(COLORS)], MARKERS[label % len(MARKERS)]
                points = panel.points[panel.labels == label]
                # On one circle, points would hide each other: each class gets a ring of its own outside it.
                ring = 1.08 + 0.09 * label
                axes.plot(*(ring * points.T), marker, color=color, markersize=3.5, alpha=0.5, markeredgewidth=0)
                for x, y in panel.centers[label]:
                    axes.annotate(
                        "", (x, y), (0, 0),
                        arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0},
                    )  # fmt: skip
                    axes.plot(0.55 * x, 0.55 * y, marker, color=color, markersize=6, markeredgecolor="white")
            axes.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), title=panel.title)
        return figure


def _draw_picture(axes: Axes, picture: Picture) -> Axes:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color="#bbbbbb", linewidth=0.5)
    if isinstance(picture, str):
        # Unprintable characters are not valid in an SVG file.
        axes.text(0.5, 0.5, one_line(picture), ha="center", va="center", fontsize=7, wrap=True)
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
