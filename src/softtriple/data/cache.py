"""Images already resized to a short side, in one memory-mapped file: decoded once, then read every epoch.

A cache belongs to a list of files with their sizes and times of change; when one of them changes, another cache is
made. It holds what ``resize_short_side(decode_image(path))`` gives, to the byte, so using it changes no result.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from softtriple.data.benchmark import ImageFiles
from softtriple.data.prefetch import map_ahead
from softtriple.data.storage import cache_directory, mark_used, read_arrays
from softtriple.files import appearing_folder
from softtriple.pixels import decode_image, open_image, resize_short_side

VERSION = 1  # part of the key: raise it when decoding or resizing changes a pixel
DEFAULT_BUDGET = 8e9
_SAMPLE = 64


@dataclass(frozen=True, eq=False)
class ImageCache:
    """Resized images by path; the pixels stay on disk until they are asked for."""

    short_side: int
    pixels: UInt8[np.ndarray, " bytes"]
    offsets: Int64[np.ndarray, " images"]
    heights: Int64[np.ndarray, " images"]
    widths: Int64[np.ndarray, " images"]
    rows: Mapping[str, int]

    def image(self, path: str) -> Image.Image:
        """The image that was read from ``path``."""
        if path not in self.rows:
            raise ValueError(f"{path}: this image cache was made without it")
        row = self.rows[path]
        start, height, width = int(self.offsets[row]), int(self.heights[row]), int(self.widths[row])
        return Image.frombuffer("RGB", (width, height), self.pixels[start : start + 3 * height * width])


def open_cache(
    files: ImageFiles,
    short_side: int,
    *,
    budget: float = DEFAULT_BUDGET,
    workers: int = 2,
    notify: Callable[[str], None],
    progress: Callable[[int, int], None] | None = None,
) -> ImageCache | None:
    """The cache of ``files`` at ``short_side``, made now if need be; None when it would exceed ``budget`` bytes.

    ``notify`` gets one line that says what was decided; ``progress`` gets (done, total) while images are read. One
    that cannot be read is an ImageError, and nothing is kept: what stood in its way may be gone tomorrow.
    """
    folder = cache_directory() / f"images-{_key(files, short_side)}"
    if folder.is_dir():
        notify(f"image cache: using {folder}")
        return _open(folder, files, short_side)
    needed = estimate_bytes(files, short_side)
    size = f"{len(files)} images with a short side of {short_side} take about {needed / 1e9:.1f} GB"
    if not fits(needed, budget, folder.parent):
        notify(f"image cache: {size}, more than the budget of {budget / 1e9:.1f} GB or the free disk: not used")
        return None
    notify(f"image cache: {size} of a budget of {budget / 1e9:.1f} GB: made once, in {folder}")
    with appearing_folder(folder) as temporary:
        _write(temporary, files, short_side, workers, progress)
    return _open(folder, files, short_side)


def estimate_bytes(files: ImageFiles, short_side: int) -> int:
    """About how large a cache of ``files`` would be, from the headers of a few of them."""
    aspects = []
    for row in np.linspace(0, len(files) - 1, num=min(_SAMPLE, len(files)), dtype=int):
        try:
            with open_image(files.paths[row]) as image:
                aspects.append(max(image.size) / min(image.size))
        except Exception:  # whatever is wrong with it will be said when it is read
            continue
    return int(3 * short_side**2 * float(np.mean(aspects or [1.0])) * len(files))


def fits(needed: int, budget: float, folder: Path) -> bool:
    """Whether ``needed`` bytes are within ``budget`` and leave a tenth of the free disk under ``folder``."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    return needed <= budget and needed <= 0.9 * disk_usage(existing).free


def _key(files: ImageFiles, short_side: int) -> str:
    digest = hashlib.sha256(f"{VERSION} {short_side}".encode())
    for path in files.paths:
        try:
            stat = Path(path).stat()
            stamp = f"{stat.st_size} {stat.st_mtime_ns}"
        except OSError:
            stamp = "missing"
        digest.update(os.fsencode(f"\n{Path(path).absolute()}\t{stamp}"))
    return digest.hexdigest()[:16]


def _write(
    folder: Path,
    files: ImageFiles,
    short_side: int,
    workers: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    def read(path: str) -> np.ndarray:
        return np.asarray(resize_short_side(decode_image(path), short_side))

    heights, widths = np.zeros((2, len(files)), dtype=np.int64)
    with (folder / "pixels.bin").open("wb") as file:
        for row, image in enumerate(map_ahead(read, files.paths, workers)):
            heights[row], widths[row] = image.shape[:2]
            file.write(image.data)
            if progress is not None:
                progress(row + 1, len(files))
    np.savez(folder / "index.npz", heights=heights, widths=widths)


def _open(folder: Path, files: ImageFiles, short_side: int) -> ImageCache:
    mark_used(folder)
    try:
        heights, widths = read_arrays(folder / "index.npz", "heights", "widths")
        ends = np.cumsum(3 * heights * widths)
        whole = len(ends) == len(files) and heights.all() and ends[-1] == (folder / "pixels.bin").stat().st_size
    except (ValueError, OSError):
        whole = False
    if not whole:
        raise ValueError(f"{folder}: the image cache is damaged; delete this folder and it is made again")
    return ImageCache(
        short_side=short_side,
        pixels=np.memmap(folder / "pixels.bin", dtype=np.uint8, mode="r"),
        offsets=ends - 3 * heights * widths,
        heights=heights,
        widths=widths,
        rows={path: row for row, path in enumerate(files.paths)},
    )
