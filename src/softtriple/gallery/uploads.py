"""From what a person sends to a query vector. Nothing of an upload is believed before Pillow has decoded it."""

from io import BytesIO

import numpy as np
from jaxtyping import Float
from PIL import Image
from starlette.exceptions import HTTPException

from softtriple.data.benchmark import Kind as Kind
from softtriple.data.images import FORMATS, ImageError, to_rgb
from softtriple.models import Encoder


def input_kind(encoder: Encoder) -> Kind:
    """What the encoder takes: this decides which search box the page shows."""
    return encoder.takes


def embed_upload(encoder: Encoder, data: bytes, max_pixels: int) -> Float[np.ndarray, "1 dim"]:
    """The vector of an uploaded picture."""
    if encoder.takes != "image":
        raise HTTPException(404, f"this run's encoder takes {encoder.takes}s, not images")
    return encoder.embed([decode_upload(data, max_pixels)])


def embed_text(encoder: Encoder, text: str) -> Float[np.ndarray, "1 dim"]:
    """The vector of a text."""
    if encoder.takes != "text":
        raise HTTPException(404, f"this run's encoder takes {encoder.takes}s, not texts")
    return encoder.embed([text])


def decode_upload(data: bytes, max_pixels: int) -> Image.Image:
    """The picture in ``data`` as RGB; its size is known from its head, before any pixel is unpacked."""
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # the latter where warnings are errors
        raise _too_large("hundreds of millions of", max_pixels) from None
    except Exception:  # decoders of damaged files raise OSError, SyntaxError, struct.error, IndexError, …
        known = ", ".join(FORMATS)
        raise HTTPException(415, f"this is not a picture that can be read; it should be one of {known}") from None
    with image:
        width, height = image.size
        if width * height > max_pixels:
            raise _too_large(f"{width}×{height}", max_pixels)
        try:
            return to_rgb(image, "the picture")
        except ImageError as error:
            raise HTTPException(415, str(error)) from None
        except Exception:
            raise HTTPException(415, "the picture is damaged: it begins well but cannot be read whole") from None


def _too_large(pixels: str, most: int) -> HTTPException:
    return HTTPException(413, f"a picture of {pixels} pixels is not read; it may have {most}")
