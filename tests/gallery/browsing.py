"""What the tests of the pages share."""

import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from tests.chromium import CHROMIUM

expect.set_options(timeout=30_000)

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="THE PAGE IS NOT TESTED: no chromium here; apt-get install chromium brings it"
)


def wait_until(true: Callable[[], bool]) -> None:
    # Not by wait_for_function, which the content policy of the page forbids.
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def forget_refusals(open_page, status: int) -> None:
    """Chromium itself writes refused requests to the console, sooner or later; these are meant."""
    open_page.meant.append(f"the server responded with a status of {status}")


def shadow(tile) -> str:
    """The outline of a picture."""
    return tile.locator(".frame").evaluate("(frame) => getComputedStyle(frame).boxShadow")


def widths(page: Page) -> list[int]:
    """Of the images, 0 for those that have not loaded yet."""
    return page.locator(".tiles img").evaluate_all("(images) => images.map((image) => image.naturalWidth)")
