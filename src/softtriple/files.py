"""Atomic writes: after a crash, a full disk or a power failure, a file is either complete or unchanged."""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Matched against the whole name: temporary files are in the same folder as the user's own files.
_PREFIX = ".softtriple-partial-"
_PARTIAL = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{16}(\..+)?")
# Temporary files of a killed process are removed at this age; a running process keeps updating its own.
_ABANDONED_SECONDS = 24 * 3600


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary path that is renamed to ``path`` when the block succeeds and removed when it fails.

    The content is flushed to disk before the rename, so a power failure never leaves an empty file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        with naming_file(path):
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to ``path`` when the block succeeds, unless another process was first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    temporary.mkdir()
    try:
        with naming_file(path):
            yield temporary
            for file in temporary.rglob("*"):
                _sync(file)
            try:
                temporary.rename(path)
            except OSError:
                if not path.is_dir():
                    raise
            _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add ``path`` to write errors that do not name a file, such as "no space left on device"."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.strerror is None:
            raise
        raise OSError(f"{path}: cannot be written ({error.strerror}). Existing files are unchanged.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Append ``line`` to a text file and flush it to disk."""
    with naming_file(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def remove_partial(folder: Path) -> None:
    """Remove the temporary files of killed processes below ``folder``, where no process may be writing."""
    for path in _partial(folder.rglob(f"{_PREFIX}*")):
        _remove(path)


def remove_whole(path: Path) -> None:
    """Remove a file or folder; to other processes it disappears at once."""
    aside = _beside(path)
    path.rename(aside)
    _remove(aside)


def _beside(path: Path) -> Path:
    for old in _partial(path.parent.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # just removed by another process, or owned by another user
            if time.time() - max(part.stat().st_mtime for part in (old, *old.rglob("*"))) > _ABANDONED_SECONDS:
                _remove(old)
    # Keep the suffix: NumPy appends it if it is missing.
    return path.with_name(f"{_PREFIX}{secrets.token_hex(8)}{path.suffix}")


def _partial(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if _PARTIAL.fullmatch(path.name)]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
