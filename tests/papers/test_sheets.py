"""Numbers, sheets in their three forms, and the files of a target."""

import errno
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.html_tree import parse, text

from softtriple.papers.sheets import (
    Block,
    Line,
    Number,
    Result,
    Sheet,
    as_json,
    bars_caption,
    to_html,
    to_markdown,
    to_text,
    uncertainty_label,
    write_result,
)
from softtriple.report.charts import draw_centers

SHEET = Sheet(
    title="A <title> of_it",
    facts=(("Backbone", "one & only"), ("Data", "<script>alert(1)</script>")),
    columns=("R@1", "NMI"),
    blocks=(
        Block("Npairs*", (Line("published", ("51.0", "–")), Line("ours", ("49.25", "60.0"), strong=True))),
        Block("SoftTriple", (Line("published", ("60.1", "66.2")),)),
    ),
    notes=("a note | with a bar",),
)


def test_number_of_several_seeds_has_a_spread() -> None:
    values = (0.5, 0.6, 0.61)
    found = Number.of([0.5, 0.6, None, 0.61], interval=(0.4, 0.7))
    assert found == Number(statistics.mean(values), statistics.stdev(values), None, values)
    assert found.percent == "57.0"
    assert found.uncertainty == "6.1"
    assert found.reach == (found.spread, found.spread)
    assert uncertainty_label([None, found]) == "± standard deviation of 3 seeds"
    assert bars_caption([found]) == "bars: ± standard deviation of 3 seeds"
    assert as_json(found)["values"] == values


def test_number_of_one_seed_has_an_interval() -> None:
    found = Number.of([0.5], interval=(0.45, 0.56))
    assert found.uncertainty == "45.0–56.0"
    assert found.reach == pytest.approx((0.05, 0.06))
    assert uncertainty_label([found]) == "95 % interval"
    assert bars_caption([found]) == "bars: 95 % interval over the choice of test classes, which all runs share"
    assert Number.of([0.5]).uncertainty == "–"
    assert Number.of([None]) is None


def test_text_lines_up() -> None:
    lines = to_text(SHEET).splitlines()
    table = lines[lines.index("", 2) + 1 : -2]
    ends = {line.index(cell) + len(cell) for line, cell in zip(table, ("R@1", "51.0", "49.25", "60.1"), strict=True)}
    assert len(ends) == 1
    assert "Backbone  one & only" in lines


def test_markdown_has_as_many_cells_in_every_row() -> None:
    lines = to_markdown(SHEET, "figure.svg").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {row.count("|") for row in rows} == {5}
    assert "| Npairs\\* | published | 51.0 | – |" in rows
    assert "|  | ours | **49.25** | **60.0** |" in rows
    assert "a note \\| with a bar" in lines
    assert lines[-1].endswith("(figure.svg)")


def test_text_that_is_no_utf8_can_be_written() -> None:
    sheet = replace(SHEET, facts=(("Data", "folder \udcff"),))
    for content in (to_markdown(sheet), to_html(sheet)):
        content.encode("utf-8")
        assert "folder ?" in content


def test_html_is_well_formed_and_text_stays_text() -> None:
    page = to_html(SHEET, b"<svg/>")
    tree = parse(page)
    assert "<script>" not in page
    assert [text(cell) for cell in tree.iter("td")][2:] == ["51.0", "–", "49.25", "60.0", "60.1", "66.2"]
    assert [text(cell) for cell in tree.iter("strong")] == ["49.25", "60.0"]
    assert tree.find(".//th[@rowspan]").get("rowspan") == "2"
    assert tree.find(".//img").get("src").startswith("data:image/svg+xml;base64,")


def test_a_figure_on_a_full_disk_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(Sheet("a figure", (), (), ()), figure=draw_centers({"one": [1.0, 2.0]}, 2))
    files = write_result(result, tmp_path, "centers")
    before = [file.read_bytes() for file in files]

    def write_half(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_half)
    with pytest.raises(OSError, match=r"centers\.svg: cannot be written"):
        write_result(result, tmp_path, "centers")
    assert [file.read_bytes() for file in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)
