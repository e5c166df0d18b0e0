"""The charts of the report page, read back from their SVG."""

import math
from xml.etree import ElementTree

import matplotlib
import pytest

from softtriple.report.charts import center_histogram, line_sample, loss_curves, recall_curves


def styles(svg):
    return [element.get("style", "") for element in ElementTree.fromstring(svg).iter()]


def labels(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("text")]


@pytest.mark.parametrize(
    "svg", [loss_curves([[2.0, 1.0]]), recall_curves([[(1, 0.5)]]), center_histogram([1, 2, 2], 4, 0)]
)
def test_ink_follows_the_page(svg):
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "#ffffff" not in svg  # no ground of its own
    assert "<style" not in svg


def test_every_method_has_its_own_line_also_without_colour():
    drawn = [style for style in styles(loss_curves([[3.0, 2.0, 1.0]] * 3)) if "stroke-width: 2" in style]
    dashes = [[part for part in style.split("; ") if "dasharray" in part] for style in drawn]
    assert len(drawn) == 3
    assert len({str(dash) for dash in dashes}) == 3


def test_legend_has_the_colour_of_the_line():
    sample = ElementTree.fromstring(line_sample(1)).find("path").get("stroke")
    assert any(f"stroke: {sample.lower()}" in style for style in styles(loss_curves([[2.0], [2.0, 1.0]])))


def test_bars_carry_their_numbers_and_axes_their_names():
    shown = labels(center_histogram([1] * 13 + [3] * 17, 4, 0))
    assert {"13", "17", "1", "4", "distinct centres", "classes"} <= set(shown)
    assert {"epoch", "mean loss"} <= set(labels(loss_curves([[2.0, 1.0]])))


@pytest.mark.parametrize(
    "losses", [[[]], [[1.0]], [[1.0, math.nan, 2.0]], [[1.0, math.inf]], [[math.nan]], [[2.0], []]]
)
def test_odd_losses_are_drawn_as_far_as_they_can_be(losses):
    assert "epoch" in labels(loss_curves(losses))


def test_settings_of_matplotlib_stay_as_they_were():
    before = dict(matplotlib.rcParams.copy())
    loss_curves([[1.0]])
    center_histogram([1], 1, 0)
    # Reading the backend would choose one.
    assert all(matplotlib.rcParams[name] == value for name, value in before.items() if name != "backend")


def test_recall_is_in_per_cent_at_the_epochs_where_it_was_measured():
    shown = labels(recall_curves([[(10, 0.25), (20, 0.75)], []]))
    assert {"epoch", "10", "20", "30", "70"} <= set(shown)
    assert "1" not in shown
