"""From rows to tensors: the only place that reads pixels for training and evaluation."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from softtriple.data.benchmark import ImageArray, ImageFiles, ImageList, Rows, Split, Texts, Vectors
from softtriple.data.cache import ImageCache
from softtriple.data.images import (
    RANDOM_CROPS,
    ImageError,
    View,
    affine_draws,
    apply_affine,
    center_crop,
    decode_image,
    resize_short_side,
)
from softtriple.data.prefetch import map_ahead
from softtriple.data.sampling import stream

Batch = tuple[Tensor | list[str], Tensor]


def batches(
    split: Split,
    row_batches: Iterable[Rows],
    view: View | None = None,
    *,
    seed: int = 0,
    epoch: int = 0,
    cache: ImageCache | None = None,
    workers: int | None = None,
) -> Generator[Batch, None, None]:
    """Inputs and labels for each of ``row_batches``: uint8 (n, size, size, 3), float32 (n, dim) or a list of texts.

    Images need a ``view``; what is random in it depends only on (seed, epoch, row). ``workers`` threads (None: one
    per CPU) decode images in advance and are joined when the generator ends or is closed. An unreadable image is an
    ImageError.
    """
    items, labels = split.items, torch.tensor(split.labels)
    if cache is not None and not isinstance(items, ImageFiles):
        raise ValueError(f"an image cache is for image files, not for {type(items).__name__}")
    if isinstance(items, Vectors | Texts):
        if view is not None:
            raise ValueError(f"a view is for images, not for {type(items).__name__}")
        return _plain_batches(items, labels, row_batches)
    if view is None:
        raise ValueError("images need a view, which sets their size and crop")
    if isinstance(items, ImageArray) and _shown_whole(items, view):
        pictures = map_ahead(lambda rows: _Pictures(rows, items.pixels[rows]), row_batches, workers=0)
    else:
        load = partial(_load, read=_reader(items, view, cache), view=view, seed=seed, epoch=epoch)
        pictures = map_ahead(load, row_batches, workers)
    draws = None
    if view.augment == "affine":
        draws = torch.from_numpy(affine_draws(len(items), stream("affine", seed, epoch)))
    return _image_batches(pictures, labels, draws)


def find_unreadable(
    files: ImageFiles, *, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[int, ImageError]:
    """The rows of ``files`` that cannot be decoded, each with its path and the reason."""
    unreadable = {}
    for row, error in enumerate(map_ahead(_attempt, files.paths, workers)):
        if error is not None:
            unreadable[row] = error
        if progress is not None:
            progress(row + 1, len(files))
    return unreadable


class _Pictures(NamedTuple):
    """The rows of a batch and their pixels."""

    rows: Rows
    pixels: UInt8[np.ndarray, "batch size size"] | UInt8[np.ndarray, "batch size size 3"]


def _plain_batches(items: Vectors | Texts, labels: Tensor, row_batches: Iterable[Rows]) -> Generator[Batch, None, None]:
    for rows in row_batches:
        chosen = items.take(rows).values
        yield list(chosen) if isinstance(chosen, tuple) else torch.from_numpy(chosen), labels[rows]


def _image_batches(
    pictures: Generator[_Pictures, None, None], labels: Tensor, draws: Tensor | None
) -> Generator[Batch, None, None]:
    with closing(pictures):
        for rows, images in pictures:
            pixels = torch.from_numpy(images)
            # Grey images become RGB last: transforming one channel is three times faster.
            pixels = pixels[..., None] if pixels.ndim == 3 else pixels
            if draws is not None:
                pixels = apply_affine(pixels, draws[rows])
            yield pixels.expand(-1, -1, -1, 3).contiguous(), labels[rows]


def _shown_whole(items: ImageArray, view: View) -> bool:
    """Whether the images already are what the view shows, so that a batch takes only indexing."""
    same_size = items.pixels.shape[1:3] == (view.size, view.size) and view.resize == view.size
    return same_size and view.augment not in RANDOM_CROPS


def _reader(
    items: ImageFiles | ImageArray | ImageList, view: View, cache: ImageCache | None
) -> Callable[[int], Image.Image]:
    """A function from a row to its image, resized as ``view`` says."""
    side = view.resize
    if not isinstance(items, ImageFiles):
        return lambda row: resize_short_side(Image.fromarray(items.pixels[row]), side)
    if cache is None:
        return lambda row: resize_short_side(decode_image(items.paths[row]), side)
    if cache.short_side != side:
        raise ValueError(f"the image cache has a short side of {cache.short_side}, the view needs {side}")
    return lambda row: cache.image(items.paths[row])


def _load(rows: Rows, *, read: Callable[[int], Image.Image], view: View, seed: int, epoch: int) -> _Pictures:
    random_crop = RANDOM_CROPS.get(view.augment)

    def load(row: int) -> Image.Image:
        if random_crop is None:
            return center_crop(read(row), view.size)
        return random_crop(read(row), view.size, stream("crop", seed, epoch, row))

    return _Pictures(rows, np.stack([np.asarray(load(row)) for row in map(int, rows)]))


def _attempt(path: str) -> ImageError | None:
    try:
        decode_image(path)
    except ImageError as error:
        return error
    return None
