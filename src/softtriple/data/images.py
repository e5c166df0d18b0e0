"""Views of images: what an encoder sees of one, and the random crops of training.

Geometry follows torchvision, with which the published numbers were made: bilinear with antialiasing, ten tries for a
random box.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

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
