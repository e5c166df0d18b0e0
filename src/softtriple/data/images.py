"""Decoding images, and the views of them for training and evaluation: crops and random affine transforms.

Geometry follows torchvision, which the published results were made with: bilinear resizing with antialiasing, and ten
attempts at a random box.
"""

import importlib.util
import math
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, UInt8
from PIL import Image, ImageOps, TiffImagePlugin, UnidentifiedImageError, features
from torch import Tensor

from softtriple.errors import UserError, did_you_mean, format_shape

Box = tuple[int, int, int, int]

AUGMENTS = ("none", "crop", "resized-crop", "affine")


class ImageError(UserError):
    """An image that cannot be used: its path and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        name = self.path if self.path.isprintable() else repr(self.path)  # a name may contain line breaks and escapes
        return f"{name}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class View:
    """The part of an image that an encoder gets, as ``size``×``size`` pixels.

    First the short side is resized to ``resize``, unless that is None. ``augment`` is then "none": the centre crop;
    "crop": a random crop, mirrored half of the time (the paper); "resized-crop": a random box of random shape (the
    authors' code); or "affine": the centre crop, slightly rotated, zoomed and shifted, but not mirrored, because a
    mirrored character is a different one.
    """

    size: int
    resize: int | None
    augment: str = "none"

    def __post_init__(self) -> None:
        if self.augment not in AUGMENTS:
            raise UserError(f"unknown augment {self.augment!r}; {did_you_mean(self.augment, AUGMENTS)}")
        if self.size < 1 or (self.resize is not None and self.resize < self.size):
            raise UserError(f"a view of {self.size} pixels does not fit in a short side of {self.resize}")
        if self.resize is None and self.augment != "resized-crop":
            raise UserError(f"augment = {self.augment!r} needs a value for resize")


# Decoding.


def _readable_formats() -> tuple[str, ...]:
    # Pillow supports dozens more, some of them by running another program.
    formats = ["BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"]
    if "avif" in features.get_supported_modules():
        formats.append("AVIF")
    if importlib.util.find_spec("pillow_heif") is not None:
        importlib.import_module("pillow_heif").register_heif_opener()
        formats.append("HEIF")
    return tuple(formats)


FORMATS = _readable_formats()
IMAGE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpeg", ".jpg"),
    *(".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp"),
)
_PLUGINS = {  # suffix: the format, and how to install what reads it
    ".avif": ("AVIF", "pip install 'pillow>=11.3'"),
    ".heic": ("HEIF", "pip install pillow-heif"),
    ".heif": ("HEIF", "pip install pillow-heif"),
}
# A strip of 1×10 000 pixels would be resized to 256×2 560 000.
MAX_ASPECT = 100
# A TIFF decoder allocates whole tiles and strips, which may be far larger than the image; usual ones take 4 MB at most.
MAX_TILE_BYTES = 64 << 20


def decode_image(path: str) -> Image.Image:
    """Read ``path`` as upright 8-bit RGB; an image that cannot be read completely raises ImageError.

    Transparency is composited onto white, 16-bit grey is reduced to its upper 8 bits, an animation to its first frame.
    """
    try:
        with open_image(path) as image:
            return to_rgb(image, path)
    except ImageError:
        raise
    except FileNotFoundError as error:
        raise ImageError(path, "no such file") from error
    except UnidentifiedImageError as error:
        advice = missing_plugin(path) or f"none of {', '.join(FORMATS)}"
        raise ImageError(path, f"not a readable image ({advice})") from error
    except Exception as error:  # decoders of damaged files raise OSError, SyntaxError, struct.error, IndexError, …
        raise ImageError(path, f"not a readable image ({error})") from error


def open_image(path: str) -> Image.Image:
    """Open the image at ``path`` without reading its pixels."""
    if not stat.S_ISREG(Path(path).stat().st_mode):  # opening a pipe could block forever
        raise ImageError(path, "not a regular file")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise ImageError(path, "the file name is not valid UTF-8; rename the file") from error
    return Image.open(path, formats=FORMATS)


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Decode an open ``image`` as ``decode_image`` does; ``name`` stands for it in errors."""
    _check_size(image, name)
    _check_tiles(image, name)
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


def array_to_rgb(pixels: np.ndarray, name: str) -> Image.Image:
    """An 8-bit array of height×width×3, or height×width, as an RGB image; ``name`` stands for it in errors."""
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        got = f"{pixels.dtype} of {format_shape(pixels.shape)}"
        raise UserError(f"{name}: expected uint8 of height×width×3 (or height×width), got {got}")
    return to_rgb(Image.fromarray(pixels), name)


def missing_plugin(path: str) -> str | None:
    """How to install the decoder for ``path`` if its suffix needs one that is missing."""
    name, install = _PLUGINS.get(Path(path).suffix.lower(), (None, None))
    return None if name is None or name in FORMATS else f"to read {name} images: {install}"


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:  # Pillow only warns up to twice the limit
        raise ImageError(name, f"{width}×{height} pixels exceed Pillow's limit of {limit}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(name, f"{width}×{height} pixels: the long side is more than {MAX_ASPECT} times the short one")


def _check_tiles(image: Image.Image, name: str) -> None:
    """Reject a TIFF whose tiles or strips would make the decoder allocate far more than the image needs."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile) or not image.tile:  # no tiles: already decoded
        return
    tags, types = image.tag_v2, _tiff_types(image)
    # libtiff reads the tags itself: a size of a type unknown to Pillow would escape this check.
    if any(types.get(tag, _SHORT) not in (_SHORT, _LONG) for tag in _TIFF_SIZES):
        raise ImageError(name, "not a readable image (a TIFF size is neither a SHORT nor a LONG)")
    width, height = image.size
    if TiffImagePlugin.TILEWIDTH in types:
        width, height = tags[TiffImagePlugin.TILEWIDTH], tags[TiffImagePlugin.TILELENGTH]
    elif types.get(TiffImagePlugin.ROWSPERSTRIP) and tags[TiffImagePlugin.ROWSPERSTRIP] != 0xFFFFFFFF:
        height = max(height, tags[TiffImagePlugin.ROWSPERSTRIP])  # 0xFFFFFFFF means a single strip
    samples = tags.get(TiffImagePlugin.SAMPLESPERPIXEL, 1)
    bytes_per_pixel = samples * max(1, *tags.get(TiffImagePlugin.BITSPERSAMPLE, (1,))) / 8
    if width * height * bytes_per_pixel > max(MAX_TILE_BYTES, image.width * image.height * bytes_per_pixel):
        shape = f"{image.width}×{image.height} image with tiles or strips of {width}×{height} pixels"
        raise ImageError(name, f"a TIFF {shape} would take too much memory")


_SHORT, _LONG = 3, 4
_TIFF_SIZES = (
    TiffImagePlugin.BITSPERSAMPLE,
    TiffImagePlugin.SAMPLESPERPIXEL,
    TiffImagePlugin.ROWSPERSTRIP,
    TiffImagePlugin.TILEWIDTH,
    TiffImagePlugin.TILELENGTH,
)


def _tiff_types(image: TiffImagePlugin.TiffImageFile) -> dict[int, int]:
    """The type of each tag in the directory of an open TIFF; of a repeated tag, the first, like libtiff."""
    assert image.fp is not None
    position = image.fp.tell()
    image.fp.seek(0)
    header = image.fp.read(4)
    order = "<" if header[:2] == b"II" else ">"
    count, entry = ("Q", "HHQ8x") if 43 in header[2:] else ("H", "HHL4x")
    image.fp.seek(image.tag_v2.offset)
    (number,) = struct.unpack(order + count, image.fp.read(struct.calcsize(order + count)))
    entries = image.fp.read(min(number, 0xFFFF) * struct.calcsize(order + entry))
    image.fp.seek(position)
    types: dict[int, int] = {}
    for tag, kind, _ in struct.iter_unpack(order + entry, entries):
        types.setdefault(tag, kind)
    return types


# Resizing and cropping.


def resize_short_side(image: Image.Image, side: int | None) -> Image.Image:
    """``image`` resized to a short side of ``side`` at the same aspect ratio; unchanged if ``side`` is None."""
    short, long = sorted(image.size)
    if side is None or short == side:
        return image
    other = int(side * long / short)
    return image.resize((side, other) if image.width == short else (other, side), Image.Resampling.BILINEAR)


def center_crop(image: Image.Image, size: int) -> Image.Image:
    """The central ``size``×``size`` pixels."""
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)


def random_crop(image: Image.Image, size: int, generator: np.random.Generator) -> Image.Image:
    """A random crop of ``size``×``size`` pixels, mirrored half of the time."""
    left = int(generator.integers(image.width - size + 1))
    top = int(generator.integers(image.height - size + 1))
    return _maybe_mirror(image.crop((left, top, left + size, top + size)), generator)


def random_resized_crop(image: Image.Image, size: int, generator: np.random.Generator) -> Image.Image:
    """A random box of ``image`` resized to ``size``×``size``, mirrored half of the time."""
    box = random_box(image.width, image.height, generator)
    return _maybe_mirror(image.resize((size, size), Image.Resampling.BILINEAR, box=box), generator)


def random_box(width: int, height: int, generator: np.random.Generator) -> Box:
    """A box of 8 to 100 % of the area and aspect ratio 3:4 to 4:3; after ten failures, the largest central one."""
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


# The random affine.

MAX_DEGREES = 10.0
MAX_ZOOM = 0.15
MAX_SHIFT = 0.08  # of the side


def affine_draws(num_rows: int, generator: np.random.Generator) -> Float32[np.ndarray, "rows 4"]:
    """Random rotation, zoom and shift (right, down) of each row, in [-1, 1); independent of the number of rows."""
    return 2 * generator.random((num_rows, 4), dtype=np.float32) - 1


def apply_affine(
    pixels: UInt8[Tensor, "batch height width channels"], draws: Float32[Tensor, "batch 4"]
) -> UInt8[Tensor, "batch height width channels"]:
    """Rotate, zoom and shift each image about its centre by its ``draws``; the border is replicated."""
    turn, zoom, right, down = draws.unbind(dim=1)
    angle, scale = turn * math.radians(MAX_DEGREES), 1 + zoom * MAX_ZOOM
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    inverse = torch.stack(
        [torch.stack([cos, sin, right * 2 * MAX_SHIFT], 1), torch.stack([-sin, cos, down * 2 * MAX_SHIFT], 1)], 1
    )
    images = pixels.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(inverse, list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return moved.round_().byte().permute(0, 2, 3, 1).contiguous()
