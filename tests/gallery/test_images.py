"""Thumbnails: what is kept in memory, and what is not an image. Uploads are tested in test_security.py."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from softtriple.data.images import ImageError
from softtriple.gallery.images import Thumbnails, make_thumbnail


def png(side: int = 40) -> bytes:
    buffer = BytesIO()
    Image.effect_noise((side, side), 80).save(buffer, "PNG")
    return buffer.getvalue()


def test_only_small_thumbnails_are_kept(tmp_path: Path) -> None:
    source = tmp_path / "a.png"
    source.write_bytes(png())
    thumbnails = Thumbnails()
    small = [thumbnails.get(str(source), "small"), thumbnails.get(str(source), "large")][0]
    source.unlink()
    assert thumbnails.get(str(source), "small") == small
    with pytest.raises(ImageError, match="no such file"):
        thumbnails.get(str(source), "large")


def test_the_least_recently_used_thumbnail_is_dropped_when_the_bytes_run_out(tmp_path: Path) -> None:
    sources = [tmp_path / f"{name}.png" for name in "abc"]
    for source in sources:
        source.write_bytes(png())
    one = len(str(sources[0])) + len(make_thumbnail(str(sources[0]), "small"))
    a, b, c = map(str, sources)
    thumbnails = Thumbnails(max_bytes=int(2.5 * one))
    for source in (a, b, a, c):
        thumbnails.get(source, "small")
    for path in sources:
        path.unlink()
    assert thumbnails.get(a, "small")
    assert thumbnails.get(c, "small")
    with pytest.raises(ImageError, match="no such file"):
        thumbnails.get(b, "small")


def test_a_thumbnail_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    source = tmp_path / "a.png"
    source.write_bytes(png())
    thumbnails = Thumbnails(max_bytes=10)
    assert thumbnails.get(str(source), "small")
    source.unlink()
    with pytest.raises(ImageError):
        thumbnails.get(str(source), "small")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    "encoded",
    [b64encode(EPS).decode(), b64encode(png()).decode()[:-3], b64encode(png()[:300]).decode(), "", "é"],
    ids=["another format", "damaged base64", "damaged image", "nothing", "no base64"],
)
def test_an_embedded_image_is_a_png_or_nothing(encoded: str) -> None:
    with pytest.raises(ImageError, match="an image in the store: not a readable PNG"):
        make_thumbnail(f"data:image/png;base64,{encoded}", "small")
