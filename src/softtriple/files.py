"""Files that are there whole and on disk, or not at all: after a crash, a full disk or a loss of power."""

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# The whole name is matched: these lie beside other people's files, of which none may be swept.
_PREFIX = ".softtriple-partial-"
_PARTIAL = re.compile(re.escape(_PREFIX) + r"[0-9a-f]{16}(\..+)?")
# What a killed process left behind is removed when it is that old; whoever still writes has written something since.
_ABANDONED_SECONDS = 24 * 3600


@contextmanager
def appearing_file(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of ``path`` when the block ends well, and vanishes when it does not.

    The content is on disk before it gets its name: a loss of power leaves the old file or the new one, never an
    empty one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        with explained(path):
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def appearing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well, unless another process was first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    temporary.mkdir()
    try:
        with explained(path):
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
def explained(path: Path) -> Iterator[None]:
    """Failures to write that name no file, as those of a full disk do, name ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.strerror is None:
            raise
        raise OSError(f"{path}: cannot be written ({error.strerror}); nothing that was there is lost") from error


def write_whole(path: Path, text: str) -> None:
    """Write a text file that appears, or replaces an older one, only when it is complete and on disk."""
    with appearing_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_line(path: Path, line: str) -> None:
    """Add ``line`` to a text file, and return when it is on disk."""
    with explained(path), path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left half-written in ``folder`` and below; no process may be writing there."""
    for path in _partial(folder.rglob(f"{_PREFIX}*")):
        _remove(path)


def remove_whole(path: Path) -> None:
    """Remove a file or folder that others may be looking for: it is there whole until it is gone."""
    aside = _beside(path)
    path.rename(aside)
    _remove(aside)


def _beside(path: Path) -> Path:
    for old in _partial(path.parent.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # another process has just finished with it, or it is not ours to remove
            if time.time() - max(part.stat().st_mtime for part in (old, *old.rglob("*"))) > _ABANDONED_SECONDS:
                _remove(old)
    # The suffix stays: numpy appends the one it misses.
    return path.with_name(f"{_PREFIX}{secrets.token_hex(8)}{path.suffix}")


def _partial(found: Iterable[Path]) -> list[Path]:
    return [path for path in found if _PARTIAL.fullmatch(path.name)]


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
