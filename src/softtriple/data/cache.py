"""The cache directory: resized images, cached features and prepared data sets, each checked when it is opened.

Everything in it can be recomputed, and ``cached`` does so if a file is missing or damaged. The zip format of .npz has
checksums of its own; other files get a CRC-32, which is verified at about the speed of the disk.

The image cache is one memory-mapped file of resized images, which are decoded once and read in every epoch. The pixels
equal those of ``resize_short_side(decode_image(path))``, so the cache does not change results.
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

VERSION = 2  # part of the key of an image cache; increase it when decoding, resizing or the format changes
DEFAULT_BUDGET = 8e9
_SAMPLE = 64
_CHUNK = 1 << 20
_ENTRY = re.compile(r"(images|trunk|omniglot|glyphs)-[0-9a-f]{16}(\.npz)?")


# The cache directory and its entries.


def cache_directory() -> Path:
    """The directory for cached data: $SOFTTRIPLE_CACHE, else $XDG_CACHE_HOME/softtriple, else ~/.cache/softtriple."""
    return _directory("SOFTTRIPLE_CACHE", "XDG_CACHE_HOME", ".cache")


def data_directory() -> Path:
    """The directory for downloaded data: $SOFTTRIPLE_DATA, else $XDG_DATA_HOME/softtriple, else ~/.local/share/…."""
    return _directory("SOFTTRIPLE_DATA", "XDG_DATA_HOME", ".local/share")


def _directory(own: str, shared: str, default: str) -> Path:
    if path := os.environ.get(own):
        return Path(path).expanduser()
    return Path(os.environ.get(shared) or Path.home() / default) / "softtriple"


class CacheEntry(NamedTuple):
    """An entry of the cache directory, last ``used`` at a ``time.time``."""

    path: Path
    kind: str
    bytes: int
    used: float


def list_cache() -> list[CacheEntry]:
    """The entries of the cache directory, least recently used first; ignores files that are not ours."""
    entries = []
    for path in cache_directory().glob("*-*"):
        if match := _ENTRY.fullmatch(path.name):
            with suppress(FileNotFoundError):  # another process is removing it
                size = sum(file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file())
                entries.append(CacheEntry(path, match[1], size, path.stat().st_mtime))
    return sorted(entries, key=lambda entry: entry.used)


def prune_cache(days: float) -> list[CacheEntry]:
    """Remove the entries not used for ``days`` and return them; runs that have one open are not disturbed."""
    old = [entry for entry in list_cache() if time.time() - entry.used > 86_400 * days]
    for entry in old:
        with suppress(FileNotFoundError):  # another process was first
            remove_whole(entry.path)
    return old


def mark_used(path: Path) -> None:
    """Set the modification time of the entry ``path`` to now; many file systems record no access times."""
    with suppress(OSError):  # an entry of another user is readable all the same
        os.utime(path)


class DamagedCacheError(UserError):
    """A cached file is incomplete or corrupt."""


def cached(path: Path, make: Callable[[Path], None], read: Callable[[Path], T], *, notify: Notify) -> T:
    """Return ``read(path)``; if ``path`` is missing or damaged, ``make`` writes it first.

    ``make`` gets a temporary path, which is renamed when it is complete: a file if ``path`` has a suffix, else a
    folder. ``read`` raises DamagedCacheError if it has to be made again, and ``notify`` gets a line about it.
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
    """Whether ``needed`` bytes are within ``budget`` and leave a tenth of the free disk space at ``folder``."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    return needed <= budget and needed <= 0.9 * disk_usage(existing).free


# Files with a checksum.


def write_rows(path: Path, count: int, parts: Iterable[np.ndarray]) -> None:
    """Write ``parts``, which have ``count`` rows in all, as a .npy file followed by its CRC-32.

    Not through a memory map, where a full disk would kill the process by a signal.
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
    except Exception as error:  # damaged archives raise many types
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
    """Resized images by path, memory-mapped."""

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

    ``notify`` gets a line about the decision, ``progress`` gets (done, total) while images are decoded. An unreadable
    image raises ImageError, and no cache is left behind.
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
    """The approximate size of a cache of ``files``, from the headers of a sample."""
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
