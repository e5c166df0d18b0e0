"""The cache directory: resized images, cached features and prepared data sets, each checked when it is opened.

Everything in it can be computed again. ``cached`` does so when a file is missing or its checksum differs, so damage is
repaired and never used. The zip format of .npz has checksums of its own; other files get a CRC-32, which is verified
at about the speed of the disk.

The image cache holds images resized to a short side in one memory-mapped file: decoded once, then read every epoch.
Its pixels equal those of ``resize_short_side(decode_image(path))``, so using it changes no result.
"""

import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from shutil import disk_usage
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from softtriple.data.benchmark import ImageFiles, fingerprint
from softtriple.data.images import decode_image, open_image, resize_short_side
from softtriple.data.prefetch import map_ahead
from softtriple.errors import UserError, byte_size, counted
from softtriple.files import atomic_folder, atomic_write, remove_whole

T = TypeVar("T")
Notify = Callable[[str], None]
Progress = Callable[[int, int], None]

VERSION = 2  # part of the key of an image cache: raise it when decoding, resizing or the format changes
DEFAULT_BUDGET = 8e9
_SAMPLE = 64
_CHUNK = 1 << 20
_ENTRY = re.compile(r"(images|trunk|omniglot|glyphs)-[0-9a-f]{16}(\.npz)?")


# The cache directory and its entries.


def cache_directory() -> Path:
    """The directory for cached data: $SOFTTRIPLE_CACHE, else $XDG_CACHE_HOME/softtriple, else ~/.cache/softtriple."""
    if own := os.environ.get("SOFTTRIPLE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "softtriple"


def data_directory() -> Path:
    """The directory for downloaded data: $SOFTTRIPLE_DATA, else $XDG_DATA_HOME/softtriple, else ~/.local/share/…."""
    if own := os.environ.get("SOFTTRIPLE_DATA"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_DATA_HOME")
    return (Path(shared) if shared else Path.home() / ".local" / "share") / "softtriple"


class Kept(NamedTuple):
    """An entry of the cache directory; ``used`` is a time as ``time.time`` gives it."""

    path: Path
    kind: str
    bytes: int
    used: float


def list_kept() -> list[Kept]:
    """The entries of the cache directory, least recently used first; files of other origin are not listed."""
    entries = []
    for path in cache_directory().glob("*-*"):
        if match := _ENTRY.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process is removing it
                size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
                entries.append(Kept(path, match[1], size, path.stat().st_mtime))
    return sorted(entries, key=lambda entry: entry.used)


def remove_unused(days: float) -> list[Kept]:
    """Remove entries not used for ``days``; a run that has one open goes on, and a later run makes it again."""
    old = [entry for entry in list_kept() if time.time() - entry.used > 86_400 * days]
    for entry in old:
        with suppress(FileNotFoundError):  # another process was first
            remove_whole(entry.path)
    return old


def mark_used(path: Path) -> None:
    """Record in its modification time that the entry ``path`` is used now; many disks keep no access times."""
    with suppress(OSError):  # an entry of another user can be read all the same
        os.utime(path)


class DamagedCacheError(UserError):
    """A cached file that is incomplete or differs from what was written."""


def cached(path: Path, make: Callable[[Path], None], read: Callable[[Path], T], *, notify: Notify) -> T:
    """Return ``read(path)``, after ``make`` has written ``path`` if it is missing or damaged.

    ``make`` gets a temporary path, which takes its final name once it is complete: a file if ``path`` has a suffix,
    else a folder. ``read`` raises DamagedCacheError for what has to be made again; ``notify`` then gets a line.
    """
    if path.exists():
        try:
            content = read(path)
        except DamagedCacheError as error:
            notify(f"{error}; it is made again")
            remove_whole(path)
        else:
            mark_used(path)
            return content
    with atomic_write(path) if path.suffix else atomic_folder(path) as temporary:
        make(temporary)
    return read(path)


def fits(needed: int, budget: float, folder: Path) -> bool:
    """Whether ``needed`` bytes are within ``budget`` and leave a tenth of the free disk under ``folder``."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    return needed <= budget and needed <= 0.9 * disk_usage(existing).free


# Files with a checksum.


def write_rows(path: Path, count: int, parts: Iterable[np.ndarray]) -> None:
    """Write ``count`` rows, given in parts of some rows each, as a .npy file followed by its CRC-32.

    Written through the file and not through a memory map, where a full disk would be a signal that ends the process.
    """
    written = checksum = 0
    with path.open("wb") as file:
        for part in parts:
            if not written:
                header, shape = BytesIO(), (count, *part.shape[1:])
                description = {"descr": np.lib.format.dtype_to_descr(part.dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(header, {**description, "shape": shape})
                checksum = zlib.crc32(header.getvalue())
                file.write(header.getvalue())
            data = np.ascontiguousarray(part).data
            checksum = zlib.crc32(data, checksum)
            file.write(data)
            written += len(part)
        file.write(checksum.to_bytes(4, "little"))
    assert written == count


def map_rows(path: Path) -> np.ndarray:
    """Memory-map the rows that ``write_rows`` wrote, after verifying their checksum."""
    try:
        size = path.stat().st_size - 4
        with path.open("rb") as file:
            intact = size > 0 and _checksum(file, size).to_bytes(4, "little") == file.read()
    except FileNotFoundError as error:
        raise DamagedCacheError(f"{path}: damaged (the file is missing)") from error
    if not intact:
        raise DamagedCacheError(f"{path}: damaged (its checksum differs)")
    rows: np.ndarray = np.lib.format.open_memmap(path, mode="r")
    return rows


def read_arrays(path: Path, *names: str) -> list[np.ndarray]:
    """The arrays called ``names`` in a cached .npz file."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            return [content[name] for name in names]
    except PermissionError:
        raise
    except Exception as error:  # damaged archives raise whatever their reader meets first
        raise DamagedCacheError(f"{path}: damaged ({error})") from error


def _checksum(file: BinaryIO, count: int) -> int:
    """CRC-32 of the next ``count`` bytes of ``file``."""
    checksum, buffer = 0, memoryview(bytearray(_CHUNK))
    while count > 0 and (size := file.readinto(buffer[: min(count, _CHUNK)])):  # type: ignore[attr-defined]
        checksum = zlib.crc32(buffer[:size], checksum)
        count -= size
    return checksum


# The image cache.


@dataclass(frozen=True, eq=False)
class ImageCache:
    """Resized images by path; the pixels stay on disk until they are needed."""

    short_side: int
    pixels: UInt8[np.ndarray, " bytes"]
    offsets: Int64[np.ndarray, " images"]
    heights: Int64[np.ndarray, " images"]
    widths: Int64[np.ndarray, " images"]
    rows: Mapping[str, int]

    def image(self, path: str) -> Image.Image:
        """The resized image of ``path``."""
        if path not in self.rows:
            raise ValueError(f"{path}: not in this image cache")
        row = self.rows[path]
        start, height, width = int(self.offsets[row]), int(self.heights[row]), int(self.widths[row])
        return Image.frombuffer("RGB", (width, height), self.pixels[start : start + 3 * height * width])


def open_cache(
    files: ImageFiles,
    short_side: int,
    *,
    budget: float = DEFAULT_BUDGET,
    workers: int | None = None,
    notify: Notify,
    progress: Progress | None = None,
) -> ImageCache | None:
    """Open the cache of ``files`` at ``short_side``, making it if needed; None if it would exceed ``budget`` bytes.

    ``notify`` gets a line that says what was decided, ``progress`` gets (done, total) while images are decoded. An
    unreadable image is an ImageError and leaves no cache behind.
    """
    key = hashlib.sha256(f"{VERSION} {short_side} {fingerprint(files)}".encode()).hexdigest()[:16]
    folder = cache_directory() / f"images-{key}"
    if folder.is_dir():
        notify(f"image cache: using {folder}")
    else:
        needed = estimate_bytes(files, short_side)
        images = counted(len(files), "image")
        size = f"{images} with a short side of {short_side}: about {byte_size(needed)}"
        if not fits(needed, budget, folder.parent):
            notify(f"image cache: {size}, more than the budget of {byte_size(budget)} or the free disk: not used")
            return None
        notify(f"image cache: {size} of a budget of {byte_size(budget)}, made once in {folder}")
    return cached(
        folder,
        lambda temporary: _write(temporary, files, short_side, workers, progress),
        lambda written: _open(written, files, short_side),
        notify=notify,
    )


def estimate_bytes(files: ImageFiles, short_side: int) -> int:
    """The approximate size of a cache of ``files``, from the headers of a few of them."""
    aspects = []
    for row in np.linspace(0, len(files) - 1, num=min(_SAMPLE, len(files)), dtype=int):
        try:
            with open_image(files.paths[row]) as image:
                aspects.append(max(image.size) / min(image.size))
        except Exception:  # reported when the image is decoded
            continue
    return int(3 * short_side**2 * float(np.mean(aspects or [1.0])) * len(files))


def _write(folder: Path, files: ImageFiles, short_side: int, workers: int | None, progress: Progress | None) -> None:
    def read(path: str) -> np.ndarray:
        return np.asarray(resize_short_side(decode_image(path), short_side))

    heights, widths = np.zeros((2, len(files)), dtype=np.int64)
    checksum = 0
    with (folder / "pixels.bin").open("wb") as file:
        for row, image in enumerate(map_ahead(read, files.paths, workers)):
            heights[row], widths[row] = image.shape[:2]
            file.write(image.data)
            checksum = zlib.crc32(image.data, checksum)
            if progress is not None:
                progress(row + 1, len(files))
    np.savez(folder / "index.npz", heights=heights, widths=widths, checksum=checksum)


def _open(folder: Path, files: ImageFiles, short_side: int) -> ImageCache:
    heights, widths, checksum = read_arrays(folder / "index.npz", "heights", "widths", "checksum")
    pixels = folder / "pixels.bin"
    ends = np.cumsum(3 * heights * widths)
    if len(ends) != len(files) or not pixels.is_file() or ends[-1] != pixels.stat().st_size:
        raise DamagedCacheError(f"{folder}: the image cache is damaged (incomplete)")
    with pixels.open("rb") as file:
        if _checksum(file, int(ends[-1])) != checksum:
            raise DamagedCacheError(f"{pixels}: the image cache is damaged (its checksum differs)")
    return ImageCache(
        short_side=short_side,
        pixels=np.memmap(pixels, dtype=np.uint8, mode="r"),
        offsets=ends - 3 * heights * widths,
        heights=heights,
        widths=widths,
        rows={path: row for row, path in enumerate(files.paths)},
    )
