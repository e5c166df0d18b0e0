"""The site builds without warnings and loads nothing from other hosts."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from softtriple import SoftTripleLoss

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: nothing tests that the documentation builds")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_nothing_comes_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\s\">]+)|<link(?![^>]*rel=\"?(?:canonical|prev|next))[^>]*\shref=\"?([^\s\">]+)",
            page.read_text(encoding="utf-8"),
        )
        assert [url for pair in loaded for url in pair if url.startswith(("http", "//"))] == [], page.name


def test_api_pages_have_signatures_and_docstrings(site: Path) -> None:
    losses = html.unescape((site / "api" / "losses.html").read_text(encoding="utf-8"))
    assert 'id="softtriple.losses.SoftTripleLoss"' in losses
    assert (SoftTripleLoss.__doc__ or "").partition("\n")[0] in losses
    assert "centers_per_class" in losses
