"""HTML from the templates of this folder: every value is escaped, and a page needs no other file."""

import base64
from functools import cache
from io import BytesIO
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from PIL import Image

from softtriple.report.pictures import Pixels

FEW_PIXELS = 48  # images up to this side are shown with their pixels as squares
THUMBNAIL = 96  # larger images are reduced to this side


class Thumbnail(NamedTuple):
    """An image inside a page: its class in the style sheet, its side on the page in pixels, and its content."""

    style: str
    side: int
    url: str


def render(template: str, **values: Any) -> str:
    """The page that the file ``template`` makes of ``values``; what cannot be written as UTF-8 becomes "?"."""
    return _environment().get_template(template).render(values).encode("utf-8", "replace").decode("utf-8")


def data_url(content: bytes, kind: str) -> str:
    """The content of a file of the media type ``kind`` as an address."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def thumbnail(pixels: Pixels) -> Thumbnail:
    """The image as a small file."""
    image = Image.fromarray(pixels)
    if max(image.size) <= FEW_PIXELS:
        return Thumbnail("pixels", FEW_PIXELS, _image_url(image, "png"))
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    # PNG is smaller for drawings, JPEG for photos.
    smaller = min(_image_url(image, "png"), _image_url(image, "jpeg"), key=len)
    return Thumbnail("photo", 3 * THUMBNAIL // 4, smaller)  # fewer pixels on the page: sharp on dense screens


def breakable(text: str) -> Markup:
    """``text`` that may break after an underscore, as long class names must under a picture."""
    return escape(text).replace("_", Markup("_<wbr>"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("softtriple.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"thumbnail": thumbnail, "breakable": breakable}
    return environment


def _image_url(image: Image.Image, kind: str) -> str:
    buffer = BytesIO()
    image.save(buffer, kind, optimize=True)
    return data_url(buffer.getvalue(), f"image/{kind}")
