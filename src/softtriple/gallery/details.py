"""What the pages of an item and of a class show besides neighbours: the file of an image, and mistakes."""

from pathlib import Path
from typing import NamedTuple

from PIL import Image

from softtriple.data.images import FORMATS
from softtriple.gallery.analysis import Snapshot

MISTAKES = 24  # of a class
NEAREST = 4  # items beside each


class ImageFile(NamedTuple):
    """Size of an image file."""

    width: int
    height: int
    bytes: int


def image_file(path: str) -> ImageFile | None:
    """The size of the image at ``path``, from its head alone; None if it cannot be read."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return ImageFile(*image.size, Path(path).stat().st_size)
    except Exception:  # decoders of damaged files raise OSError, SyntaxError, struct.error, …
        return None


class MistakenRow(NamedTuple):
    """A row of the snapshot, and the rows of the class it is taken for that are nearest to it, with their cosines."""

    row: int
    nearest: list[tuple[int, float]]


def mistakes(snapshot: Snapshot, rows: list[int]) -> list[MistakenRow]:
    """Those of ``rows`` that are taken for another class, most similar to it first."""
    taken = []
    for row, label in zip(rows, snapshot.taken(rows), strict=True):
        if label == snapshot.labels[row]:
            continue
        others = snapshot.rows_of(snapshot.class_names[label])
        scores = snapshot.vectors[others] @ snapshot.vectors[row]
        best = scores.topk(min(NEAREST, len(others)))
        nearest = zip(others[best.indices].tolist(), best.values.clamp(-1.0, 1.0).tolist(), strict=True)
        taken.append(MistakenRow(row, list(nearest)))
    return sorted(taken, key=lambda one: -one.nearest[0][1])[:MISTAKES]
