"""Images in and out of the server: decoded uploads and thumbnails of stored items."""

import base64
import threading
from collections import OrderedDict
from io import BytesIO
from typing import Literal

from PIL import Image
from starlette.exceptions import HTTPException

from softtriple.data.images import FORMATS, ImageError, decode_image, to_rgb

Size = Literal["small", "large", "full"]

# Of the longer side: about twice the size on the page, or as much as a screen can show.
PIXELS: dict[Size, int] = {"small": 256, "large": 800, "full": 3840}
CACHE_BYTES = 64_000_000

_INLINE = "data:image/png;base64,"
_NAME = "an image in the store"


def decode_upload(data: bytes, max_pixels: int) -> Image.Image:
    """The image in ``data`` as RGB; its size is checked before any pixel is decoded."""
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # the latter if warnings are errors
        raise HTTPException(413, f"the image has too many pixels; the limit is {max_pixels}") from None
    except Exception:  # decoders of damaged files raise OSError, SyntaxError, struct.error, IndexError, …
        raise HTTPException(415, f"not a readable image; supported formats: {', '.join(FORMATS)}") from None
    with image:
        width, height = image.size
        if width * height > max_pixels:
            raise HTTPException(413, f"the image has {width}×{height} pixels; the limit is {max_pixels} in total")
        try:
            return to_rgb(image, "the image")
        except ImageError as error:
            raise HTTPException(415, str(error)) from None
        except Exception:
            raise HTTPException(415, "not a readable image: the file is damaged or incomplete") from None


class Thumbnails:
    """Thumbnails of stored items, with the most recently used small ones kept in memory; safe to use from threads."""

    def __init__(self, max_bytes: int = CACHE_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, source: str, size: Size) -> bytes:
        """The thumbnail of the image at ``source``, as WebP."""
        if size != "small":  # viewed one at a time, and large enough to push everything else out
            return make_thumbnail(source, size)
        with self._lock:
            if source in self._cache:
                self._cache.move_to_end(source)
                return self._cache[source]
        thumbnail = make_thumbnail(source, size)
        with self._lock:
            if source not in self._cache:
                self._cache[source] = thumbnail
                self._bytes += len(source) + len(thumbnail)
            while self._bytes > self._max_bytes:
                oldest, dropped = self._cache.popitem(last=False)
                self._bytes -= len(oldest) + len(dropped)
        return thumbnail


def make_thumbnail(source: str, size: Size) -> bytes:
    """The image at ``source``, a path or a data URL, scaled down to ``size`` as WebP; never enlarged."""
    image = _open(source)
    image.thumbnail((PIXELS[size], PIXELS[size]), Image.Resampling.BILINEAR)
    buffer = BytesIO()
    # Lossy compression would blur drawings of a few pixels, which are small anyway.
    image.save(buffer, "WEBP", quality=85, method=2, lossless=max(image.size) <= 64)
    return buffer.getvalue()


def _open(source: str) -> Image.Image:
    if not source.startswith(_INLINE):
        return decode_image(source)
    try:
        data = base64.b64decode(source.removeprefix(_INLINE))
        with Image.open(BytesIO(data), formats=("PNG",)) as image:  # `index` writes nothing else
            return to_rgb(image, _NAME)
    except ImageError:
        raise
    except Exception as error:  # damaged base64 is a ValueError; for damaged images see decode_image
        raise ImageError(_NAME, "not a readable PNG") from error
