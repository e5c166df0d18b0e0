"""The input of `Encoder.embed`, images, vectors or texts in any form, as batches for `Encoder.prepare`.

Images are resized and cropped as in evaluation, so that an image has the same embedding wherever it comes from.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Num, UInt8
from PIL import Image
from torch import Tensor

from softtriple.data.images import View, array_to_rgb, center_crop, decode_image, resize_short_side, to_rgb
from softtriple.errors import UserError, format_shape
from softtriple.models.preprocess import Preprocess, TextPreprocess

Pixels = UInt8[np.ndarray, "height width 3"] | UInt8[np.ndarray, "height width"]
# Lists are Sequence[Any] and checked item by item, so that the message says which item is wrong, and why.
Images = str | os.PathLike[str] | Image.Image | Pixels | Tensor | Sequence[Any]
Vectors = np.ndarray | Tensor | Sequence[Any]
Texts = str | Sequence[Any]
Batch = UInt8[Tensor, "batch height width 3"] | Float[Tensor, "batch in_features"] | list[str]


def input_batches(
    items: Images | Vectors | Texts,
    preprocess: Preprocess | TextPreprocess | None,
    in_features: int | None,
    batch_size: int,
) -> Iterator[Batch]:
    """Batches of ``items`` for a network with this ``preprocess``; a single item is a batch of one."""
    if preprocess is None:
        rows = _rows(items, in_features)
        for start in range(0, len(rows), batch_size):
            yield torch.from_numpy(rows[start : start + batch_size])
    elif isinstance(preprocess, Preprocess):
        for batch in _batched(_images(items), batch_size):
            pixels = [_eval_pixels(_rgb(image, f"image {number}"), preprocess.eval_view) for number, image in batch]
            yield torch.from_numpy(np.stack(pixels))
    else:
        for batch in _batched([items] if isinstance(items, str) else items, batch_size):
            yield [_text(text, f"text {number}") for number, text in batch]


def example_input(
    preprocess: Preprocess | TextPreprocess | None, in_features: int | None, count: int = 1
) -> Num[Tensor, "count ..."]:
    """Network input for ``count`` blank items, to learn its shape and type."""
    if preprocess is None:
        return torch.zeros(count, in_features or 1)
    if isinstance(preprocess, Preprocess):
        side = preprocess.eval_view.size
        return preprocess(torch.zeros(count, side, side, 3, dtype=torch.uint8))
    return preprocess([""] * count)


def _rows(vectors: Any, in_features: int | None) -> np.ndarray:
    array = vectors.numpy(force=True) if isinstance(vectors, Tensor) else np.asarray(vectors)
    if not array.size:
        return np.empty((0, in_features or 0), dtype=np.float32)
    rows = np.atleast_2d(array)
    if rows.ndim != 2 or rows.shape[1] != in_features or rows.dtype.kind not in "fiu":
        raise UserError(
            f"vectors: expected rows of {in_features} numbers, got {array.dtype} of shape {format_shape(array.shape)}"
        )
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise UserError(f"vector {wrong[0]} holds NaN or infinite numbers")
    return np.array(rows, dtype=np.float32, order="C")


def _images(images: Any) -> Any:
    """``images`` as something to iterate over; a single image becomes a list of one."""
    if isinstance(images, Tensor):
        # Channels first, as in torchvision; or three grey images.
        if images.ndim == 3 and images.shape[0] == 3 and images.shape[2] != 3:
            raise UserError(
                f"images: expected a tensor of height×width×3, got {format_shape(images.shape)}; use permute(1, 2, 0)"
            )
        images = images.numpy(force=True)
    single = isinstance(images, str | os.PathLike | Image.Image)
    if isinstance(images, np.ndarray):
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[2] == 3)
    return [images] if single else images


def _rgb(image: Any, name: str) -> Image.Image:
    if isinstance(image, str | os.PathLike):
        return decode_image(os.fspath(image))
    if isinstance(image, Image.Image):
        return to_rgb(image, name)
    if not isinstance(image, np.ndarray | Tensor):
        raise UserError(f"{name}: expected a path, a Pillow image or an array, got {type(image).__name__}")
    return array_to_rgb(image.numpy(force=True) if isinstance(image, Tensor) else image, name)


def _eval_pixels(image: Image.Image, view: View) -> UInt8[np.ndarray, "size size 3"]:
    assert view.resize is not None, "the evaluation view resizes"
    return np.asarray(center_crop(resize_short_side(image, view.resize), view.size))


def _text(text: Any, name: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"{name}: expected a string, got {type(text).__name__}")
    return str(text)  # NumPy's strings are a subclass


def _batched(items: Any, size: int) -> Iterator[list[tuple[int, Any]]]:
    """Lists of at most ``size`` items with their numbers."""
    remaining = enumerate(items)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
