"""Glyphs: letters rendered in the fonts that matplotlib ships; nothing to download.

A class is a letter in upper and lower case; the fine label is the character. The two cases of most letters look
different (A a, G g, Q q), so a class has several modes, and the fonts (DejaVu Sans, Mono and Serif, STIX; upright,
bold, slanted) add more. Each character is drawn once per font, slightly rotated, zoomed and shifted: more copies would
only give every query an easy neighbour.

So that images determine the label, three things are left out: letters with a single case, characters in fewer than
``MIN_FONTS`` fonts, and lookalikes. A character that looks like an earlier one in any font is dropped altogether: A is
a Latin letter, the Greek Alpha keeps only α, and the Cyrillic А, which looks Latin in both cases, is not a class.

The cache key covers everything that the images depend on: the fonts, the settings below, Pillow and FreeType.

Classes alternate between train and test within each script, so both halves have all scripts and share no letter.
"""

import hashlib
import itertools
import math
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
from jaxtyping import Int16, Int64, UInt8
from PIL import Image, ImageDraw, ImageFont, features

from softtriple.data.benchmark import Benchmark, ImageArray, Split, with_notes
from softtriple.data.cache import cache_directory, cached, read_arrays
from softtriple.data.sampling import stream

VERSION = 1  # part of the cache key; increase it when the code below draws differently
SIDE = 32
MIN_FONTS = 8
MAX_DEGREES, MAX_ZOOM, MAX_SHIFT = 10.0, 0.15, 2.0  # shift in pixels of the result

FONTS = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
)
SCRIPTS: dict[str, tuple[range, ...]] = {
    "Latin": (range(0x0041, 0x0250), range(0x1E00, 0x1F00)),
    "Greek": (range(0x0370, 0x0400),),
    "Cyrillic": (range(0x0400, 0x0530),),
    "Armenian": (range(0x0530, 0x0590),),
    "Georgian": (range(0x10A0, 0x1100), range(0x2D00, 0x2D30)),
}
# Drawn at three times the size and averaged, so that rotation does not lose detail.
_OVERSAMPLING = 3
_CANVAS = SIDE * _OVERSAMPLING
_EM, _BASELINE = 19 * _OVERSAMPLING, 22 * _OVERSAMPLING
# Two characters look alike if their pixels differ by less than this share of the lighter one's ink, such as a breve
# and a caron over a bold letter.
_ALIKE = 0.03


class Letter(NamedTuple):
    """A class: a script, and the characters (cases) of one letter."""

    script: str
    characters: tuple[str, ...]


def load_glyphs() -> Benchmark:
    """Load the glyphs from the cache; the first time they are drawn, which takes some seconds."""
    folder = _font_folder()
    notes: list[str] = []
    names = ("pixels", "labels", "fine_labels", "class_names", "fine_names", "train_classes")
    pixels, labels, fine_labels, class_names, fine_names, train_classes = cached(
        cache_directory() / f"glyphs-{_key(folder)}.npz",
        lambda path: np.savez_compressed(path, **_draw_all(folder)),
        lambda path: read_arrays(path, *names),
        notify=notes.append,
    )
    is_train = train_classes[labels]
    everything = Split(ImageArray(pixels), labels, fine_labels)
    benchmark = Benchmark(
        name="glyphs",
        class_names=tuple(map(str, class_names)),
        train=everything.take(np.flatnonzero(is_train)),
        test=everything.take(np.flatnonzero(~is_train)),
        fine_names=tuple(map(str, fine_names)),
    )
    return with_notes(benchmark, *notes)


def _font_folder() -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def _key(folder: Path) -> str:
    drawn = (VERSION, SIDE, MIN_FONTS, MAX_DEGREES, MAX_ZOOM, MAX_SHIFT, SCRIPTS)
    settings = (*drawn, _OVERSAMPLING, _EM, _BASELINE, _ALIKE)
    libraries = (PIL.__version__, features.version("freetype2"), unicodedata.unidata_version)
    digest = hashlib.sha256(repr((settings, libraries)).encode())
    for font in FONTS:
        digest.update(hashlib.sha256((folder / font).read_bytes()).digest())
    return digest.hexdigest()[:16]


def _draw_all(folder: Path) -> dict[str, Any]:
    from matplotlib.ft2font import FT2Font

    known = [frozenset(FT2Font(str(folder / font)).get_charmap()) for font in FONTS]
    fonts = [ImageFont.truetype(str(folder / font), _EM, layout_engine=ImageFont.Layout.BASIC) for font in FONTS]
    letters, drawings = _choose(known, fonts)
    pixels: list[UInt8[np.ndarray, "side side"]] = []
    labels: list[int] = []
    fine_labels: list[int] = []
    fine_names = [character for letter in letters for character in letter.characters]
    for label, letter in enumerate(letters):
        for character in letter.characters:
            for font, drawing in drawings[character].items():
                pixels.append(_shrink(_jitter(drawing, stream("glyphs", ord(character), font))))
                labels.append(label)
                fine_labels.append(fine_names.index(character))
    # Every other letter of a script is a training class.
    scripts = itertools.groupby(letters, key=lambda letter: letter.script)
    alternate = [place % 2 == 0 for _, group in scripts for place, _ in enumerate(group)]
    return {
        "pixels": np.stack(pixels),
        "labels": np.array(labels, dtype=np.int64),
        "fine_labels": np.array(fine_labels, dtype=np.int64),
        "class_names": np.array([letter.characters[-1].lower() for letter in letters]),
        "fine_names": np.array(fine_names),
        "train_classes": np.array(alternate, dtype=bool),
    }


def _choose(
    known: list[frozenset[int]], fonts: list[ImageFont.FreeTypeFont]
) -> tuple[list[Letter], dict[str, dict[int, Image.Image]]]:
    """The letters that become classes, in order, and the drawing of each of their characters in each font."""
    candidates = list(_candidates(known))
    drawings: dict[str, dict[int, Image.Image]] = {}
    letters: list[Letter] = []
    # For each font, the drawings accepted so far and their ink. Rows not yet filled have no ink and resemble nothing.
    size = sum(len(letter.characters) for letter in candidates)
    earlier = np.zeros((len(fonts), size, SIDE * SIDE), dtype=np.int16)
    inks = np.zeros((len(fonts), size), dtype=np.int64)
    for letter in candidates:
        for character in letter.characters:
            drawn = {i: _draw(character, font) for i, font in enumerate(fonts) if ord(character) in known[i]}
            small = {i: _shrink(drawing).astype(np.int16).ravel() for i, drawing in drawn.items()}
            if any(_resembles(drawing, earlier[i], inks[i]) for i, drawing in small.items()):
                continue
            for i, drawing in small.items():
                earlier[i, len(drawings)] = drawing
                inks[i, len(drawings)] = drawing.sum()
            drawings[character] = drawn
        if distinct := tuple(character for character in letter.characters if character in drawings):
            letters.append(Letter(letter.script, distinct))
    return letters, drawings


def _candidates(known: list[frozenset[int]]) -> Iterator[Letter]:
    """Letters with two cases that enough fonts have, by script and code point."""
    for script, ranges in SCRIPTS.items():
        cases: dict[str, list[str]] = {}
        for character in (chr(code) for codes in ranges for code in codes):
            common = sum(ord(character) in codes for codes in known) >= MIN_FONTS
            if common and unicodedata.category(character) in ("Lu", "Ll"):
                cases.setdefault(character.lower(), []).append(character)
        yield from (Letter(script, tuple(sorted(characters))) for characters in cases.values() if len(characters) > 1)


def _resembles(
    drawing: Int16[np.ndarray, " pixels"],
    others: Int16[np.ndarray, "others pixels"],
    inks: Int64[np.ndarray, " others"],
) -> bool:
    limit = _ALIKE * np.minimum(inks, drawing.sum())
    # Drawings whose ink differs by more than the limit cannot look alike, which saves most comparisons.
    near = np.flatnonzero(np.abs(inks - drawing.sum()) < limit)
    return bool((np.abs(others[near] - drawing).sum(axis=1) < limit[near]).any())


def _draw(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """``character`` in white on black, centred, with common baseline and size, so that o and O stay different."""
    image = Image.new("L", (_CANVAS, _CANVAS))
    ImageDraw.Draw(image).text((_CANVAS / 2, _BASELINE), character, fill=255, font=font, anchor="ms")
    return image


def _jitter(drawing: Image.Image, generator: np.random.Generator) -> Image.Image:
    """``drawing`` slightly rotated, zoomed and shifted about its centre.

    Independent of the augmentation in ``images.apply_affine``, because these pixels define the benchmark.
    """
    turn, zoom, right, down = generator.uniform(-1, 1, size=4)
    angle, scale = math.radians(turn * MAX_DEGREES), 1 + zoom * MAX_ZOOM
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    middle = _CANVAS / 2
    x = middle + right * MAX_SHIFT * _OVERSAMPLING
    y = middle + down * MAX_SHIFT * _OVERSAMPLING
    # Pillow takes the inverse map, from the result to the drawing: (x, y) goes to the centre.
    inverse = (cos, sin, middle - cos * x - sin * y, -sin, cos, middle + sin * x - cos * y)
    return drawing.transform(drawing.size, Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR)


def _shrink(drawing: Image.Image) -> UInt8[np.ndarray, "side side"]:
    return np.asarray(drawing.reduce(_OVERSAMPLING))
