"""Omniglot: 1 623 handwritten characters of 50 alphabets, 20 drawings of each (Lake et al., Science 2015).

``omniglot:`` labels a drawing by its character: 964 to train on, 659 others to test on. ``omniglot-alphabets:`` labels
it by its alphabet and keeps the character as the fine label: hidden modes for the centres of a class to find.
The drawings are turned so that ink is 255 on a ground of 0, and kept as one memory-mapped array.
"""

import hashlib
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from softtriple.data.benchmark import Benchmark, ImageArray, Split, with_notes
from softtriple.data.cache import cache_directory, map_rows, mark_used, write_rows
from softtriple.data.sources.published import Counts, count
from softtriple.files import appearing_folder

CHARACTERS = Counts(train=19_280, test=13_180, gallery=0, train_classes=964, test_classes=659)
ALPHABETS = Counts(train=19_280, test=13_180, gallery=0, train_classes=30, test_classes=20)
PARTS = ("images_background", "images_evaluation")
SIDE = 105
DRAWERS = 20


def load_omniglot(path: Path, *, expected: Counts | None = CHARACTERS) -> Benchmark:
    """Load Omniglot with a class for each character, from the two published archives or their unpacked folders."""
    (train, test), names = _load_characters(path)
    benchmark = Benchmark(name="omniglot", class_names=names, train=train, test=test)
    return _checked(benchmark, path, expected)


def load_omniglot_alphabets(path: Path, *, expected: Counts | None = ALPHABETS) -> Benchmark:
    """Load Omniglot with a class for each alphabet; the fine label is the character."""
    parts, characters = _load_characters(path)
    alphabets = tuple(dict.fromkeys(name.partition("/")[0] for name in characters))
    alphabet = np.array([alphabets.index(name.partition("/")[0]) for name in characters], dtype=np.int64)
    train, test = (Split(part.items, alphabet[part.labels], part.labels) for part in parts)
    benchmark = Benchmark(
        name="omniglot-alphabets", class_names=alphabets, train=train, test=test, fine_names=characters
    )
    return _checked(benchmark, path, expected)


def _load_characters(path: Path) -> tuple[list[Split], tuple[str, ...]]:
    """The two parts of the set with characters as labels, read from the cache, and the names of the characters."""
    sources = [_find(path, part) for part in PARTS]
    key = hashlib.sha256("\n".join(_fingerprint(source) for source in sources).encode()).hexdigest()[:16]
    folder = cache_directory() / f"omniglot-{key}"
    if not folder.is_dir():
        with appearing_folder(folder) as temporary:
            for part, source in zip(PARTS, sources, strict=True):
                _prepare(source, temporary / part)
    mark_used(folder)
    splits: list[Split] = []
    names: list[str] = []
    for part in PARTS:
        try:
            drawings: dict[str, int] = json.loads((folder / f"{part}.json").read_text(encoding="utf-8"))
            pixels = map_rows(folder / f"{part}.npy")
        except (ValueError, OSError) as error:
            raise ValueError(f"{folder}: damaged ({error}); delete this folder and it is made again") from error
        labels = len(names) + np.repeat(np.arange(len(drawings)), list(drawings.values()))
        splits.append(Split(ImageArray(pixels), labels.astype(np.int64)))
        names += drawings
    return splits, tuple(names)


def _find(path: Path, part: str) -> Path:
    for source in (path / part, path / f"{part}.zip"):
        if source.exists():
            return source
    raise FileNotFoundError(f"{path}: neither {part}.zip nor {part}/ is there; both parts of Omniglot are needed")


def _fingerprint(source: Path) -> str:
    files = sorted(source.glob("*/*/*.png")) if source.is_dir() else [source]
    stats = [(str(file.resolve()), file.stat()) for file in files]
    return "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)


def _prepare(source: Path, target: Path) -> None:
    """Write the drawings of ``source`` as ``target``.npy, and the number of each character's drawings as .json."""
    try:
        drawings = list(_drawings(source))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:  # zipfile's for damaged archives
        raise ValueError(f"{source}: not a whole zip archive ({error}); fetch it again") from error
    if not drawings:
        raise ValueError(f"{source}: no drawings; they are expected as ALPHABET/CHARACTER/NAME.png")
    pixels = (255 - _decode(source, name, content)[None] for _, name, content in drawings)
    write_rows(target.with_suffix(".npy"), len(drawings), pixels)
    numbers = Counter(character for character, _, _ in drawings)
    target.with_suffix(".json").write_text(json.dumps(numbers), encoding="utf-8")


def _decode(source: Path, name: str, content: bytes) -> UInt8[np.ndarray, "105 105"]:
    try:
        with Image.open(BytesIO(content), formats=("PNG",)) as image:
            grey = np.asarray(image.convert("L"))
    except (OSError, SyntaxError) as error:  # Pillow's two for damaged PNG files
        raise ValueError(f"{source}: {name} is not a readable image ({error})") from error
    if grey.shape != (SIDE, SIDE):
        raise ValueError(f"{source}: {name} is {grey.shape[1]}×{grey.shape[0]}, a drawing is {SIDE}×{SIDE}")
    return grey


def _drawings(source: Path) -> Iterator[tuple[str, str, bytes]]:
    """Character ("alphabet/character"), file name and content of each drawing, in order of name."""
    if source.is_dir():
        for file in sorted(source.glob("*/*/*.png")):
            yield "/".join(file.parts[-3:-1]), str(file), file.read_bytes()
    else:
        with zipfile.ZipFile(source) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".png"):
                    yield "/".join(name.split("/")[-3:-1]), name, archive.read(name)


def _checked(benchmark: Benchmark, path: Path, expected: Counts | None) -> Benchmark:
    found = count(benchmark)
    if expected is not None and found != expected:
        names = benchmark.fine_names or benchmark.class_names
        labels = [
            part.labels if part.fine_labels is None else part.fine_labels for part in (benchmark.train, benchmark.test)
        ]
        drawings = np.bincount(np.concatenate(labels), minlength=len(names))
        short = [f"{names[i]} has {drawings[i]}" for i in np.flatnonzero(drawings != DRAWERS)[:3]]
        which = f" ({', '.join(short)} of {DRAWERS} drawings)" if short else ""
        raise ValueError(f"{benchmark.name}:{path}: incomplete copy: {found}{which}; published are {expected}")
    return with_notes(benchmark)
