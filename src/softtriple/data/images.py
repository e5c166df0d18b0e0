"""Views of images: what an encoder sees of one, and the random crops of training.

Geometry follows torchvision, with which the published numbers were made: bilinear with antialiasing, ten tries for a
random box.
"""

import math
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Box = tuple[int, int, int, int]

AUGMENTS = ("none", "crop", "resized-crop", "affine")
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)


@dataclass(frozen=True, kw_only=True)
class View:
    """What an encoder sees of an image: ``size``×``size`` pixels, found in one of four ways.

    The short side is first made ``resize`` (None keeps the image as it is). Then "none" takes the centre, "crop" a
    random place and side (the paper), "resized-crop" a random box of random shape (the authors' code), and "affine"
    the centre, turned, zoomed and shifted a little, never mirrored: for characters, where a mirror image means another.
    """

    size: int
    resize: int | None
    augment: str = "none"

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTS:
            raise ValueError(f"augment = {self.augment!r} is none of {', '.join(AUGMENTS)}")
        if self.size < 1 or (self.resize is not None and self.resize < self.size):
            raise ValueError(f"a view of {self.size} pixels does not fit in a short side of {self.resize}")
        if self.resize is None and self.augment != "resized-crop":
            raise ValueError(f"augment = {self.augment!r} crops from a known short side: give resize")


def random_crop(image: Image.Image, size: int, generator: np.random.Generator) -> Image.Image:
    """``size``×``size`` pixels from anywhere, mirrored half of the time."""
    left = int(generator.integers(image.width - size + 1))
    top = int(generator.integers(image.height - size + 1))
    return _maybe_mirror(image.crop((left, top, left + size, top + size)), generator)


def random_resized_crop(image: Image.Image, size: int, generator: np.random.Generator) -> Image.Image:
    """A random box of ``image`` made ``size``×``size``, mirrored half of the time."""
    box = random_box(image.width, image.height, generator)
    return _maybe_mirror(image.resize((size, size), Image.Resampling.BILINEAR, box=box), generator)


def random_box(width: int, height: int, generator: np.random.Generator) -> Box:
    """A box of 8 to 100 % of the area whose sides are as 3:4 to 4:3, or the largest in the middle if ten tries fail."""
    for _ in range(10):
        area = width * height * generator.uniform(*AREA)
        aspect = math.exp(generator.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        box_width, box_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < box_width <= width and 0 < box_height <= height:
            left = int(generator.integers(width - box_width + 1))
            top = int(generator.integers(height - box_height + 1))
            return left, top, left + box_width, top + box_height
    box_width = min(width, max(1, round(height * ASPECT[1])))
    box_height = min(height, max(1, round(width / ASPECT[0])))
    left, top = (width - box_width) // 2, (height - box_height) // 2
    return left, top, left + box_width, top + box_height


RANDOM_CROPS: dict[str, Callable[[Image.Image, int, np.random.Generator], Image.Image]] = {
    "crop": random_crop,
    "resized-crop": random_resized_crop,
}


def _maybe_mirror(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return ImageOps.mirror(image) if generator.random() < 0.5 else image


# Pillow reads dozens more, some by starting another program. Nobody keeps photographs in them.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A strip of 1×10 000 pixels would become 256×2 560 000: no photograph, and a way to fill the memory.
MAX_SIDES_RATIO = 100


class ImageError(ValueError):
    """An image that cannot be used: its path and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        name = self.path if self.path.isprintable() else repr(self.path)  # a name may hold line breaks and worse
        return f"{name}: {self.reason}"


def decode_image(path: str) -> Image.Image:
    """Read ``path`` as 8-bit RGB, upright; what cannot be read whole is an ImageError.

    Transparent pixels fall on white, 16-bit grey keeps its upper 8 bits, of an animation the first frame counts.
    """
    try:
        with open_image(path) as image:
            return to_rgb(image, path)
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise ImageError(path, "no such file") from error
    except UnidentifiedImageError as error:
        raise ImageError(path, f"not a readable image (none of {', '.join(FORMATS)})") from error
    except Exception as error:  # decoders of damaged files raise OSError, SyntaxError, struct.error, IndexError, …
        raise ImageError(path, f"not a readable image ({error})") from error


def open_image(path: str) -> Image.Image:
    """The image at ``path`` with its pixels not yet read."""
    if not stat.S_ISREG(Path(path).stat().st_mode):  # to open a pipe would mean to wait, perhaps for ever
        raise ImageError(path, "not a regular file")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ImageError(path, "its name is not UTF-8, so no table could name it; rename the file") from error
    return Image.open(path, formats=FORMATS)


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """An opened ``image`` as ``decode_image`` would give it; ``name`` stands for its path in errors."""
    _refuse_size(name, *image.size)
    image.load()
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        raise ImageError(name, "floating-point pixels have no defined white; save the image with 8 or 16 bits")
    if upright.mode.startswith("I"):
        # Pillow clips 16-bit grey to 255 instead of scaling it.
        values = np.asarray(upright).astype(np.int64).clip(0, 0xFFFF) >> 8
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright).convert("RGB")
    return upright.convert("RGB")


def resize_short_side(image: Image.Image, side: int) -> Image.Image:
    """``image`` with its short side made ``side``, its shape kept."""
    short, long = sorted(image.size)
    if short == side:
        return image
    other = int(side * long / short)
    return image.resize((side, other) if image.width == short else (other, side), Image.Resampling.BILINEAR)


def center_crop(image: Image.Image, size: int) -> Image.Image:
    """The ``size``×``size`` pixels in the middle."""
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def _refuse_size(path: str, width: int, height: int) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:  # Pillow itself only warns up to twice the limit
        raise ImageError(path, f"{width}×{height} pixels are more than Pillow's limit of {limit}")
    if max(width, height) > MAX_SIDES_RATIO * min(width, height):
        raise ImageError(path, f"{width}×{height} pixels are a strip, not a picture")
