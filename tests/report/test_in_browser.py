"""The report and the audit in a real browser: on a phone and a wide screen, light and dark, for everyone."""

from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.chromium import AXE
from tests.gallery.browsing import needs_chromium
from tests.report.test_audit import found as found  # the fixture
from tests.report.test_page import PAGE

from softtriple.report.audit import render_audit
from softtriple.report.page import render_page
from softtriple.training.audit import Audit

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def pages(found: Audit, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    content = {"report": render_page(PAGE), "audit": render_audit(found, command="softtriple audit x")}
    for name, page in content.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in content}


@pytest.mark.parametrize("name", ["report", "audit"])
def test_a_page_fits_a_phone_and_uses_a_wide_screen(pages: dict[str, str], open_page, name: str) -> None:
    page = open_page(pages[name], viewport={"width": 360, "height": 740}, color_scheme="dark")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page = open_page(pages[name], viewport={"width": 1440, "height": 900}, color_scheme="light")
    assert page.evaluate("document.body.getBoundingClientRect().width") > 1000
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


@pytest.mark.skipif(not AXE.is_file(), reason="accessibility is not tested: it needs npm for axe-core")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "audit"])
def test_nothing_is_inaccessible(pages: dict[str, str], open_page, name: str, scheme: str) -> None:
    page = open_page(pages[name], color_scheme=scheme)
    page.evaluate(Path(AXE).read_text(encoding="utf-8"))
    result = page.evaluate("() => axe.run(document)")
    assert [(one["id"], one["nodes"][0]["html"]) for one in result["violations"]] == []
