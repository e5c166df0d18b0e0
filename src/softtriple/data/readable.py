"""Which images of a set cannot be read, found before training starts rather than in its middle."""

from collections.abc import Callable

from softtriple.data.benchmark import ImageFiles
from softtriple.data.prefetch import map_ahead
from softtriple.pixels import ImageError, decode_image


def find_unreadable(
    files: ImageFiles, *, workers: int = 2, progress: Callable[[int, int], None] | None = None
) -> dict[int, ImageError]:
    """The rows of ``files`` that cannot be decoded, each with its path and the reason."""
    unreadable = {}
    for row, error in enumerate(map_ahead(_attempt, files.paths, workers)):
        if error is not None:
            unreadable[row] = error
        if progress is not None:
            progress(row + 1, len(files))
    return unreadable


def _attempt(path: str) -> ImageError | None:
    try:
        decode_image(path)
    except ImageError as error:
        return error
    return None
