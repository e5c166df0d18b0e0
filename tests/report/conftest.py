"""The browser of the gallery's tests."""

from tests.gallery.conftest import browser, open_page  # noqa: F401
