"""Inspection of items without a model: content digests, thumbnails, and unreadable or odd items.

Every image is decoded once. A damaged image is reported and does not stop the inspection.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from softtriple.data.benchmark import ImageArray, ImageFiles, ImageList, Items, Texts, Vectors
from softtriple.data.images import decode_image, open_image
from softtriple.data.prefetch import map_ahead
from softtriple.errors import UserError

THUMBNAIL = 24  # pixels per side: enough to distinguish photographs, and to align a cropped copy
BLANK = 2.0  # standard deviation of grey levels (0 to 255) below which an image counts as blank
TINY = 32  # pixels of the short side
ELONGATED = 4.0  # long side over short side
USUAL_MODE = 0.9  # share of images with the same mode above which other modes are odd
SHORT_TEXT = 3  # characters
LONG_TEXT = 20.0  # times the median length
ODD_LENGTH = 10.0  # ratio of the length of a vector to the median, or its inverse

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Inspection:
    """A digest of each item (equal for exact copies), thumbnails of images, and problems by row."""

    digests: tuple[bytes, ...]
    thumbnails: UInt8[np.ndarray, "items side side 3"] | None
    unreadable: dict[int, str]
    odd: dict[int, str]


class _Look(NamedTuple):
    """Properties of one decoded image; only ``error`` counts if it cannot be read."""

    digest: bytes
    thumbnail: UInt8[np.ndarray, "side side 3"]
    size: tuple[int, int]
    contrast: float
    mode: str
    error: str = ""


def inspect_items(items: Items, *, workers: int | None = None, progress: Progress | None = None) -> Inspection:
    """Inspect every item once."""
    match items:
        case Texts(values):
            digests = tuple(_digest(" ".join(value.split()).encode("utf-8", "surrogatepass")) for value in values)
            return Inspection(digests, None, {}, _odd_texts(values))
        case Vectors(values):
            return Inspection(tuple(_digest(row.tobytes()) for row in values), None, {}, _odd_vectors(values))
    looks = []
    for look in _looks(items, workers):
        looks.append(look)
        if progress is not None:
            progress(len(looks), len(items))
    return Inspection(
        tuple(look.digest for look in looks),
        np.stack([look.thumbnail for look in looks]) if looks else np.zeros((0, THUMBNAIL, THUMBNAIL, 3), np.uint8),
        {row: look.error for row, look in enumerate(looks) if look.error},
        _odd_images(looks, files=isinstance(items, ImageFiles)),
    )


def pixel_features(items: ImageArray | ImageList, side: int = 16) -> Float32[np.ndarray, "items features"]:
    """Images as vectors of ``side``×``side`` grey levels from 0 to 1."""
    rows = np.empty((len(items), side * side), np.float32)
    for row, pixels in enumerate(items.pixels):
        grey = Image.fromarray(pixels).convert("L").resize((side, side), Image.Resampling.BOX)
        rows[row] = np.asarray(grey, np.float32).ravel() / 255
    return rows


def _looks(items: ImageFiles | ImageArray | ImageList, workers: int | None) -> Iterator[_Look]:
    if isinstance(items, ImageFiles):
        yield from map_ahead(_look_at_file, items.paths, workers)
    else:
        for pixels in items.pixels:
            image = Image.fromarray(pixels)
            yield _look(image.convert("RGB"), _digest(np.ascontiguousarray(pixels).tobytes()), image.mode)


def _look_at_file(path: str) -> _Look:
    try:
        image = decode_image(path)
        with open_image(path) as opened:
            mode = opened.mode
        return _look(image, _digest(Path(path).read_bytes()), mode)
    except (UserError, OSError) as error:
        nothing = np.zeros((THUMBNAIL, THUMBNAIL, 3), np.uint8)
        reason = str(error).removeprefix(f"{path}: ")
        return _Look(_digest(path.encode("utf-8", "surrogatepass")), nothing, (0, 0), 0.0, "", reason)


def _look(image: Image.Image, digest: bytes, mode: str) -> _Look:
    thumbnail = np.asarray(image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS))
    return _Look(digest, thumbnail, image.size, float(np.asarray(image.convert("L"), np.float32).std()), mode)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _odd_images(looks: Sequence[_Look], *, files: bool) -> dict[int, str]:
    readable = {row: look for row, look in enumerate(looks) if not look.error}
    modes = Counter(look.mode for look in readable.values())
    usual = next((mode for mode, count in modes.items() if count >= USUAL_MODE * len(readable)), None)
    odd = {}
    for row, look in readable.items():
        width, height = look.size
        reasons = []
        if look.contrast < BLANK:
            reasons.append("blank")
        if files and min(look.size) < TINY:
            reasons.append(f"tiny: {width}×{height} pixels")
        if max(look.size) > ELONGATED * min(look.size):
            reasons.append(f"elongated: {width}×{height} pixels")
        if usual is not None and look.mode != usual:
            reasons.append(f"mode {look.mode}, most are {usual}")
        if reasons:
            odd[row] = "; ".join(reasons)
    return odd


def _odd_texts(values: Sequence[str]) -> dict[int, str]:
    lengths = np.array([len(" ".join(value.split())) for value in values])
    longest = LONG_TEXT * np.median(lengths) if len(lengths) else 0
    short = {int(row): "blank or very short" for row in np.flatnonzero(lengths < SHORT_TEXT)}
    return short | {int(row): f"very long: {lengths[row]} characters" for row in np.flatnonzero(lengths > longest)}


def _odd_vectors(values: Float32[np.ndarray, "items dim"]) -> dict[int, str]:
    lengths = np.linalg.norm(values, axis=1)
    median = float(np.median(lengths)) if len(lengths) else 0.0
    odd = {int(row): "zero vector" for row in np.flatnonzero(lengths == 0)}
    far = (lengths > ODD_LENGTH * median) | ((lengths > 0) & (lengths < median / ODD_LENGTH))
    return odd | {int(row): f"length {lengths[row]:.3g}, the median is {median:.3g}" for row in np.flatnonzero(far)}
