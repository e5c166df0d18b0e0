"""The search page in a real browser."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Route, expect
from tests.gallery.browsing import forget_refusals, needs_chromium, shadow, wait_until, widths
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_gallery import COLORS, Collection, make_calibration, running

from softtriple.gallery import Settings, create_app
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
    expect(results.first.locator(".score")).to_have_attribute("title", re.compile("cosine.*never above 1"))
    expect(page.get_by_role("checkbox")).to_have_count(0)  # nothing can be changed without --edit
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
        faint = float(results.first.locator("img").evaluate("(image) => getComputedStyle(image).opacity"))
        assert faint < 0.6, "it does not look like a hit"
        page.set_input_files("input[multiple]", collection.folder / "2-3.png")
        expect(results.first.get_by_role("link")).to_have_attribute("title", "2-3.png")
        expect(page.get_by_text("Probably none of these.")).to_have_count(0)
        verdict = page.locator(".verdict")
        expect(verdict).to_contain_text(
            re.compile(r"Predicted class: .*Probability >?\d+\s%; \d+ of 24 neighbours vote for it, with [\d.]+\s% of")
        )
        expect(verdict.get_by_role("link").first).to_have_attribute("href", re.compile("^#/class/"))
        # Within one class there is nothing to vote on.
        page.get_by_label("Search only in class").fill("green")
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
    monkeypatch.setattr("softtriple.gallery.analysis.top_rows", lambda *given, **_: computed.append(given))
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


def test_an_error_is_shown_for_a_bad_file(address: str, open_page, tmp_path: Path) -> None:
    page = open_page(address)
    (tmp_path / "bad.jpg").write_text("not a picture")
    page.set_input_files("input[multiple]", tmp_path / "bad.jpg")
    expect(page.get_by_role("alert")).to_contain_text("not a readable image")
    expect(page.locator(".asked")).to_contain_text("no preview")
    expect(page.get_by_text("cosine similarities")).to_have_count(0)
    forget_refusals(open_page, 415)


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
    page.get_by_label("Search only in class").fill("green")
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
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.05 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] + 50, box["y"] + box["height"] + 50, steps=3)
    page.mouse.up()
    expect(page.get_by_label("Left edge")).to_have_value("52")
    expect(page.get_by_label("Bottom edge")).to_have_value("100")
    page.get_by_label("Left edge").press("ArrowRight")
    expect(page.get_by_label("Left edge")).to_have_value("53")
    page.get_by_label("Left edge").press("ArrowLeft")
    page.get_by_role("button", name="Search this region").click()
    preview = page.get_by_alt_text("Your image, region of halves.png")
    expect(preview).to_be_visible()
    assert preview.evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == [38, 38]
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_phone_offers_its_camera_and_no_hint_about_keys(address: str, open_page, collection: Collection) -> None:
    page = open_page(address, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    expect(page.get_by_text("Take a photo")).to_be_visible()
    expect(page.get_by_text("paste")).to_be_hidden()
    page.set_input_files("input[capture]", collection.folder / "0-1.png")
    expect(page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem")).to_have_count(24)
    page.goto(f"{address}/#/map")
    expect(page.locator("canvas[data-drawn='25']")).to_be_visible()


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
        expect(page.get_by_role("heading", level=1)).to_have_text(texts[1])
        expect(page.locator(".asked .text")).to_have_text(texts[1])
        page.goto("about:blank")


def test_a_text_and_its_filters_are_in_the_address(open_page) -> None:
    texts = ["how do I reset my password", "where is my parcel", "track a parcel"]
    encoder = Encoder.from_backbone("text", dim=8).eval()
    store = MemoryStore(
        [Item(f"sha256:{n}", 0, f"class {n // 2}", text) for n, text in enumerate(texts)], encoder.embed(texts)
    )
    with running(create_app(encoder, store, None)) as url:
        page = open_page(url)
        page.get_by_label("Search only in class").fill("class 0")
        page.get_by_label(re.compile("^Text")).fill("parcel")
        page.keyboard.press("Enter")
        results = page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem")
        expect(results).to_have_count(2)
        page.reload()
        expect(results).to_have_count(2)
        expect(page.get_by_label(re.compile("^Text"))).to_have_value("parcel")
        page.get_by_role("button", name="Clear").click()
        expect(page).not_to_have_url(re.compile("text="))
        page.goto("about:blank")


def test_the_verdict_does_not_contradict_the_scores(collection: Collection, open_page, tmp_path: Path) -> None:
    """The best match and the threshold are the same in three digits."""
    Image.open(collection.folder / "2-3.png").point(lambda value: value - 1).save(tmp_path / "almost.png")
    calibration = make_calibration()
    (best, *_) = collection.store.search(collection.encoder.embed([str(tmp_path / "almost.png")]), 1)[0]
    sizes = tuple(replace(size, threshold=best.score + 2e-5) for size in calibration.sizes)
    with running(collection.app(calibration=replace(calibration, sizes=sizes))) as url:
        page = open_page(url)
        page.set_input_files("input[multiple]", tmp_path / "almost.png")
        told = re.findall(r"\d\.\d+", page.locator(".verdict").inner_text())
        assert told[0] < told[1]
        expect(page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem").first).to_contain_text(
            told[0]
        )
        page.goto("about:blank")


def test_long_names_are_cut_and_scores_stand_in_one_column(open_page) -> None:
    encoder = Encoder.from_backbone("text", dim=8).eval()
    texts = ["a parcel", "another parcel " * 60]
    names = ["short", "a class whose name is long " * 6]
    items = [Item(f"sha256:{n}", n, name, text) for n, (name, text) in enumerate(zip(names, texts, strict=True))]
    with running(create_app(encoder, MemoryStore(items, encoder.embed(texts)), None)) as url:
        page = open_page(f"{url}/#/?text=parcel")
        hits = page.get_by_role("list", name="Neighbours, best first").get_by_role("listitem")
        expect(hits).to_have_count(2)
        cut = hits.locator(".class").filter(has_text=names[1][:20])
        expect(cut).to_have_attribute("title", names[1])
        assert cut.evaluate("(name) => name.scrollWidth > name.clientWidth"), "cut"
        rights = hits.locator(".score").evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().right)")
        assert rights[0] == pytest.approx(rights[1], abs=1)
        heights = hits.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().height)")
        assert max(heights) < 120, "a long text takes a few lines"
        page.goto("about:blank")


def test_a_search_that_takes_long_says_so(address: str, open_page, collection: Collection) -> None:
    page = open_page(address)
    results, told = page.get_by_role("region", name="Results"), []

    def slow(route: Route) -> None:
        told.append((results.get_attribute("aria-busy"), results.inner_text().splitlines()[-1]))
        route.continue_()

    page.route("**/api/search/image*", slow)
    page.set_input_files("input[multiple]", [collection.folder / "0-1.png", collection.folder / "0-2.png"])
    expect(results.get_by_role("list")).to_have_count(2)
    assert told == [("true", "Searching… 1 of 2"), ("true", "Searching… 2 of 2")]


def test_a_page_that_takes_long_says_so(address: str, open_page) -> None:
    page = open_page(f"{address}/#/map")
    expect(page.get_by_role("heading", name="Map")).to_be_visible()
    loading = page.get_by_text("Loading…")

    def slow(route: Route) -> None:
        loading.wait_for()
        route.continue_()

    page.route("**/api/items*", slow)
    page.goto(f"{address}/#/")
    expect(page.get_by_role("list", name="Items in the gallery")).to_be_visible()
    expect(loading).to_have_count(0)


def test_vectors_are_listed_by_name(open_page) -> None:
    encoder = Encoder.from_backbone("linear", dim=4, in_features=6).eval()
    items = [Item(f"sha256:{row}abcdef0123", row % 2, f"class {row % 2}", "") for row in range(5)]
    vectors = np.eye(5, 4, dtype=np.float32) + 0.1
    store = MemoryStore(items, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    with running(create_app(encoder, store, None)) as url:
        page = open_page(url)
        listed = page.locator("ul.texts").get_by_role("link")
        expect(listed).to_have_count(5)
        listed.filter(has_text="class 1 · 3abcdef0").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("class 1 · 3abcdef0")
        page.goto("about:blank")
