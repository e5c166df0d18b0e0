"""What all pages share, and those of items and of two runs, in a real browser."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import expect
from tests.chromium import AXE
from tests.gallery.browsing import forget_refusals, needs_chromium, wait_until, widths
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_audit import make_audit
from tests.gallery.small_gallery import Collection, running

from softtriple.gallery import Settings, create_app
from softtriple.gallery.audits import KINDS, Audits
from softtriple.gallery.compare import Other, compare

pytestmark = needs_chromium


def test_unknown_places_say_so(address: str, open_page) -> None:
    page = open_page(f"{address}/#/item/nothing")
    expect(page.get_by_role("alert")).to_contain_text("no item 'nothing'")
    page.goto(f"{address}/#/nowhere")
    expect(page.get_by_role("alert")).to_have_text("no such page")
    forget_refusals(open_page, 404)


def test_a_page_that_failed_can_be_tried_again(address: str, open_page) -> None:
    page = open_page(address)
    page.route("**/api/classes?*", lambda route: route.abort())
    page.goto(f"{address}/#/classes")
    expect(page.get_by_role("alert")).to_have_text("the server does not respond; is it still running?")
    page.unroute("**/api/classes?*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    open_page.meant.append("net::ERR_FAILED")


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


def test_an_empty_store_says_how_to_fill_it(collection: Collection, open_page) -> None:
    with running(create_app(collection.encoder, MemoryStore([], np.empty((0, 8), np.float32)), None)) as url:
        page = open_page(url)
        for path in ("#/", "#/map", "#/classes"):
            page.goto(f"{url}/{path}")
            expect(page.locator(".empty")).to_contain_text("softtriple index RUN DATA --store URI")
        page.goto("about:blank")


def test_the_page_notices_that_the_store_has_changed(collection: Collection, open_page) -> None:
    store = MemoryStore([one for one, _ in collection.store.get(collection.ids)], np.eye(25, 8, dtype=np.float32))
    with running(create_app(collection.encoder, store, None)) as url:
        page = open_page(url)
        page.clock.install()  # the page asks every five seconds, which the test does not wait for
        page.reload()
        shown = page.get_by_role("list", name="Items in the gallery").get_by_role("listitem")
        expect(shown).to_have_count(25)
        store.delete(["set/0-0.png"])
        page.clock.fast_forward(5000)
        expect(page.locator("#about")).to_contain_text("24 items")
        expect(page.get_by_role("status").filter(has_text="1 item fewer")).to_be_visible()
        page.get_by_role("button", name="Update the page").click()
        expect(shown).to_have_count(24)
        expect(page.get_by_role("button", name="Update the page")).to_be_hidden()
        # As many items as before, but one is of another class.
        item, vector = store.get(["set/0-1.png"])[0]
        store.put([replace(item, class_name="another")], vector[None])
        page.clock.fast_forward(5000)
        expect(page.get_by_role("status").filter(has_text="The store has changed.")).to_be_visible()
        page.goto("about:blank")
    forget_refusals(open_page, 404)  # the image of the deleted item, if it was still loading


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
        expect(page.locator(".lead")).to_contain_text("intervals are computed for Recall@1 and MAP@R")
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


def test_a_comparison_that_takes_long_is_waited_for(
    collection: Collection, open_page, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr("softtriple.gallery.compare.SHORT", 0.01)
    monkeypatch.setattr("softtriple.gallery.compare.compare", lambda *given: (go_on.wait(30), compare(*given))[1])
    with running(collection.app(other=Other(("one", "two"), collection.store))) as url:
        page = open_page(f"{url}/#/compare")
        expect(page.locator(".lead")).to_contain_text("Comparing one and two")
        expect(page.get_by_role("progressbar", name="Comparing")).to_be_visible()
        go_on.set()
        expect(page.get_by_role("row").filter(has_text="Recall@1")).to_be_visible()
        page.get_by_role("button", name="Only two right: 0").click()
        expect(page.get_by_text("There are none.")).to_be_visible()
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
        page.get_by_role("button", name="Select all 25").click()
        expect(bar).to_contain_text("25 items selected")
        bar.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.locator("main")).to_contain_text("The store is empty")
        assert store.count() == 0
        with page.expect_download() as started:
            bar.get_by_role("button", name="Changes as CSV").click()
        assert started.value.path().read_text().startswith("item,label,before,tags\n")
        bar.get_by_role("button", name="Undo").click()
        expect(page.locator("canvas[data-drawn='25']")).to_be_visible()
        assert (tmp_path / "s.changes.csv").read_text().splitlines()[1:] == [
            "set/0-1.png,green,blue,blurred",
            "set/0-2.png,green,blue,",
        ]
        page.goto("about:blank")
    forget_refusals(open_page, 401)


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
    # The second scheme differs in its colours only.
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast", "link-in-text-block"]}
    with running(collection.app(other=other, audits=Audits(make_audit(tmp_path / "audit")))) as url:
        page = open_page(f"{url}/docs", color_scheme=scheme)
        for path in ["docs", *paths]:
            page.goto(f"{url}/{path}")
            expect(page.locator("h1")).to_be_visible()
            expect(page.locator(".loading")).to_have_count(0)
            if page.evaluate("!window.axe"):  # all views are in one document
                page.evaluate(AXE.read_text(encoding="utf-8"))
            result = page.evaluate("(rules) => axe.run(document, rules)", rules)
            assert len(result["passes"]) > (10 if scheme == "light" else 0)
            assert [(one["id"], one["nodes"][0]["html"]) for one in result["violations"]] == []
            page.locator("h1").evaluate("(heading) => heading.remove()")  # the next view is there when its own is
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
