"""Where prepared data is kept between runs, and large arrays on disk."""

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softtriple.files import remove_whole

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
