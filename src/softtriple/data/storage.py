"""Where prepared data is kept between runs, and large arrays on disk."""

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np


def cache_directory() -> Path:
    """The folder for prepared data: $SOFTTRIPLE_CACHE, else $XDG_CACHE_HOME/softtriple, else ~/.cache/softtriple."""
    if own := os.environ.get("SOFTTRIPLE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "softtriple"


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
