"""Images already resized to a short side, in one memory-mapped file: decoded once, then read every epoch.

A cache belongs to a list of files with their sizes and times of change; when one of them changes, another cache is
made. It holds what ``resize_short_side(decode_image(path))`` gives, to the byte, so using it changes no result.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import disk_usage
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from softtriple.data.benchmark import ImageFiles
from softtriple.data.images import decode_image, open_image, resize_short_side
from softtriple.data.prefetch import map_ahead
from softtriple.files import appearing_folder, remove_whole

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


_KEPT = re.compile(r"(images|trunk|omniglot|glyphs)-[0-9a-f]{16}(\.npz)?")


def cache_directory() -> Path:
    """The folder for prepared data: $SOFTTRIPLE_CACHE, else $XDG_CACHE_HOME/softtriple, else ~/.cache/softtriple."""
    if own := os.environ.get("SOFTTRIPLE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "softtriple"


class Kept(NamedTuple):
    """Something prepared that the cache directory holds; ``used`` as ``time.time`` counts."""

    path: Path
    kind: str
    bytes: int
    used: float


def mark_used(path: Path) -> None:
    """Note that what is kept at ``path`` is used now, in its time of change: many disks keep no time of reading."""
    with suppress(OSError):  # what somebody else owns can be read all the same
        os.utime(path)


def list_kept() -> list[Kept]:
    """What the cache directory holds, longest unused first; files that softtriple did not put there are not listed."""
    found = []
    for path in cache_directory().glob("*-*"):
        if match := _KEPT.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process is removing it
                size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
                found.append(Kept(path, match[1], size, path.stat().st_mtime))
    return sorted(found, key=lambda kept: kept.used)


def remove_unused(days: float) -> list[Kept]:
    """Remove what has not been used for ``days``; a run that has it open goes on, and a later one makes it again."""
    old = [kept for kept in list_kept() if time.time() - kept.used > 86_400 * days]
    for kept in old:
        with suppress(FileNotFoundError):  # another process was first
            remove_whole(kept.path)
    return old


def write_rows(path: Path, count: int, parts: Iterable[np.ndarray]) -> None:
    """Write ``count`` rows, given in parts of some rows each, as a .npy file.

    Through the file and not through a memory map of it: a full disk is then an error, where it would be a signal that
    ends the process.
    """
    written = 0
    with path.open("wb") as file:
        for part in parts:
            if not written:
                descr = np.lib.format.dtype_to_descr(part.dtype)
                header = {"descr": descr, "fortran_order": False, "shape": (count, *part.shape[1:])}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(part).data)
            written += len(part)
    assert written == count


def map_rows(path: Path) -> np.ndarray:
    """The array in a .npy file, read from disk where it is looked at."""
    try:
        rows: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: damaged ({error}); delete it and it is made again") from error
    return rows


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """The arrays of these names in a .npz file that was kept."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            return [content[name] for name in names]
    except Exception as error:  # damaged archives raise whatever their reader meets first
        raise ValueError(f"{path}: damaged ({error}); delete it and it is made again") from error
