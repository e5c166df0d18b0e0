"""The map in a real browser."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect
from tests.gallery.browsing import needs_chromium, wait_until
from tests.gallery.small_audit import make_audit
from tests.gallery.small_gallery import Collection, running

from softtriple.gallery.audits import Audits

pytestmark = needs_chromium


def test_the_map_is_drawn_and_answers_pointer_and_keys(address: str, open_page) -> None:
    page = open_page(f"{address}/#/map")
    canvas = page.locator("canvas[data-drawn='25']")
    expect(canvas).to_be_visible()
    before = painted(page)
    assert len(before["colors"]) >= 3, "not blank"
    # Somewhere there is an item under the pointer: its card says so.
    box = canvas.bounding_box()
    assert box is not None
    x, y = before["somewhere"]
    page.mouse.move(box["x"] + x, box["y"] + y)
    expect(page.locator(".card img")).to_be_visible()
    page.mouse.wheel(0, -400)
    wait_until(lambda: painted(page)["sum"] != before["sum"])
    # The view is in the address.
    expect(page).to_have_url(re.compile("at="))
    page.mouse.move(0, 0)
    zoomed = painted(page)["sum"]
    page.reload()
    wait_until(lambda: canvas.is_visible() and painted(page)["sum"] == zoomed)
    page.get_by_role("button", name="Reset view").click()
    page.mouse.move(0, 0)
    wait_until(lambda: painted(page)["sum"] == before["sum"])
    canvas.focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    wait_until(lambda: painted(page)["sum"] != before["sum"])
    page.keyboard.press("0")
    page.get_by_label("Colour by").focus()  # the cross goes with the focus
    page.get_by_role("button", name="blue 8").click()
    wait_until(lambda: len(painted(page)["colors"]) < len(before["colors"]))
    x, y = painted(page)["somewhere"]  # the others are faint now
    canvas.click(position={"x": x, "y": y})
    expect(page.locator(".properties")).to_contain_text("blue")
    # Coming back, the map is as it was left.
    page.go_back()
    expect(page.get_by_role("button", name="blue 8")).to_have_attribute("aria-pressed", "true")


def painted(page: Page) -> dict:
    """Strong colours on the map, a sum that changes with it, and the first place that has one."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate(
        """() => {
            const canvas = document.querySelector("canvas");
            const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const colors = new Set();
            let sum = 0, somewhere = null;
            for (let i = 0; i < data.length; i += 4) {
                const pixel = data.slice(i, i + 3);
                if (Math.max(...pixel) - Math.min(...pixel) < 90) continue;
                colors.add(`${data[i] >> 6} ${data[i + 1] >> 6} ${data[i + 2] >> 6}`);
                sum = (sum * 31 + i) % 1000003;
                somewhere ??= [((i / 4) % width) / devicePixelRatio, Math.floor(i / 4 / width) / devicePixelRatio];
            }
            return { colors: [...colors], sum, somewhere };
        }"""
    )


def test_a_finger_points_first_and_opens_then(address: str, open_page) -> None:
    page = open_page(f"{address}/#/map", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    canvas = page.locator("canvas[data-drawn='25']")
    expect(canvas).to_be_visible()
    expect(page.get_by_text("Tap a point")).to_be_visible()
    x, y = painted(page)["somewhere"]
    card = page.locator(".card")
    for again in (lambda: canvas.tap(position={"x": x, "y": y}), card.tap):
        canvas.tap(position={"x": x, "y": y})
        expect(card.locator("img")).to_be_visible()
        expect(page).to_have_url(re.compile("#/map"))
        again()
        expect(page.locator(".properties")).to_be_visible()
        page.go_back()
        expect(card).to_be_hidden()
    canvas.tap(position={"x": x, "y": y})
    canvas.tap(position={"x": 3, "y": 3})
    expect(card).to_be_hidden()


def test_a_hundred_thousand_points_are_drawn_found_and_selected(address: str, open_page) -> None:
    """In ten columns, far apart; of each, a box takes the lower half."""
    page = open_page(address)
    number = 100_000
    x = [row % 10 for row in range(number)]
    y = [row // 10 / number for row in range(number)]
    answer = {"version": "v", "umap": "unavailable", "method": "pca", "x": x, "y": y, "labels": x, "total": number}
    answer |= {"class_names": [f"class {one}" for one in range(10)], "explained": 0.5}

    def items(route: Route) -> None:
        rows = [int(row) for row in parse_qs(urlparse(route.request.url).query)["row"]]
        made = {"text": None, "has_picture": False, "proposed": None, "tags": []}
        route.fulfill(json={"items": [{"id": str(row), "class_name": f"class {row % 10}", **made} for row in rows]})

    page.route("**/api/map?*", lambda route: route.fulfill(json=answer))
    page.route("**/api/map/items?*", items)
    page.goto(f"{address}/#/map?area=-1+-1,9.5+-1,9.5+{np.mean(y)},-1+{np.mean(y)}")
    canvas = page.locator(f"canvas[data-drawn='{number}']")
    expect(canvas).to_be_visible()
    expect(page.get_by_role("heading", name="50,000 items in this area")).to_be_visible()
    box = canvas.bounding_box()
    assert box is not None
    # Painted over several frames, it is the same as painted at once.
    before = painted(page)["sum"]
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -200)
    wait_until(lambda: painted(page)["sum"] != before)
    page.get_by_role("button", name="Reset view").click()
    wait_until(lambda: painted(page)["sum"] == before)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -200)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 30, box["y"] + box["height"] / 2 + 30, steps=5)
    page.mouse.up()
    px, py = painted(page)["somewhere"]
    page.mouse.move(box["x"] + px, box["y"] + py)
    expect(page.locator(".card")).to_have_attribute("href", re.compile(r"#/item/\d+$"))
    page.goto("about:blank")


def test_colours_of_the_map_and_their_legend(address: str, open_page) -> None:
    page = open_page(f"{address}/#/map")
    entries = page.get_by_role("list", name="Legend").get_by_role("button")
    expect(entries).to_have_count(3)
    page.get_by_label("Colour by").select_option("correct")
    expect(entries).to_have_count(2)
    wrong = int(entries.filter(has_text="Wrong").locator("small").inner_text())
    assert wrong >= 2, "the mislabelled one and its twin"
    expect(page).to_have_url(re.compile("by=correct"))
    page.get_by_label("Colour by").select_option("center")
    expect(entries.first).to_contain_text("Centre 1")
    page.get_by_label("Colour by").select_option("prediction")
    entries.filter(has_text="green").click()
    page.reload()
    expect(entries.filter(has_text="green")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("Colour by")).to_have_value("prediction")


@pytest.mark.parametrize("tool", ["Box", "Lasso"])
def test_an_area_of_the_map_is_opened_as_a_list(address: str, open_page, tool: str) -> None:
    page = open_page(f"{address}/#/map")
    canvas = page.locator("canvas[data-drawn='25']")
    page.get_by_label(tool, exact=True).check()
    box = canvas.bounding_box()
    assert box is not None
    left, top, right, bottom = box["x"] + 3, box["y"] + 3, box["x"] + box["width"] - 3, box["y"] + box["height"] - 3
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in {"Box": [(right, bottom)], "Lasso": [(right, top), (right, bottom), (left, bottom)]}[tool]:
        page.mouse.move(x, y, steps=4)
    page.mouse.up()
    expect(page.get_by_role("heading", name="25 items in this area")).to_be_visible()
    shown = page.get_by_role("list", name="Items in this area").get_by_role("listitem")
    expect(shown).to_have_count(25)
    expect(page.get_by_role("list", name="Classes in this area").get_by_text("green 9")).to_be_visible()
    page.reload()
    expect(shown).to_have_count(25)
    expect(page.get_by_label(tool, exact=True)).to_be_checked()
    # Only what is not faint is selected.
    page.get_by_role("button", name="blue 8").click()
    expect(shown).to_have_count(8)
    page.get_by_role("button", name="Clear").click()
    expect(shown).to_have_count(0)
    page.get_by_role("button", name="Select all in view").click()
    expect(shown).to_have_count(8)
    canvas.focus()
    page.keyboard.press("Escape")
    expect(shown).to_have_count(0)


def test_the_map_changes_to_umap_when_that_is_ready(
    collection: Collection, open_page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softtriple.gallery.layout.FEWEST", 10)
    file, given = tmp_path / "map.npz", tmp_path / "given"
    given.mkdir()
    script = "import sys, time, pathlib; f = pathlib.Path(sys.argv[1]); [time.sleep(.05) for _ in iter(f.exists, True)]"

    def process(arguments: list[str], **options: object) -> subprocess.Popen[bytes]:
        given.joinpath("digest").write_text(arguments[-1])
        return popen([sys.executable, "-c", script, str(file)], **options)  # type: ignore[call-overload]

    popen = subprocess.Popen
    monkeypatch.setattr("softtriple.gallery.layout.subprocess.Popen", process)
    with running(collection.app(layout_file=file)) as url:
        page = open_page(f"{url}/#/map?method=umap")
        expect(page.locator(".lead")).to_contain_text("being computed")
        points = np.random.default_rng(0).standard_normal((25, 2))
        np.savez(file, digest=given.joinpath("digest").read_text(), points=points)
        expect(page.locator(".lead")).to_contain_text("laid out by UMAP")
        page.get_by_label("Layout").select_option("pca")
        expect(page.locator(".lead")).to_contain_text("principal components")
        expect(page).to_have_url(re.compile("method=pca"))
        page.goto("about:blank")


def test_a_layout_that_cannot_be_computed_is_no_longer_announced(address: str, open_page) -> None:
    page = open_page(address)

    def computing(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"umap": "computing"})

    page.route("**/api/map?*", computing)
    page.goto(f"{address}/#/map")
    expect(page.locator(".lead")).to_have_text(re.compile(r"of variance\)\.$"))
    expect(page.get_by_label("Layout")).to_have_value("pca")


def test_the_map_does_not_wait_for_the_audit(collection: Collection, open_page, tmp_path: Path) -> None:
    with running(collection.app(audits=Audits(make_audit(tmp_path / "audit")))) as url:
        page = open_page(url)
        page.route("**/api/audit?*", lambda route: route.fulfill(json={"state": "computing", "message": ""}))
        page.goto(f"{url}/#/map?by=suspect")
        expect(page.locator("canvas[data-drawn='25']")).to_be_visible()
        expect(page.locator(".side")).to_have_text("The audit is still running. See the audit page.")
        page.unroute("**/api/audit?*")
        expect(page.get_by_role("list", name="Legend").get_by_role("button")).not_to_have_count(0)
        page.goto("about:blank")


def test_predictions_appear_while_they_are_computed(collection: Collection, open_page, slow_measuring) -> None:
    with running(collection.app()) as url:
        page = open_page(f"{url}/#/map?by=correct")
        expect(page.get_by_text("15 items are still to be measured")).to_be_visible()
        slow_measuring.set()
        expect(page.get_by_text("still to be measured")).to_have_count(0)
        counts = page.get_by_role("list", name="Legend").locator("small")
        wait_until(lambda: sum(map(int, counts.all_inner_texts())) == 25)
        page.goto("about:blank")
