"""Small pictures of stored items. What is opened comes from the store, never from a request."""

import base64
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from typing import Literal

from PIL import Image

from softtriple.data.images import ImageError, decode_image, to_rgb

Size = Literal["small", "large"]

PIXELS: dict[Size, int] = {"small": 256, "large": 800}  # of the longer side: about twice what the page shows
KEPT = 2000  # encoded pictures in memory, about 10 kB each
_INLINE = "data:image/png;base64,"
_NAME = "a picture in the store"


def thumbnail_maker() -> Callable[[str, Size], bytes]:
    """A function from the source of an item and a size to a WebP picture, which remembers the last small ones.

    Large ones are looked at one by one, and so many of them would fill the memory.
    """
    kept = lru_cache(KEPT)(make_thumbnail)
    return lambda source, size: kept(source, size) if size == "small" else make_thumbnail(source, size)


def make_thumbnail(source: str, size: Size) -> bytes:
    """The picture in ``source``, a path or a data address, so that it fits in a square; small ones are not enlarged."""
    image = _open(source)
    image.thumbnail((PIXELS[size], PIXELS[size]), Image.Resampling.BILINEAR)
    buffer = BytesIO()
    # Drawings of a few pixels would blur, and are small enough as they are.
    image.save(buffer, "WEBP", quality=85, lossless=max(image.size) <= 64)
    return buffer.getvalue()


def _open(source: str) -> Image.Image:
    if not source.startswith(_INLINE):
        return decode_image(source)
    try:
        data = base64.b64decode(source.removeprefix(_INLINE))
        # What Pillow reads besides, some of it by starting another program, was never put into a store by us.
        with Image.open(BytesIO(data), formats=("PNG",)) as image:
            return to_rgb(image, _NAME)
    except ImageError:
        raise
    except Exception as error:  # damaged base64 is a ValueError; for damaged pictures see decode_image
        raise ImageError(_NAME, "not a readable PNG") from error
