import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.report.html_tree import parse

from softtriple.data import make_benchmark
from softtriple.data.corrections import exclude_items
from softtriple.report.audit import audit_csv, audit_json, audit_text, render_audit, write_audit
from softtriple.training.audit import Audit, audit


@pytest.fixture(scope="module")
def found() -> Audit:
    """Squares and stripes, with a wrong label, a copy in the test half and a blank picture."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 200, (48, 24, 24), dtype=np.uint8)
    labels = np.repeat(np.arange(4), 12)
    for label in range(4):
        where = np.s_[labels == label, :, 6 * label : 6 * label + 6]
        pixels[where] += 55
    pixels[30], pixels[40] = pixels[2], 255
    labels[7] = 1
    return audit(make_benchmark(pixels, [f"<{'abcd'[label]}>" for label in labels]))


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_the_table_lists_items_and_what_to_exclude(found: Audit) -> None:
    listed = rows(audit_csv(found))
    wrong = next(row for row in listed if row["finding"] == "label" and row["split"] == "train" and row["row"] == "7")
    assert (wrong["label"], wrong["suggested"]) == ("<b>", "<a>")
    copies = [row for row in listed if row["finding"] == "duplicate"]
    assert {(row["split"], row["row"]) for row in copies} == {("train", "2"), ("test", "6")}
    assert {row["exclude"] for row in copies} == {"yes"}  # their labels contradict each other
    assert [row["row"] for row in listed if row["finding"] == "odd" and row["exclude"] == "yes"] == ["16"]


def test_the_table_can_be_excluded(found: Audit, tmp_path: Path) -> None:
    write_audit(found, tmp_path, command="softtriple audit x")
    marked = {
        (row["split"], row["row"]) for row in rows((tmp_path / "audit.csv").read_text()) if row["exclude"] == "yes"
    }
    smaller = exclude_items(found.benchmark, tmp_path / "audit.csv")
    assert len(smaller.train) + len(smaller.test) == 48 - len(marked)


def test_json_and_text_agree(found: Audit) -> None:
    told = json.loads(json.dumps(audit_json(found)))
    text = audit_text(found)
    assert told["items"] == 48
    assert told["leak"]["test_items"] == 1
    assert told["duplicates"][0]["conflict"]
    assert f"suspect labels {len(told['suspects']):>11}" in text


def test_the_page_shows_pictures_and_escapes_names(found: Audit) -> None:
    page = render_audit(found, command="softtriple audit <x>")
    assert "<a>" not in page
    assert "&lt;a&gt;" in page
    assert page.count("<img") > 8
    assert "<script" not in page
    parse(page)


def test_copies_with_one_label_keep_the_test_item(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    labels = np.arange(40) % 2
    benchmark = make_benchmark(values, labels, split="instances")
    train, test = benchmark.train, benchmark.test
    row = int(np.flatnonzero(test.labels == train.labels[0])[0])
    test.items.values[row] = train.items.values[0]
    copies = [row for row in rows(audit_csv(audit(benchmark))) if row["finding"] == "duplicate"]
    assert {(row["split"], row["exclude"]) for row in copies} == {("train", "yes"), ("test", "no")}


def test_an_image_file_that_is_gone_does_not_break_the_page(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / name).mkdir()
        for number in range(3):
            pixels = random.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    result = audit(str(tmp_path))
    (tmp_path / "a" / "0.png").unlink()
    assert "<html" in render_audit(result, command="")
