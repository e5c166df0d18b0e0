"""Memory that a network frees is kept for its next batch, instead of being returned to the operating system.

A batch allocates and frees feature maps of hundreds of megabytes. By default glibc maps each of them anew, and the
kernel then clears every page, which can take almost half of the time of a forward pass on a CPU (docs/scaling.md).
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Parameters of glibc's mallopt, and their defaults.
_TRIM_THRESHOLD, _DEFAULT_TRIM = -1, 128 << 10
_MMAP_MAX, _DEFAULT_MMAPS = -4, 65536
_LARGEST = 2**31 - 1

_depth = 0


@contextmanager
def reusing_memory() -> Iterator[None]:
    """Keep freed memory for reuse within this block, and return it afterwards; does nothing without glibc."""
    global _depth
    libc = _glibc()
    if libc is None:
        yield
        return
    _depth += 1
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _LARGEST)
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            libc.mallopt(_MMAP_MAX, _DEFAULT_MMAPS)
            libc.mallopt(_TRIM_THRESHOLD, _DEFAULT_TRIM)
            libc.malloc_trim(0)


def _glibc() -> Any:
    """The C library if it is glibc, which has these functions, else None."""
    try:
        libc = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None
