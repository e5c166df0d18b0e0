"""The audit page in a real browser, from a finding to the table that training reads."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.gallery.browsing import needs_chromium
from tests.gallery.small_audit import make_audit
from tests.gallery.small_gallery import Collection, running

from softtriple.data.corrections import read_labels
from softtriple.gallery.audits import KINDS, Audits
from softtriple.gallery.schemas import AuditAnswer

pytestmark = needs_chromium


@pytest.fixture
def url(collection: Collection, tmp_path: Path) -> Iterator[str]:
    with running(collection.app(audits=Audits(make_audit(tmp_path / "audit")))) as address:
        yield address


def test_findings_are_shown_side_by_side(url: str, open_page) -> None:
    page = open_page(url)
    page.get_by_role("link", name="Audit").click()
    expect(page).to_have_title("Audit · softtriple gallery")
    expect(page.locator(".lead")).to_have_text("26 items of discs, compared by features of conv-small.")
    findings = page.get_by_role("list", name="Findings").locator("> li")
    expect(findings).to_have_count(2)
    first = findings.first
    expect(first).to_contain_text(re.compile("green → blue.*98.0"))
    expect(first.get_by_role("list", name="mislabelled.png").get_by_role("link")).to_have_count(1)
    expect(first.get_by_role("list", name="Items of blue").get_by_role("link")).to_have_count(4)
    page.get_by_role("button", name="Leaks: 1").click()
    expect(page.get_by_text("1 test item has a copy in train. Without them, Recall@1 is 50.0")).to_be_visible()
    page.get_by_role("button", name="Odd items: 3").click()
    expect(findings.filter(has_text="Far from every centre")).to_contain_text("cosine 0.12")
    page.get_by_role("button", name="Classes: 3").click()
    expect(findings.first).to_contain_text("blue and green are often confused 20.0")
    expect(findings.nth(1).get_by_text("Group 2 of blue")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Classes: 3")).to_have_attribute("aria-pressed", "true")
    page.goto("about:blank")


def test_what_a_person_confirms_is_exported(url: str, open_page) -> None:
    page = open_page(f"{url}/#/audit")
    findings = page.get_by_role("list", name="Findings").locator("> li")
    decided = page.get_by_role("region", name="Your decisions")
    expect(decided).to_be_hidden()
    findings.first.get_by_role("button", name="Relabel as blue").click()
    expect(decided).to_contain_text("1 item to relabel, 0 to leave out, 0 findings dismissed")
    findings.nth(1).get_by_role("button", name="Dismiss").click()
    page.get_by_role("button", name="Duplicates: 2").click()
    # All copies of the second group but one; of the first, whose labels differ, a person knows which.
    findings.nth(1).get_by_role("button", name="Leave out 1 copy").click()
    findings.first.get_by_role("listitem").first.get_by_role("button", name="Leave out").click()
    expect(decided).to_contain_text("1 item to relabel, 2 to leave out, 1 finding dismissed")
    # Decisions are still there after a reload.
    page.reload()
    expect(findings.nth(1).get_by_role("button", name="Leave out 1 copy")).to_have_attribute("aria-pressed", "true")
    with page.expect_download() as started:
        decided.get_by_role("button", name="Labels as CSV").click()
    assert read_labels(started.value.path()) == {"set/mislabelled.png": "blue", "gone.png": "", "set/0-0.png": ""}
    with page.expect_download() as started:
        decided.get_by_role("button", name="Exclusions as CSV").click()
    assert started.value.path().read_text().splitlines() == [
        "path,split,row,label",
        ",train,3,blue",
        ",train,1,blue",
    ]
    decided.get_by_role("button", name="Start over").click()
    expect(decided).to_be_hidden()
    expect(page.locator(".decided")).to_have_count(0)
    page.goto("about:blank")


@pytest.mark.parametrize("kind", KINDS)
def test_no_finding_is_wider_than_a_phone(url: str, open_page, kind: str) -> None:
    page = open_page(f"{url}/#/audit?show={kind}", viewport={"width": 360, "height": 740})
    expect(page.get_by_role("list", name="Findings").locator("> li").first).to_be_visible()
    page.get_by_role("button", name=re.compile("Leave out|Dismiss")).first.click()
    expect(page.get_by_role("region", name="Your decisions")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.goto("about:blank")


def test_an_item_that_the_store_lacks_is_named(url: str, open_page) -> None:
    page = open_page(f"{url}/#/audit?show=odd")
    first = page.get_by_role("list", name="Findings").locator("> li").first
    expect(first).to_contain_text("gone.png")
    expect(first).to_contain_text("Truncated")
    expect(first.get_by_role("list").get_by_role("link")).to_have_count(0)
    page.goto("about:blank")


def test_suspect_labels_are_a_colour_of_the_map(url: str, open_page) -> None:
    page = open_page(f"{url}/#/map")
    page.get_by_label("Colour by").select_option("suspect")
    entries = page.get_by_role("list", name="Legend").get_by_role("button")
    expect(entries).to_have_count(2)
    expect(page.get_by_text("Grey: no doubt about the label.")).to_be_visible()
    entries.filter(has_text="blue").click()
    page.reload()
    expect(page).to_have_url(re.compile("by=suspect"))
    expect(entries.filter(has_text="blue")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Select all in view").click()
    expect(page.get_by_role("list", name="Items in this area").get_by_role("link")).to_have_count(1)
    page.goto("about:blank")


def test_a_gallery_without_an_audit_does_not_offer_one(address: str, open_page) -> None:
    page = open_page(f"{address}/#/map")
    expect(page.get_by_label("Colour by")).to_be_visible()
    expect(page.get_by_role("link", name="Audit")).to_be_hidden()
    expect(page.get_by_role("option", name="Suspect label")).to_have_count(0)


def test_a_failed_audit_says_why_and_what_to_do(collection: Collection, open_page, tmp_path: Path) -> None:
    with running(collection.app(audits=Audits(tmp_path))) as url:
        page = open_page(f"{url}/#/audit")
        expect(page.get_by_role("alert")).to_contain_text("audit.json: no such file")
        expect(page.get_by_text("softtriple audit DATA_OR_RUN --out DIR")).to_be_visible()
        page.goto(f"{url}/#/map?by=suspect")
        expect(page.locator(".side")).to_have_text("The audit failed. See the audit page.")
        page.goto("about:blank")


def test_an_audit_that_is_being_made_is_waited_for(
    collection: Collection, open_page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Audits(make_audit(tmp_path / "audit"))
    answers = iter([AuditAnswer(state="computing", message="judging labels: 12 of 25")])
    ready = made.answer
    monkeypatch.setattr(made, "answer", lambda: next(answers, None) or ready())
    with running(collection.app(audits=made)) as url:
        page = open_page(f"{url}/#/audit")
        expect(page.get_by_role("status").filter(has_text="judging labels: 12 of 25")).to_be_visible()
        expect(page.get_by_role("progressbar", name="Auditing")).to_be_visible()
        expect(page.get_by_role("button", name="Suspect labels: 2")).to_be_visible()
        page.goto("about:blank")


def test_nothing_found(collection: Collection, open_page, tmp_path: Path) -> None:
    nothing = {name: [] for name in ("suspects", "duplicates", "unreadable", "odd", "outliers", "classes")}
    with running(collection.app(audits=Audits(make_audit(tmp_path / "audit", **nothing)))) as url:
        page = open_page(f"{url}/#/audit")
        expect(page.get_by_text("Nothing found")).to_be_visible()
        page.goto("about:blank")
