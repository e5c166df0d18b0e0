"""Omniglot: 1 623 handwritten characters of 50 alphabets, 20 drawings of each (Lake et al., Science 2015).

``omniglot:`` labels a drawing by its character: 964 for training, 659 others for testing. ``omniglot-alphabets:``
labels it by its alphabet, with the character as the fine label: hidden modes for the centres of a class to find. The
drawings are inverted, so that ink is 255 on 0, and cached as one memory-mapped array.
"""

import hashlib
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from softtriple.data.benchmark import Benchmark, ImageArray, MissingDataError, OnError, Split, with_notes
from softtriple.data.cache import cache_directory, cached, map_rows, read_arrays, write_rows
from softtriple.data.sources.layout import Counts, count, mark_incomplete
from softtriple.errors import UserError

VERSION = 2  # part of the cache key; increase it when the cached files change
CHARACTERS = Counts(train=19_280, test=13_180, gallery=0, train_classes=964, test_classes=659)
ALPHABETS = Counts(train=19_280, test=13_180, gallery=0, train_classes=30, test_classes=20)
PARTS = ("images_background", "images_evaluation")
SIDE = 105
DRAWERS = 20


def load_omniglot(path: Path, *, on_error: OnError = "stop", expected: Counts | None = CHARACTERS) -> Benchmark:
    """Load Omniglot with a class per character, from the two published archives or their unpacked folders."""
    (train, test), names, notes = _load_characters(path)
    benchmark = Benchmark(name="omniglot", class_names=names, train=train, test=test, notes=notes)
    return _check_complete(benchmark, path, on_error, expected)


def load_omniglot_alphabets(
    path: Path, *, on_error: OnError = "stop", expected: Counts | None = ALPHABETS
) -> Benchmark:
    """Load Omniglot with a class per alphabet; the fine label is the character."""
    parts, characters, notes = _load_characters(path)
    alphabets = tuple(dict.fromkeys(name.partition("/")[0] for name in characters))
    alphabet = np.array([alphabets.index(name.partition("/")[0]) for name in characters], dtype=np.int64)
    train, test = (Split(part.items, alphabet[part.labels], part.labels) for part in parts)
    benchmark = Benchmark(
        name="omniglot-alphabets", class_names=alphabets, train=train, test=test, fine_names=characters, notes=notes
    )
    return _check_complete(benchmark, path, on_error, expected)


def _load_characters(path: Path) -> tuple[list[Split], tuple[str, ...], tuple[str, ...]]:
    """The two parts with characters as labels, the names of the characters, and notes about the cache."""
    sources = [_find(path, part) for part in PARTS]
    stamps = "\n".join([str(VERSION), *(_stamps(source) for source in sources)])
    folder = cache_directory() / f"omniglot-{hashlib.sha256(stamps.encode()).hexdigest()[:16]}"
    notes: list[str] = []
    parts = cached(folder, partial(_prepare, sources=sources), _read, notify=notes.append)
    splits: list[Split] = []
    names: list[str] = []
    for pixels, characters, drawings in parts:
        labels = len(names) + np.repeat(np.arange(len(characters)), drawings)
        splits.append(Split(ImageArray(pixels), labels.astype(np.int64)))
        names += map(str, characters)
    return splits, tuple(names), tuple(notes)


def _prepare(folder: Path, *, sources: list[Path]) -> None:
    """Write the drawings of each part as PART.npy, its characters and their number of drawings as PART.npz."""
    for part, source in zip(PARTS, sources, strict=True):
        try:
            drawings = list(_drawings(source))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:  # damaged archives
            raise UserError(f"{source}: not a complete zip archive ({error}); download it again") from error
        if not drawings:
            raise UserError(f"{source}: no drawings; expected files ALPHABET/CHARACTER/NAME.png")
        pixels = (255 - _decode(source, name, content)[None] for _, name, content in drawings)
        write_rows(folder / f"{part}.npy", len(drawings), pixels)
        numbers = Counter(character for character, _, _ in drawings)
        np.savez(folder / f"{part}.npz", characters=list(numbers), drawings=list(numbers.values()))


def _read(folder: Path) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    parts = []
    for part in PARTS:
        characters, drawings = read_arrays(folder / f"{part}.npz", "characters", "drawings")
        parts.append((map_rows(folder / f"{part}.npy"), characters, drawings))
    return parts


def _find(path: Path, part: str) -> Path:
    for source in (path / part, path / f"{part}.zip"):
        if source.exists():
            return source
    raise MissingDataError(f"{path}: neither {part}.zip nor {part}/ found; both parts of Omniglot are needed")


def _stamps(source: Path) -> str:
    files = sorted(source.glob("*/*/*.png")) if source.is_dir() else [source]
    stats = [(str(file.resolve()), file.stat()) for file in files]
    return "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)


def _decode(source: Path, name: str, content: bytes) -> UInt8[np.ndarray, "105 105"]:
    try:
        with Image.open(BytesIO(content), formats=("PNG",)) as image:
            grey = np.asarray(image.convert("L"))
    except (OSError, SyntaxError) as error:  # as raised by Pillow for damaged PNG files
        raise UserError(f"{source}: {name} is not a readable image ({error})") from error
    if grey.shape != (SIDE, SIDE):
        raise UserError(f"{source}: {name} is {grey.shape[1]}×{grey.shape[0]}; expected {SIDE}×{SIDE}")
    return grey


def _drawings(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Character ("alphabet/character"), file name and content of each drawing, in name order."""
    if source.is_dir():
        for file in sorted(source.glob("*/*/*.png")):
            yield "/".join(file.parts[-3:-1]), str(file), file.read_bytes()
    else:
        with zipfile.ZipFile(source) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".png"):
                    yield "/".join(name.split("/")[-3:-1]), name, archive.read(name)


def _check_complete(benchmark: Benchmark, path: Path, on_error: OnError, expected: Counts | None) -> Benchmark:
    actual = count(benchmark)
    if expected is None or actual == expected:
        return with_notes(benchmark, *benchmark.notes)
    names = benchmark.fine_names or benchmark.class_names
    labels = [split.labels if split.fine_labels is None else split.fine_labels for split in benchmark.splits.values()]
    drawings = np.bincount(np.concatenate(labels), minlength=len(names))
    short = [f"{names[i]} has {drawings[i]}" for i in np.flatnonzero(drawings != DRAWERS)[:3]]
    which = f" ({', '.join(short)} of {DRAWERS} drawings)" if short else ""
    return mark_incomplete(benchmark, path, on_error, f"it has {actual}{which}, the published data {expected}")
