"""The page in a real browser."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect
from tests.chromium import AXE
from tests.gallery.browsing import forget_refusals, needs_chromium, wait_until
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_audit import make_audit
from tests.gallery.small_gallery import COLORS, HOSTILE, Collection, make_calibration, running

from softtriple.gallery import Settings, create_app
from softtriple.gallery.audits import KINDS, Audits
from softtriple.gallery.compare import Other
from softtriple.models import Encoder
from softtriple.search import Item

pytestmark = needs_chromium


def test_upload_shows_neighbours(address: str, open_page, collection: Collection) -> None:
    page = open_page(address)
    expect(page.get_by_role("list", name="Items in the gallery").get_by_role("listitem")).to_have_count(25)
    page.set_input_files("input[multiple]", collection.folder / "2-3.png")
    results = page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem")
    expect(results).to_have_count(24)
    expect(results.first.get_by_role("link")).to_have_attribute("title", "2-3.png")
    expect(results.first).to_contain_text("1.000")
    expect(page.get_by_alt_text("Your image, 2-3.png")).to_be_visible()
    expect(page.locator("#status")).to_have_text("24 neighbours found")
    assert page.locator(".wrong").count() == 0, "its class was not said"
    # The result is still there when one comes back from an item; Clear takes it away.
    results.first.get_by_role("link").click()
    expect(page.get_by_role("heading", name="2-3.png")).to_be_visible()
    page.go_back()
    expect(results).to_have_count(24)
    page.get_by_role("button", name="Clear").click()
    expect(results).to_have_count(0)


def test_an_upload_that_nothing_matches(collection: Collection, open_page, tmp_path: Path) -> None:
    Image.new("RGB", (72, 72), (250, 240, 20)).save(tmp_path / "yellow.png")
    with running(collection.app(calibration=make_calibration())) as url:
        page = open_page(url)
        page.set_input_files("input[multiple]", tmp_path / "yellow.png")
        expect(page.get_by_text("Probably none of these.")).to_be_visible()
        expect(page.locator("#status")).to_contain_text("none is similar enough")
        results = page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem")
        expect(results.first).to_contain_text(" %")
        page.set_input_files("input[multiple]", collection.folder / "2-3.png")
        expect(results.first.get_by_role("link")).to_have_attribute("title", "2-3.png")
        expect(page.get_by_text("Probably none of these.")).to_have_count(0)
        verdict = page.locator(".verdict")
        expect(verdict).to_contain_text(
            re.compile(r"Predicted class: .*Probability [\d.]+\s%, with [\d.]+\s% of the votes")
        )
        expect(verdict.get_by_role("link").first).to_have_attribute("href", re.compile("^#/class/"))
        # Within one class there is nothing to vote on.
        page.get_by_label("Search only in the class").fill("green")
        page.keyboard.press("Enter")
        expect(page.get_by_text("Probably none of these.")).to_be_visible()
        expect(page.get_by_text("Predicted class")).to_have_count(0)


def test_an_upload_whose_class_is_said_marks_the_others(address: str, open_page, collection: Collection) -> None:
    page = open_page(address)
    page.get_by_label("Class of your image").fill("blue")
    page.set_input_files("input[multiple]", collection.folder / "0-0.png")
    marked = page.get_by_role("list", name="Neighbours, best first").get_by_text("✕ other class")
    expect(marked).to_have_count(24 - 8)
    # It can also be said, or corrected, when the neighbours are there.
    page.get_by_label("Class of your image").fill("zebra")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No class “zebra” in the store.")).to_be_visible()
    expect(marked).to_have_count(0)
    page.get_by_label("Class of your image").fill("green")
    page.keyboard.press("Enter")
    expect(marked).to_have_count(24 - 9)
    expect(page.get_by_text("9 of 24 neighbours have the class green.")).to_be_visible()


def test_the_gallery_is_there_before_any_neighbour_is_computed(
    collection: Collection, open_page, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[object] = []
    monkeypatch.setattr("softtriple.gallery.analysis.nearest", lambda *given, **_: computed.append(given))
    with running(collection.app()) as url:
        page = open_page(url)
        expect(page.get_by_role("list", name="Items in the gallery").get_by_role("listitem")).to_have_count(25)
        page.get_by_label("Class of your image").focus()
        expect(page.locator("datalist option")).to_have_count(3)
        page.goto("about:blank")
    assert computed == []


def test_an_image_of_too_many_bytes_is_not_even_sent(collection: Collection, open_page) -> None:
    settings = Settings(max_bytes=150_000)
    with running(collection.app(settings), settings) as url:
        page = open_page(url)
        page.set_input_files("input[multiple]", {"name": "a.png", "mimeType": "image/png", "buffer": bytes(2_000_000)})
        expect(page.get_by_role("alert").last).to_have_text(re.compile("2 MB.* 0.2 MB"))
        page.goto("about:blank")


def test_images_can_be_dropped_and_pasted(address: str, open_page, collection: Collection) -> None:
    for event, field in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        page = open_page(address)
        expect(page.get_by_text("Choose images", exact=True)).to_be_visible()
        page.evaluate(
            """async ([event, field]) => {
                const blob = await (await fetch("/api/thumbnail?id=set/0-1.png")).blob();
                const data = new DataTransfer();
                data.items.add(new File([blob], "mine.webp", { type: blob.type }));
                const kind = event === "drop" ? DragEvent : ClipboardEvent;
                window.dispatchEvent(new kind(event, { [field]: data, bubbles: true, cancelable: true }));
            }""",
            [event, field],
        )
        expect(page.get_by_alt_text("Your image, mine.webp")).to_be_visible()


def test_neighbours_of_another_class_are_outlined_in_red(address: str, open_page) -> None:
    page = open_page(f"{address}/#/item/{quote('set/0-0.png', safe='')}")
    first = page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem").first
    expect(first.get_by_role("link")).to_have_attribute("title", "mislabelled.png")
    expect(first).to_contain_text("✕ other class")  # not by colour alone
    assert re.search(r"rgb\(198, 40, 40\).* 3px", shadow(first)), "the outline"
    right = page.get_by_role("listitem").filter(has_text="blue").filter(has_not_text="other class").first
    assert "198, 40, 40" not in shadow(right)
    assert page.locator(".tiles img").count() == 24
    wait_until(lambda: widths(page)[0] == 72)


def widths(page: Page) -> list[int]:
    """Of the images, 0 for those that have not loaded yet."""
    return page.locator(".tiles img").evaluate_all("(images) => images.map((image) => image.naturalWidth)")


def shadow(tile) -> str:
    return tile.locator(".frame").evaluate("(frame) => getComputedStyle(frame).boxShadow")


def test_an_error_is_shown_for_a_bad_file(address: str, open_page, tmp_path: Path) -> None:
    page = open_page(address)
    (tmp_path / "bad.jpg").write_text("not a picture")
    page.set_input_files("input[multiple]", tmp_path / "bad.jpg")
    expect(page.get_by_role("alert")).to_contain_text("not a readable image")
    forget_refusals(open_page, 415)


def test_unknown_places_say_so(address: str, open_page) -> None:
    page = open_page(f"{address}/#/item/nothing")
    expect(page.get_by_role("alert")).to_contain_text("no item 'nothing'")
    page.goto(f"{address}/#/nowhere")
    expect(page.get_by_role("alert")).to_have_text("no such page")
    forget_refusals(open_page, 404)


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
    expect(page.get_by_role("heading", name="25 items selected")).to_be_visible()
    shown = page.get_by_role("list", name="Selected items", exact=True).get_by_role("listitem")
    expect(shown).to_have_count(25)
    expect(page.get_by_role("list", name="Classes of the selected items").get_by_text("green 9")).to_be_visible()
    page.reload()
    expect(shown).to_have_count(25)
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
        page = open_page(f"{url}/#/map")
        expect(page.locator(".lead")).to_contain_text("being computed")
        points = np.random.default_rng(0).standard_normal((25, 2))
        np.savez(file, digest=given.joinpath("digest").read_text(), points=points)
        expect(page.locator(".lead")).to_contain_text("laid out by UMAP")
        page.get_by_label("Layout").select_option("pca")
        expect(page.locator(".lead")).to_contain_text("principal components")
        expect(page).to_have_url(re.compile("method=pca"))
        page.goto("about:blank")


def test_classes_lead_to_a_class_and_its_centres(address: str, open_page) -> None:
    page = open_page(f"{address}/#/classes")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(page).to_have_title("Classes · softtriple gallery")
    expect(page.locator(".lead")).to_contain_text(
        re.compile(r"Recall@1.*% of all items \(trained classes .*%, unseen classes .*%\)")
    )
    expect(rows.filter(has_text="unseen")).to_have_count(1)
    recalls = [float(text.split()[0]) for text in page.locator(".share").all_inner_texts()]
    assert recalls == sorted(recalls), "worst first"
    page.get_by_role("button", name="Items").click()
    expect(rows.first).to_contain_text("green")  # the one with nine
    page.get_by_role("button", name="Class", exact=True).click()
    expect(rows.first).to_contain_text("blue")
    page.get_by_role("button", name="Class", exact=True).click()
    expect(page.get_by_role("columnheader", name="Class", exact=True)).to_have_attribute("aria-sort", "descending")
    page.reload()
    expect(rows.last).to_contain_text("blue")
    page.get_by_label("Filter by name").fill("BLU")
    expect(rows).to_have_count(1)
    rows.get_by_role("link", name="blue", exact=True).first.click()
    expect(page.get_by_role("heading", name="blue", exact=True)).to_be_visible()
    expect(page.get_by_text("2 distinct of 3")).to_be_visible()
    expect(
        page.get_by_role("heading", name=re.compile("Centre 1 . items, merged from 2 trained centres"))
    ).to_be_visible()


def test_a_class_shows_what_is_taken_for_another(address: str, open_page) -> None:
    page = open_page(f"{address}/#/class/green")
    wrong = page.locator(".wrong").filter(has=page.get_by_title("mislabelled.png"))
    expect(wrong).to_contain_text("✕ taken for blue")
    assert re.search(r"rgb\(198, 40, 40\).* 3px", shadow(wrong)), "the outline"
    # Errors come first, each beside the items of the class it is taken for.
    expect(page.get_by_role("heading", level=2).first).to_contain_text("Errors")
    error = (
        page.get_by_role("list", name="Errors").get_by_role("listitem").filter(has=page.get_by_title("mislabelled.png"))
    )
    beside = error.get_by_role("list", name="Nearest items of blue").get_by_role("link")
    expect(beside).to_have_count(4)
    expect(beside.first).to_have_attribute("title", "0-0.png")
    expect(beside.first).to_contain_text("1.000")
    page.goto(f"{address}/#/class/blue")
    expect(page.get_by_text("1 more centre has no items in the store.")).to_be_visible()
    expect(page.get_by_role("heading", level=2)).to_have_count(2)


def test_several_images_are_searched_at_once_and_in_one_class(
    address: str, open_page, collection: Collection, tmp_path: Path
) -> None:
    page = open_page(address)
    (tmp_path / "bad.jpg").write_text("not a picture")
    files = [collection.folder / "0-1.png", tmp_path / "bad.jpg", collection.folder / "2-2.png"]
    page.set_input_files("input[multiple]", files)
    answers = page.get_by_role("list", name="Neighbours, best first")
    expect(answers).to_have_count(2)
    expect(page.get_by_role("alert")).to_contain_text("not a readable image")
    expect(answers.first.get_by_role("listitem")).to_have_count(12)
    expect(answers.last.get_by_role("link").first).to_have_attribute("title", "2-2.png")
    expect(page.locator("#status")).to_have_text("24 neighbours found for 3 queries")
    page.get_by_label("Search only in the class").fill("green")
    page.keyboard.press("Enter")
    expect(answers.last.get_by_role("link").filter(has_text="green")).to_have_count(9)
    forget_refusals(open_page, 415)


def test_a_region_of_the_query_is_searched(address: str, open_page, tmp_path: Path) -> None:
    halves = Image.new("RGB", (80, 40), COLORS["blue"])
    halves.paste(COLORS["green"], (40, 0, 80, 40))
    halves.save(tmp_path / "halves.png")
    page = open_page(address)
    page.set_input_files("input[multiple]", tmp_path / "halves.png")
    page.get_by_role("button", name="Search a region").click()
    stage = page.locator(".stage")
    box = stage.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 50, box["y"] + box["height"] + 50, steps=3)
    page.mouse.up()
    expect(page.get_by_label("Left edge")).to_have_value("52")
    expect(page.get_by_label("Bottom edge")).to_have_value("100")
    page.get_by_role("button", name="Search this region").click()
    preview = page.get_by_alt_text("Your image, region of halves.png")
    expect(preview).to_be_visible()
    assert preview.evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == [38, 38]
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_item_tells_all_that_is_known_of_it(address: str, open_page, collection: Collection) -> None:
    page = open_page(f"{address}/#/item/{quote('set/mislabelled.png', safe='')}")
    facts = page.locator(".properties")
    expect(facts).to_contain_text(re.compile("Class.*green.*Taken for.*blue.*Centre.*of 3.*72 × 72 pixels"))
    expect(facts).to_contain_text(str(collection.folder / "0-0.png"))
    page.get_by_role("button", name="Show in full size").or_(page.get_by_title("Show in full size")).click()
    large = page.get_by_role("dialog", name="mislabelled.png")
    expect(large.get_by_role("img")).to_be_visible()
    page.keyboard.press("Escape")
    expect(large).to_have_count(0)


def test_the_page_notices_that_the_store_has_changed(collection: Collection, open_page) -> None:
    store = MemoryStore([one for one, _ in collection.store.get(collection.ids)], np.eye(25, 8, dtype=np.float32))
    with running(create_app(collection.encoder, store, None)) as url:
        page = open_page(url)
        shown = page.get_by_role("list", name="Items in the gallery").get_by_role("listitem")
        expect(shown).to_have_count(25)
        store.delete(["set/0-0.png"])
        expect(page.locator("#about")).to_contain_text("24 items")
        expect(page.get_by_role("status").filter(has_text="1 item fewer")).to_be_visible()
        page.get_by_role("button", name="Update the page").click()
        expect(shown).to_have_count(24)
        expect(page.get_by_role("button", name="Update the page")).to_be_hidden()
        page.goto("about:blank")
    forget_refusals(open_page, 404)  # the image of the deleted item, if it was still loading


def test_a_phone_offers_its_camera_and_no_hint_about_keys(address: str, open_page, collection: Collection) -> None:
    page = open_page(address, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    expect(page.get_by_text("Take a photo")).to_be_visible()
    expect(page.get_by_text("paste")).to_be_hidden()
    page.set_input_files("input[capture]", collection.folder / "0-1.png")
    expect(page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem")).to_have_count(24)
    page.goto(f"{address}/#/map")
    expect(page.locator("canvas[data-drawn='25']")).to_be_visible()


def test_a_large_class_is_shown_bit_by_bit(open_page) -> None:
    encoder = Encoder.from_backbone("linear", dim=3, in_features=3).eval()
    items = [Item(f"item {row}", 0, "a", "") for row in range(80)]
    with running(create_app(encoder, MemoryStore(items, np.eye(3, dtype=np.float32)[[0] * 80]), None)) as url:
        page = open_page(f"{url}/#/class/a")
        shown = page.get_by_role("list", name="Items of the class").get_by_role("listitem")
        for count in (24, 72):
            expect(shown).to_have_count(count)
            page.get_by_role("button", name="Show more").click()
        expect(shown).to_have_count(80)
        expect(page.get_by_role("button", name="Show more")).to_be_hidden()
        page.goto("about:blank")


def test_a_class_that_was_not_trained_on_and_has_a_hostile_name(address: str, open_page) -> None:
    page = open_page(f"{address}/#/class/{quote(HOSTILE, safe='')}")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    expect(page.get_by_text("none: the run was not trained on this class")).to_be_visible()
    expect(page.get_by_role("list", name="Items of the class").get_by_role("listitem")).to_have_count(8)
    assert page.locator("img[src=x]").count() == 0, "a name is never markup"


def test_all_by_keyboard(address: str, open_page) -> None:
    page = open_page(address)
    expect(page.get_by_role("heading", name="Find similar items")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("[document.activeElement.tagName, document.activeElement.textContent.trim()]"))
    names = [name for _, name in reached]
    assert names[:5] == ["softtriple", "Search", "Map", "Classes", "API"], "and no comparison"
    assert ["INPUT", ""] in reached, "the choice of an image"
    first, second = (page.locator(".tiles a").nth(place) for place in range(2))
    first.focus()
    page.keyboard.press("ArrowRight")
    expect(second).to_be_focused()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    below = page.evaluate("document.activeElement.getBoundingClientRect()")
    above = first.bounding_box()
    assert above is not None
    assert below["y"] > above["y"]
    assert below["x"] == pytest.approx(above["x"], abs=1)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is seen"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Most similar")).to_be_visible()
    expect(page.locator("main")).to_be_focused()


def test_the_page_asks_for_the_token_once(collection: Collection, open_page) -> None:
    settings = Settings(token="sesam")
    with running(collection.app(settings), settings) as url:
        page = open_page(url)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_have_text("This token was not accepted.")
        dialog.get_by_label("Token").fill("sesam")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        wait_until(lambda: 72 in widths(page))
        page.reload()
        expect(page.get_by_role("list", name="Items in the gallery").get_by_role("listitem")).to_have_count(25)
        expect(dialog).to_be_hidden()
        page.goto("about:blank")  # lets go of the server
    forget_refusals(open_page, 401)


def test_two_runs_are_compared(collection: Collection, open_page) -> None:
    items = [one for one, _ in collection.store.get(collection.ids)]
    random = np.random.default_rng(0).standard_normal((25, 5)).astype(np.float32)
    other = MemoryStore(items, random / np.linalg.norm(random, axis=1, keepdims=True))
    with running(collection.app(other=Other(("trained", "random"), other))) as url:
        page = open_page(url)
        page.get_by_role("link", name="Compare").click()
        row = page.get_by_role("row").filter(has_text="Recall@1")
        expect(row).to_contain_text(re.compile(r"−\d+\.\d+.* to "))
        queries = page.get_by_role("list", name="Queries").locator("> li")
        shown = int(page.get_by_role("button", name="Only trained right").inner_text().split(": ")[1])
        expect(queries).to_have_count(min(shown, 24))
        first = queries.first
        expect(first.get_by_role("list", name="Neighbours by trained").locator("li").first).not_to_have_class("wrong")
        expect(first.get_by_role("list", name="Neighbours by random").locator("li").first).to_have_class("wrong")
        page.get_by_role("button", name="Only random right").click()
        page.reload()
        expect(page.get_by_role("button", name="Only random right")).to_have_attribute("aria-pressed", "true")
        page.goto("about:blank")


def test_items_are_selected_and_changed(collection: Collection, open_page, tmp_path: Path) -> None:
    settings = Settings(token="sesam")
    store = MemoryStore([one for one, _ in collection.store.get(collection.ids)], np.eye(25, 8, dtype=np.float32))
    app = create_app(collection.encoder, store, None, settings, changes_log=tmp_path / "s.changes.jsonl")
    with running(app, settings) as url:
        page = open_page(f"{url}/#/class/blue")
        page.get_by_role("textbox", name="Token").fill("sesam")
        page.keyboard.press("Enter")
        items = page.get_by_role("list", name="Items of the class")
        for name in ("0-1.png", "0-2.png"):
            items.get_by_label(f"Select {name}").check()
        bar = page.get_by_role("region", name="Actions on selected items")
        expect(bar).to_contain_text("2 items selected")
        # The selection goes along to other pages.
        page.get_by_role("link", name="Search", exact=True).click()
        expect(bar).to_contain_text("2 items selected")
        with page.expect_download() as started:
            bar.get_by_role("button", name="Export CSV").click()
        exported = started.value.path().read_text().splitlines()
        assert exported == ["item,label,before,tags", "set/0-1.png,blue,blue,", "set/0-2.png,blue,blue,"]
        bar.get_by_role("button", name="Relabel").click()
        page.get_by_role("dialog").get_by_label("Class").fill("green")
        page.keyboard.press("Enter")
        expect(bar).to_contain_text("2 items relabelled “green”")
        page.goto(f"{url}/#/item/{quote('set/0-1.png', safe='')}")
        expect(page.locator(".properties")).to_contain_text("Proposedgreen")
        page.get_by_label("Select 0-1.png").first.check()
        bar.get_by_role("button", name="Tag").click()
        page.get_by_role("dialog").get_by_label("Tag").fill("blurred")
        page.keyboard.press("Enter")
        expect(page.locator(".properties")).to_contain_text("Tagsblurred")
        page.goto(f"{url}/#/map")
        page.get_by_role("button", name="Select all in view").click()
        page.get_by_role("button", name="Select these items").click()
        expect(bar).to_contain_text("25 items selected")
        bar.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.locator("main")).to_contain_text("The store is empty")
        assert store.count() == 0
        bar.get_by_role("button", name="Undo").click()
        expect(page.locator("canvas[data-drawn='25']")).to_be_visible()
        assert (tmp_path / "s.changes.csv").read_text().splitlines()[1:] == [
            "set/0-1.png,green,blue,blurred",
            "set/0-2.png,green,blue,",
        ]
        page.goto("about:blank")
    forget_refusals(open_page, 401)


def test_texts_are_asked_for_and_shown_as_texts(open_page) -> None:
    texts = ["how do I reset my password", "password <b>reset</b>", "where is my parcel", "track a parcel"]
    encoder = Encoder.from_backbone("text", dim=8).eval()
    items = [Item(f"sha256:{row}", 0, f"class {row // 2}", text) for row, text in enumerate(texts)]
    store = MemoryStore(items, encoder.embed(texts))
    with running(create_app(encoder, store, None)) as url:
        page = open_page(url)
        page.get_by_label(re.compile("^Text")).fill(texts[1])
        page.keyboard.press("Enter")
        first = page.get_by_role("list", name="Neighbours, best first").get_by_role("link").first
        expect(first).to_contain_text(texts[1])
        expect(first).to_contain_text("1.000")
        expect(page.locator("ul.texts")).to_have_count(2)  # the neighbours, and all items
        page.get_by_label(re.compile("^Text")).fill("parcel\n\nmy password")
        page.keyboard.press("Enter")
        expect(page.get_by_role("list", name="Neighbours, best first")).to_have_count(2)
        page.get_by_label(re.compile("^Text")).fill(texts[1])
        page.keyboard.press("Enter")
        expect(page.get_by_role("list", name="Neighbours, best first")).to_have_count(1)
        first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text("an item of class 0")
        expect(page.locator(".asked .text")).to_have_text(texts[1])
        page.goto("about:blank")


@pytest.mark.parametrize("path", ["#/", "#/item/set%2F0-0.png", "#/map", "#/classes", "#/class/blue", "docs"])
def test_nothing_is_wider_than_a_phone(address: str, open_page, path: str) -> None:
    page = open_page(f"{address}/{path}", viewport={"width": 360, "height": 740}, color_scheme="dark")
    expect(page.locator("h1, .operation h2").last).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)", "dark, as asked for"


@pytest.mark.skipif(not AXE.is_file(), reason="accessibility is not tested: it needs npm for axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_inaccessible(collection: Collection, open_page, tmp_path: Path, scheme: str) -> None:
    other = Other(("one", "two"), collection.store)
    paths = ["#/", "#/item/set%2F0-0.png", "#/map?area=-9+-9,9+-9,9+9,-9+9", "#/classes", "#/class/green", "#/compare"]
    paths += [f"#/audit?show={kind}" for kind in KINDS]
    with running(collection.app(other=other, audits=Audits(make_audit(tmp_path / "audit")))) as url:
        for path in [*paths, "docs"]:
            page = open_page(f"{url}/{path}", color_scheme=scheme)
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".loading")).to_have_count(0)
            page.evaluate(AXE.read_text(encoding="utf-8"))
            # The second scheme differs in its colours only.
            rules = {} if scheme == "light" else {"runOnly": ["color-contrast", "link-in-text-block"]}
            result = page.evaluate("(rules) => axe.run(document, rules)", rules)
            assert len(result["passes"]) > (10 if scheme == "light" else 0)
            assert [(one["id"], one["nodes"][0]["html"]) for one in result["violations"]] == []
            page.goto("about:blank")


def test_every_page_has_its_own_title(address: str, open_page) -> None:
    titles = {"#/": "Find similar items", "#/map": "Map", "#/class/blue": "blue", "#/item/set%2F0-1.png": "0-1.png"}
    page = open_page(address)
    for path, title in titles.items():
        page.goto(f"{address}/{path}")
        expect(page).to_have_title(f"{title} · softtriple gallery")
    page.goto(f"{address}/docs")
    expect(page).to_have_title("API · softtriple gallery")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/static/icon.svg")


def test_the_documentation_names_every_address(address: str, open_page) -> None:
    page = open_page(f"{address}/docs")
    expect(page.locator(".operation")).to_have_count(15)
    expect(page.get_by_role("heading", name="POST /api/search/image")).to_be_visible()
