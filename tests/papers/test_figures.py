"""Figures, read back from their files."""

from io import BytesIO
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import BboxBase
from PIL import Image

from softtriple.papers.figures import WRONG, Circle, draw_circles, draw_curves, draw_queries
from softtriple.papers.sheets import Number
from softtriple.progress import one_line
from softtriple.report.charts import COLORS, draw_centers, png, svg
from softtriple.report.pictures import Neighbor, Query

SVG = "{http://www.w3.org/2000/svg}"


def query(picture, *same: bool) -> Query:
    return Query(picture, "a", tuple(Neighbor(picture, "b", 0.5, right) for right in same))


def figures():
    square = np.zeros((8, 8, 3), dtype=np.uint8)
    angles = np.linspace(0, 6, 12)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    curve = {1: Number(0.5, 0.01), 5: Number(0.6, interval=(0.55, 0.66))}
    return {
        "centers": draw_centers({"with": [3.0, 1.0, 2.5], "without": [20.0, 20.0, 20.0]}, 20),
        "curves": draw_curves({"R@1": {"with": curve, "without": curve}}, xlabel="K", caption="bars"),
        "four": draw_curves({f"m{i}": {"with": curve} for i in range(4)}, xlabel="K"),
        "pictures": draw_queries({"one": [query(square, True, False)], "two": [query(square, True, True)]}),
        "texts": draw_queries({"one": [query("row 3", True, False)]}),
        "circles": draw_circles([Circle("c", points, np.arange(12) % 3, points[:6].reshape(3, 2, 2))]),
    }


def words(content: bytes) -> set[str]:
    return {"".join(element.itertext()).strip() for element in ElementTree.fromstring(content).iter(f"{SVG}text")}


@pytest.mark.parametrize("name", figures())
def test_files_are_svg_and_png(name: str) -> None:
    figure = figures()[name]
    content = svg(figure)
    assert ElementTree.fromstring(content).tag == f"{SVG}svg"
    assert content == svg(figures()[name])  # the same figure twice is the same file
    with Image.open(BytesIO(png(figure))) as image:
        assert image.format == "PNG"
        assert min(image.size) > 200 or name == "texts"


def test_what_axes_and_panels_say() -> None:
    drawn = figures()
    assert {"with", "without", "distinct centres", "mean 2.2", "mean 20.0"} <= words(svg(drawn["centers"]))
    assert {"with", "without", "K", "1", "5", "R@1, per cent", "bars"} <= words(svg(drawn["curves"]))
    assert {"query", "one", "two"} <= words(svg(drawn["pictures"]))
    assert "row 3" in words(svg(drawn["texts"]))


def test_only_wrong_neighbours_have_a_box_and_a_cross() -> None:
    content = svg(figures()["pictures"]).decode()
    assert content.lower().count(f"stroke: {WRONG.lower()}") == 1
    assert sum("".join(e.itertext()) == "×" for e in ElementTree.fromstring(content).iter(f"{SVG}text")) == 1


def test_two_lines_differ_in_colour_and_dashes() -> None:
    shown = [line for line in figures()["curves"].axes[0].get_lines() if line.get_linestyle() != "None"]
    assert [line.get_color() for line in shown] == list(COLORS[:2])
    assert len({line._dash_pattern[1] is None for line in shown}) == 2
    assert list(shown[0].get_ydata()) == pytest.approx([50, 60])


def boxes(figure: Figure, *artists: Artist) -> list[BboxBase]:
    FigureCanvasAgg(figure).draw()
    return [artist.get_window_extent() for artist in artists]


@pytest.mark.parametrize("name", ["curves", "four"])
def test_the_legend_lies_on_no_panel(name: str) -> None:
    figure = figures()[name]
    legend, *panels = boxes(figure, *figure.legends, *figure.axes)
    assert [panel for panel in panels if legend.overlaps(panel)] == []


def test_centers_are_counted_in_fives_and_the_mean_stands_above_its_line() -> None:
    figure = figures()["centers"]
    for axes in figure.axes:
        label, line = boxes(figure, *axes.texts, *axes.get_lines())
        assert label.y0 > line.y1
        assert [tick for tick in axes.get_yticks() if tick <= 20] == [0, 5, 10, 15, 20]


def test_settings_of_matplotlib_stay_as_they_were() -> None:
    before = dict(matplotlib.rcParams.copy())
    figures()
    assert all(matplotlib.rcParams[name] == value for name, value in before.items() if name != "backend")


def test_photographs_are_compressed_and_drawings_stay_as_they_are():
    noise = np.random.default_rng(0).integers(0, 256, size=(12, 12, 3), dtype=np.uint8)
    photograph = np.asarray(Image.fromarray(noise).resize((96, 96), Image.Resampling.BICUBIC))
    content = {name: svg(draw_queries({"one": [query(picture, True)]})) for name, picture in
               {"photograph": photograph, "drawing": np.zeros((96, 96, 3), dtype=np.uint8)}.items()}  # fmt: skip
    assert b"data:image/jpeg" in content["photograph"]
    assert b"data:image/png" not in content["photograph"]
    assert b"data:image/png" in content["drawing"]
    assert b"data:image/jpeg" not in content["drawing"]


@pytest.mark.parametrize("text", ["costs $5 or $6", r"$\frac{$", "\udcff", "a\x1b\x00b", "日本 🙂", "<b>&"])
def test_no_text_of_a_user_is_mathematics_or_breaks_a_file(text: str) -> None:
    figure = draw_queries({"one": [query(text, True)]})
    assert one_line(text).strip() in words(svg(figure)) | {""}
    with Image.open(BytesIO(png(figure))) as image:
        image.verify()
