"""A benchmark from paths, texts, images or vectors in memory, with a label for each."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from softtriple.data.benchmark import (
    Benchmark,
    ImageArray,
    ImageFiles,
    ImageList,
    Items,
    Labels,
    Split,
    Texts,
    Vectors,
)
from softtriple.data.images import IMAGE_SUFFIXES, array_to_rgb, to_rgb
from softtriple.data.splitting import contiguous_labels, divide, divided, index_names
from softtriple.errors import UserError, format_shape


def make_benchmark(
    items: Any,
    labels: Any,
    *,
    name: str = "data",
    split: str | None = None,
    test_share: float | None = None,
    seed: int | None = None,
) -> Benchmark:
    """A benchmark of ``items`` with ``labels``, split as ``load_benchmark`` splits a folder.

    ``items`` are image paths, texts, images (uint8 of n×h×w or n×h×w×3, or a list of Pillow images or arrays) or
    vectors (n×d), in lists, arrays or tensors. Strings are paths if all of them name existing files, else texts.
    ``labels`` are integers or strings.

    Example:
        >>> make_benchmark(["hi", "hello", "bye", "see you"], ["greet", "greet", "leave", "leave"]).notes[0]
        'data: train 2 texts of 1 class, test 2 texts of 1 class'
    """
    values = as_items(items)
    numbers, class_names = _as_labels(labels)
    if len(values) != len(numbers):
        raise UserError(f"{len(values)} items but {len(numbers)} labels; expected one label per item")
    return divided(name, Split(values, numbers), class_names, divide(numbers, split, test_share, seed))


def as_items(items: Any) -> Items:
    """The ``Items`` value of paths, texts, images or vectors."""
    if isinstance(items, ImageFiles | ImageArray | ImageList | Vectors | Texts):
        return items
    if isinstance(items, str | os.PathLike):
        raise UserError(f"items = {str(items)!r}; expected a list or an array with one entry per item")
    if isinstance(items, Tensor):
        items = items.numpy(force=True)
    if isinstance(items, np.ndarray) and items.dtype.kind not in "OUT":
        return _from_array(items)
    rows = list(items)
    if not rows:
        raise UserError("there are no items")
    kinds = [_kind(row) for row in rows]
    if (other := next((row for row, kind in enumerate(kinds) if kind != kinds[0]), None)) is not None:
        raise UserError(f"items are of one kind, but row 0 is a {kinds[0]} and row {other} a {kinds[other]}")
    match kinds[0]:
        case "path":
            return _from_paths([Path(row) for row in rows])
        case "string":
            return _from_strings([str(row) for row in rows])
        case "Pillow image":
            return _from_images([np.asarray(to_rgb(image, f"row {row}")) for row, image in enumerate(rows)])
        case "array" if np.ndim(rows[0]) > 1:
            return _from_images(
                [np.asarray(array_to_rgb(_numpy(array), f"row {row}")) for row, array in enumerate(rows)]
            )
        case "array":
            lengths = [np.size(row) for row in rows]
            if (other := next((row for row, n in enumerate(lengths) if n != lengths[0]), None)) is not None:
                raise UserError(f"vector {other} has {lengths[other]} numbers, vector 0 has {lengths[0]}")
            return _from_array(np.stack([_numpy(row) for row in rows]))
        case kind:
            raise UserError(f"items: row 0 is a {kind}; expected paths, texts, images or vectors")


def _kind(row: Any) -> str:
    match row:
        case str():
            return "string"
        case os.PathLike():
            return "path"
        case Image.Image():
            return "Pillow image"
        case np.ndarray() | Tensor() | list() | tuple():
            return "array"
        case _:
            return type(row).__name__


def _from_array(array: np.ndarray) -> Items:
    shape = format_shape(array.shape)
    if array.ndim == 2 and array.dtype.kind in "fiu":
        with np.errstate(over="ignore"):  # overflow is reported below
            vectors = np.ascontiguousarray(array, dtype=np.float32)
        if len(wrong := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise UserError(f"vector {wrong[0]} contains NaN or infinity ({len(wrong)} of {len(vectors)} vectors do)")
        return Vectors(vectors)
    if array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3)):
        if array.dtype != np.uint8:
            raise UserError(f"images of {array.dtype} and shape {shape}; expected uint8 from 0 to 255")
        return ImageArray(array[..., 0] if array.ndim == 4 and array.shape[3] == 1 else array)
    advice = "; put the channels last: permute(0, 2, 3, 1)" if array.ndim == 4 and array.shape[1] in (1, 3) else ""
    raise UserError(
        f"items of {array.dtype} and shape {shape}; expected vectors (n×d) or uint8 images (n×h×w or n×h×w×3){advice}"
    )


def _from_images(images: Sequence[np.ndarray]) -> ImageArray | ImageList:
    if len({image.shape for image in images}) == 1:
        return ImageArray(np.stack(images))
    return ImageList(tuple(images))


def _numpy(array: Any) -> np.ndarray:
    return array.numpy(force=True) if isinstance(array, Tensor) else np.asarray(array)


def _from_strings(strings: list[str]) -> ImageFiles | Texts:
    exists = [_is_file(Path(string)) for string in strings]
    if all(exists) or all(Path(string).suffix.lower() in IMAGE_SUFFIXES for string in strings):
        return _from_paths([Path(string) for string in strings])
    if any(exists):
        file, text = exists.index(True), exists.index(False)
        raise UserError(
            f"row {file} ({strings[file]!r}) is an existing file, row {text} ({strings[text]!r}) is not; "
            "expected image paths only, or texts only (wrapped in softtriple.data.Texts)"
        )
    return Texts(tuple(strings))


def _from_paths(paths: list[Path]) -> ImageFiles:
    for row, path in enumerate(paths):
        if not _is_file(path):
            raise UserError(f"row {row}: no such file: {path}")
    return ImageFiles(tuple(str(path.absolute()) for path in paths))


def _is_file(path: Path) -> bool:
    with suppress(OSError, ValueError):  # a text is too long for a file name, or has a null character
        return path.is_file()
    return False


def _as_labels(labels: Any) -> tuple[Labels, tuple[str, ...]]:
    values = labels.numpy(force=True) if isinstance(labels, Tensor) else labels
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(f"labels have shape {format_shape(array.shape) or 'of one number'}; expected one per item")
    if array.dtype.kind in "iu":
        numbers, originals = contiguous_labels(array.astype(np.int64))
        return numbers, tuple(str(original) for original in originals)
    rows = list(values)
    if (wrong := next((row for row, value in enumerate(rows) if not isinstance(value, str)), None)) is not None:
        raise UserError(f"label {wrong} is {rows[wrong]!r}; expected only integers or only strings")
    return index_names([str(value) for value in rows])
