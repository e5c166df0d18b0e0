"""What `Encoder.embed` takes, as the batches that `Encoder.prepare` takes: images, vectors or texts of any origin.

Images get the resize and the centre crop of evaluation, so that a picture gives the same vector wherever it comes from.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from softtriple.data.images import center_crop, decode_image, resize_short_side, to_rgb
from softtriple.models.preprocess import Preprocess, TextPreprocess

Pixels = UInt8[np.ndarray, "height width 3"] | UInt8[np.ndarray, "height width"]
# Lists are written as Sequence[Any] and checked by hand: the message then says which item is wrong, and why.
Images = str | os.PathLike[str] | Image.Image | Pixels | Tensor | Sequence[Any]
Vectors = np.ndarray | Tensor | Sequence[Any]
Texts = str | Sequence[Any]
Batch = UInt8[Tensor, "batch height width 3"] | Float[Tensor, "batch in_features"] | list[str]


def input_batches(
    items: Images | Vectors | Texts, preprocess: Preprocess | TextPreprocess | None, in_features: int, batch_size: int
) -> Iterator[Batch]:
    """Batches of ``items`` for a network with this ``preprocess``; one item alone is a batch of one."""
    if preprocess is None:
        return _vector_batches(items, in_features, batch_size)
    if isinstance(preprocess, Preprocess):
        return _image_batches(items, preprocess, batch_size)
    return _text_batches(items, batch_size)


def _image_batches(
    images: Any, preprocess: Preprocess, batch_size: int
) -> Iterator[UInt8[Tensor, "batch height width 3"]]:
    if isinstance(images, Tensor):
        if images.ndim == 3 and images.shape[0] == 3 and images.shape[2] != 3:  # one image as torch has it, or three
            shape = "×".join(map(str, images.shape))
            raise ValueError(f"images: a tensor of height×width×3 is expected, got {shape}: permute(1, 2, 0)")
        images = images.numpy(force=True)
    single = isinstance(images, str | os.PathLike | Image.Image)
    if isinstance(images, np.ndarray):
        single = images.ndim == 2 or (images.ndim == 3 and images.shape[2] == 3)
    for numbered in _batched([images] if single else images, batch_size):
        yield torch.from_numpy(np.stack([_view(image, number, preprocess) for number, image in numbered]))


def _vector_batches(vectors: Any, in_features: int, batch_size: int) -> Iterator[Float[Tensor, "batch in_features"]]:
    array = vectors.numpy(force=True) if isinstance(vectors, Tensor) else np.asarray(vectors)
    if not array.size:
        return
    rows = np.atleast_2d(array)
    if rows.ndim != 2 or rows.shape[1] != in_features or rows.dtype.kind not in "fiu":
        shape = "×".join(map(str, array.shape))
        raise ValueError(f"vectors: expected rows of {in_features} numbers, got {array.dtype} of shape {shape}")
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        raise ValueError(f"vector {wrong[0]}: it holds NaN or infinite numbers")
    for start in range(0, len(rows), batch_size):
        yield torch.from_numpy(np.array(rows[start : start + batch_size], dtype=np.float32))


def _text_batches(texts: Any, batch_size: int) -> Iterator[list[str]]:
    for numbered in _batched([texts] if isinstance(texts, str) else texts, batch_size):
        for number, text in numbered:
            if not isinstance(text, str):
                raise ValueError(f"text {number}: expected a string, got {type(text).__name__}")
        yield [str(text) for _, text in numbered]


def _view(image: Any, number: int, preprocess: Preprocess) -> UInt8[np.ndarray, "size size 3"]:
    rgb = _rgb(image, f"image {number}")
    return np.asarray(center_crop(resize_short_side(rgb, preprocess.resize), preprocess.size))


def _rgb(image: Any, name: str) -> Image.Image:
    if isinstance(image, str | os.PathLike):
        return decode_image(os.fspath(image))
    if isinstance(image, Image.Image):
        return to_rgb(image, name)
    if not isinstance(image, np.ndarray | Tensor):
        raise ValueError(f"{name}: expected a path, a Pillow image or an array, got {type(image).__name__}")
    pixels = image.numpy(force=True) if isinstance(image, Tensor) else image
    if pixels.dtype != np.uint8 or not (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] == 3)):
        shape = "×".join(map(str, pixels.shape))
        raise ValueError(f"{name}: expected uint8 of height×width×3 (or height×width), got {pixels.dtype} of {shape}")
    return to_rgb(Image.fromarray(pixels), name)


def _batched(items: Iterable[Any], size: int) -> Iterator[list[tuple[int, Any]]]:
    """Lists of ``size`` items with their numbers; the last is perhaps shorter."""
    remaining = enumerate(items)
    while batch := list(itertools.islice(remaining, size)):
        yield batch
