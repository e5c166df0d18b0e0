"""The pages of classes in a real browser."""

import re
from urllib.parse import quote

import numpy as np
from playwright.sync_api import expect
from tests.gallery.browsing import needs_chromium, shadow
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_gallery import HOSTILE, Collection, running

from softtriple.gallery import create_app
from softtriple.models import Encoder
from softtriple.search import Item

pytestmark = needs_chromium


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
    page.get_by_label("Filter by name").fill("zebra")
    expect(page.get_by_text("No class matches the filter.")).to_be_visible()
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
    expect(page.get_by_text("none (the run was not trained on this class)")).to_be_visible()
    expect(page.get_by_role("list", name="Items of the class").get_by_role("listitem")).to_have_count(8)
    assert page.locator("img[src=x]").count() == 0, "a name is never markup"


def test_recall_appears_while_it_is_measured(collection: Collection, open_page, slow_measuring) -> None:
    with running(collection.app()) as url:
        page = open_page(f"{url}/#/classes")
        expect(page.get_by_role("progressbar", name="Items measured")).to_be_visible()
        expect(page.locator(".lead")).to_contain_text("10 of 25")
        # Other pages do not wait.
        page.goto(f"{url}/#/class/blue")
        expect(page.get_by_role("heading", name="blue", exact=True)).to_be_visible()
        page.goto(f"{url}/#/classes")
        slow_measuring.set()
        expect(page.locator(".lead")).to_contain_text("of all items")
        expect(page.get_by_role("progressbar")).to_have_count(0)
        page.goto("about:blank")


def test_a_class_is_shown_on_the_map(address: str, open_page) -> None:
    page = open_page(f"{address}/#/class/blue")
    page.get_by_role("link", name="this class on the map").click()
    expect(page.get_by_role("button", name="blue 8")).to_have_attribute("aria-pressed", "true")
