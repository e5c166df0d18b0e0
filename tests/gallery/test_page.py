"""The page in a real browser: headless Chromium, the only thing these tests need that pip does not install."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_gallery import HOSTILE, Collection, running

from softtriple.gallery import Settings, create_app
from softtriple.models import Encoder
from softtriple.search import Item

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

expect.set_options(timeout=30_000)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="THE PAGE IS NOT TESTED: no chromium here; apt-get install chromium brings it"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address; afterwards nothing may have gone elsewhere and nothing may stand in the console."""
    pages: list[Page] = []
    said: list[str] = []
    requested: list[str] = []
    origins: list[str] = []

    def start(url: str, **options: object) -> Page:
        page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
        page.set_default_timeout(30_000)
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        origins.append(url.partition("/#")[0].removesuffix("/docs"))
        pages.append(page)
        page.goto(url)
        return page

    start.said = said  # type: ignore[attr-defined]
    yield start
    for page in pages:
        page.context.close()
    assert said == []
    assert {url for url in requested if not url.startswith((*origins, "blob:", "about:"))} == set()


def test_upload_shows_neighbours(address: str, open_page, collection: Collection) -> None:
    page = open_page(address)
    expect(page.get_by_role("list", name="Items in the gallery").get_by_role("listitem")).to_have_count(25)
    page.set_input_files("input[type=file]", collection.folder / "2-3.png")
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


def test_an_upload_whose_class_is_said_marks_the_others(address: str, open_page, collection: Collection) -> None:
    page = open_page(address)
    page.get_by_label("Class of your image").fill("blue")
    page.set_input_files("input[type=file]", collection.folder / "0-0.png")
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
        page.set_input_files("input[type=file]", {"name": "a.png", "mimeType": "image/png", "buffer": bytes(2_000_000)})
        expect(page.get_by_role("alert").last).to_have_text(re.compile("2 MB.* 0.2 MB"))
        page.goto("about:blank")


def test_images_can_be_dropped_and_pasted(address: str, open_page, collection: Collection) -> None:
    for event, field in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        page = open_page(address)
        expect(page.get_by_text("Choose an image", exact=True)).to_be_visible()
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


def wait_until(true: Callable[[], bool]) -> None:
    # Not by wait_for_function, which the content policy of the page forbids.
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def shadow(tile) -> str:
    return tile.locator(".frame").evaluate("(frame) => getComputedStyle(frame).boxShadow")


def test_an_error_is_shown_for_a_bad_file(address: str, open_page, tmp_path: Path) -> None:
    page = open_page(address)
    (tmp_path / "bad.jpg").write_text("not a picture")
    page.set_input_files("input[type=file]", tmp_path / "bad.jpg")
    expect(page.get_by_role("alert")).to_contain_text("not a readable image")
    forget_refusals(open_page, 415)


def forget_refusals(open_page, status: int) -> None:
    """Chromium itself writes refused requests to the console; these were meant."""
    meant = f"the server responded with a status of {status}"
    open_page.said[:] = [line for line in open_page.said if meant not in line]


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
    expect(page.locator(".card")).to_be_visible()
    page.mouse.wheel(0, -400)
    wait_until(lambda: painted(page)["sum"] != before["sum"])
    page.get_by_role("button", name="Reset view").click()
    page.mouse.move(0, 0)
    wait_until(lambda: painted(page)["sum"] == before["sum"])
    canvas.focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    wait_until(lambda: painted(page)["sum"] != before["sum"])
    expect(page.locator("#status")).not_to_be_empty()
    page.keyboard.press("0")
    page.get_by_role("combobox").focus()  # the cross goes with the focus
    page.get_by_role("combobox").select_option("blue")
    wait_until(lambda: len(painted(page)["colors"]) < len(before["colors"]))
    x, y = painted(page)["somewhere"]  # the others are faint now
    canvas.click(position={"x": x, "y": y})
    expect(page.locator("figcaption")).to_have_text("Class blue")


def painted(page: Page) -> dict:
    return page.evaluate(
        """() => {
            const canvas = document.querySelector("canvas");
            const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const colors = new Set();
            let sum = 0, somewhere = null;
            for (let i = 0; i < data.length; i += 4) {
                if (data[i + 3] < 200) continue;
                colors.add(`${data[i] >> 4} ${data[i + 1] >> 4} ${data[i + 2] >> 4}`);
                sum = (sum * 31 + i) % 1000003;
                somewhere ??= [((i / 4) % width) / devicePixelRatio, Math.floor(i / 4 / width) / devicePixelRatio];
            }
            return { colors: [...colors], sum, somewhere };
        }"""
    )


def test_classes_lead_to_a_class_and_its_centres(address: str, open_page) -> None:
    page = open_page(f"{address}/#/classes")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(page.locator(".lead")).to_contain_text(
        re.compile(r"Recall@1.*% of all items \(trained classes .*%, unseen classes .*%\)")
    )
    expect(rows.filter(has_text="unseen")).to_have_count(1)
    recalls = [float(text.split()[0]) for text in page.locator(".share").all_inner_texts()]
    assert recalls == sorted(recalls), "worst first"
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
    expect(wrong).to_contain_text("✕ confused with blue")
    assert re.search(r"rgb\(198, 40, 40\).* 3px", shadow(wrong)), "the outline"
    page.goto(f"{address}/#/class/blue")
    expect(page.get_by_text("1 more centre has no items in the store.")).to_be_visible()
    expect(page.get_by_role("heading", level=2)).to_have_count(1)


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
    assert names[:5] == ["softtriple", "Search", "Map", "Classes", "API"]
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


def test_texts_are_asked_for_and_shown_as_texts(open_page) -> None:
    texts = ["how do I reset my password", "password <b>reset</b>", "where is my parcel", "track a parcel"]
    encoder = Encoder.from_backbone("text", dim=8).eval()
    items = [Item(f"sha256:{row}", 0, f"class {row // 2}", text) for row, text in enumerate(texts)]
    store = MemoryStore(items, encoder.embed(texts))
    with running(create_app(encoder, store, None)) as url:
        page = open_page(url)
        page.get_by_label("Text", exact=True).fill(texts[1])
        page.keyboard.press("Enter")
        first = page.get_by_role("list", name="Neighbours, best first").get_by_role("link").first
        expect(first).to_contain_text(texts[1])
        expect(first).to_contain_text("1.000")
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


def test_the_documentation_names_every_address(address: str, open_page) -> None:
    page = open_page(f"{address}/docs")
    expect(page.locator(".operation")).to_have_count(11)
    expect(page.get_by_role("heading", name="POST /api/search/image")).to_be_visible()
