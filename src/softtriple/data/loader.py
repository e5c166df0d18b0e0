"""Batches of tensors from rows of a split; the only place that reads pixels for training and evaluation."""

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import Any

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
Pixels = UInt8[np.ndarray, "batch size size"] | UInt8[np.ndarray, "batch size size 3"]


def batches(
    split: Split,
    row_batches: Iterable[Rows],
    view: View | None = None,
    *,
    seed: int = 0,
    epoch: int = 0,
    cache: ImageCache | None = None,
    workers: int | None = None,
    prepare: Callable[[Any], Tensor] | None = None,
) -> Generator[Batch, None, None]:
    """Inputs and labels for each of ``row_batches``: uint8 (n, size, size, 3), float32 (n, dim) or a list of texts.

    Images need a ``view``; its random augmentation depends only on (seed, epoch, row). ``workers`` threads (None: one
    per CPU) decode and crop images in advance; they are joined when the generator ends or is closed. ``prepare`` turns
    a batch into network input. An unreadable image raises ImageError.
    """
    finish = prepare or (lambda inputs: inputs)
    items, labels = split.items, torch.tensor(split.labels)
    if cache is not None and not isinstance(items, ImageFiles):
        raise ValueError(f"an image cache is for image files, not for {type(items).__name__}")
    if isinstance(items, Vectors | Texts):
        if view is not None:
            raise ValueError(f"a view is for images, not for {type(items).__name__}")
        return _plain_batches(items, labels, row_batches, finish)
    if view is None:
        raise ValueError("images need a view, which sets their size and crop")
    load: Callable[[Rows], Pixels]
    if isinstance(items, ImageArray) and _shown_whole(items, view):
        load, workers = items.pixels.__getitem__, 0
    else:
        load = partial(_load, read=_reader(items, view, cache), view=view, seed=seed, epoch=epoch)
    draws = None
    if view.augment == "affine":
        draws = torch.from_numpy(affine_draws(len(items), stream("affine", seed, epoch)))

    def read() -> Generator[Batch, None, None]:
        # No torch in the workers: each would get a team of threads, and with more threads than cores those of the
        # network sleep and wake at every layer instead of spinning, which takes a fifth longer.
        with closing(map_ahead(lambda rows: (rows, load(rows)), row_batches, workers)) as loaded:
            for rows, pixels in loaded:
                yield finish(_augmented(pixels, None if draws is None else draws[rows])), labels[rows]

    return read()


def find_unreadable(
    files: ImageFiles, *, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> dict[int, ImageError]:
    """The rows of ``files`` that cannot be decoded, with their errors."""
    unreadable = {}
    for row, error in enumerate(map_ahead(_attempt, files.paths, workers)):
        if error is not None:
            unreadable[row] = error
        if progress is not None:
            progress(row + 1, len(files))
    return unreadable


def _plain_batches(
    items: Vectors | Texts, labels: Tensor, row_batches: Iterable[Rows], finish: Callable[[Any], Any]
) -> Generator[Batch, None, None]:
    for rows in row_batches:
        chosen = items.take(rows).values
        yield finish(list(chosen) if isinstance(chosen, tuple) else torch.from_numpy(chosen)), labels[rows]


def _augmented(images: Pixels, draws: Tensor | None) -> UInt8[Tensor, "batch size size 3"]:
    pixels = torch.from_numpy(images)
    # Grey images become RGB last: transforming one channel takes a third of the time.
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    if draws is not None:
        pixels = apply_affine(pixels, draws)
    return pixels.expand(-1, -1, -1, 3).contiguous()


def _shown_whole(items: ImageArray, view: View) -> bool:
    """Whether the images already have the size of the view, so that a batch is a slice of the array."""
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


def _load(rows: Rows, *, read: Callable[[int], Image.Image], view: View, seed: int, epoch: int) -> Pixels:
    random_crop = RANDOM_CROPS.get(view.augment)

    def load(row: int) -> Image.Image:
        if random_crop is None:
            return center_crop(read(row), view.size)
        return random_crop(read(row), view.size, stream("crop", seed, epoch, row))

    return np.stack([np.asarray(load(row)) for row in map(int, rows)])


def _attempt(path: str) -> ImageError | None:
    try:
        decode_image(path)
    except ImageError as error:
        return error
    return None
