"""Where prepared data is kept between runs, and how a file appears there only when it is whole."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_directory() -> Path:
    """The folder for prepared data: $SOFTTRIPLE_CACHE, else $XDG_CACHE_HOME/softtriple, else ~/.cache/softtriple."""
    if own := os.environ.get("SOFTTRIPLE_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "softtriple"


@contextmanager
def appearing_file(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of ``path`` when the block ends well, and vanishes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path)
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def appearing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` when the block ends well, unless another process was first."""
    temporary = _beside(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    # The suffix stays: numpy appends the one it misses.
    return path.with_name(f".partial-{secrets.token_hex(8)}{path.suffix}")
