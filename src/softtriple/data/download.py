"""Resumable downloads from several mirrors; a file gets its final name once its checksum is verified."""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from filelock import FileLock

from softtriple.errors import UserError

TIMEOUT = 60.0  # seconds without data after which a connection is given up
RETRIES = 4  # consecutive attempts without progress before trying the next mirror
PAUSE = 1.0  # seconds before the first retry; doubled each time
_CHUNK = 1 << 16

Progress = Callable[[int, int], None]


class DownloadError(UserError):
    """No mirror delivered the file."""


class _RefusedError(Exception):
    """A mirror sent something other than the file."""


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A published file: its name on disk, its mirrors and its checksum.

    ``urls`` is empty if there is no direct link. ``checksum`` is ``"md5:…"`` or ``"sha256:…"`` with the digest or its
    beginning; None if none is published. At most ``limit`` bytes are accepted.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str | None
    limit: int


def fetch(file: RemoteFile, folder: Path, *, progress: Progress = lambda *_: None) -> Path:
    """The path of ``file`` in ``folder``, downloaded if it is not there yet.

    An interrupted download is resumed, also from another mirror. Without a checksum it is resumed only within the same
    call, and only if the server confirms that the file has not changed.
    """
    path, part = folder / file.name, folder / f"{file.name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{file.name}.lock"):  # several ranks may request the same file
        if path.is_file():
            if (complaint := _mismatch(path, file.checksum)) is not None:
                raise UserError(f"{path}: {complaint}. Move it elsewhere to download the published file.")
            return path
        failures = []
        for url in file.urls:
            try:
                _fetch_from(url, file, part, progress)
            except (_RefusedError, HTTPException, OSError) as error:
                _raise_if_local(error)
                failures.append(f"{url}: {str(error) or type(error).__name__}")
            else:
                part.replace(path)
                return path
    raise DownloadError(f"{file.name}: download failed ({'; '.join(failures) or 'it has no direct link'})")


def _fetch_from(url: str, file: RemoteFile, part: Path, progress: Progress) -> None:
    """Complete ``part`` from ``url`` and verify it."""
    if file.checksum is None:
        part.unlink(missing_ok=True)  # a mixture of two versions would go unnoticed
    continued = part.exists()
    stalled, validator = 0, None
    while True:
        before = _size(part)
        try:
            complete, validator = _receive(url, file, part, validator, progress)
            if complete:
                break
            reason: Exception = _RefusedError("the connection broke off")
        except HTTPError as error:
            error.close()
            if error.code == 416:  # nothing is left to send, or the part is longer than the file
                break
            if error.code < 500 and error.code != 429:
                raise
            reason = error
        except (HTTPException, OSError) as error:
            _raise_if_local(error)
            reason = error
        stalled = 0 if _size(part) > before else stalled + 1
        if stalled == RETRIES:
            raise reason
        time.sleep(PAUSE * 2**stalled if stalled else 0)
    if (complaint := _mismatch(part, file.checksum)) is not None:
        part.unlink()
        if not continued:
            raise _RefusedError(complaint)
        _fetch_from(url, file, part, progress)  # once more from the start: the old part may have been corrupt


def _receive(
    url: str, file: RemoteFile, part: Path, validator: str | None, progress: Progress
) -> tuple[bool, str | None]:
    """Append one response to ``part``; returns whether it is complete, and the ETag or date of the file."""
    start = _size(part)
    if start and file.checksum is None and validator is None:
        start = 0
    headers = {"User-Agent": "softtriple", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if file.checksum is None:
            headers["If-Range"] = str(validator)
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
        if response.status == 206:
            if not re.match(rf"bytes {start}-", response.headers.get("Content-Range", "")):
                raise _RefusedError("the server sent a different range than requested")
        else:
            start = 0
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
        with part.open("ab" if start else "wb") as out:
            while start <= file.limit and (total or 0) <= file.limit and (chunk := response.read1(_CHUNK)):
                _write(out, chunk, part)
                start += len(chunk)
                progress(start, total or start)
    if start > file.limit or (total or 0) > file.limit:
        part.unlink()
        raise _RefusedError(f"it sent more than {file.limit / 1e6:.0f} MB")
    return total is None or start >= total, None if tag is None or tag.startswith("W/") else tag


def _write(out: BinaryIO, chunk: bytes, part: Path) -> None:
    try:
        out.write(chunk)
        out.flush()
    except OSError as error:
        reason = f"{part}: cannot be written ({error.strerror}). Repeat the command to continue from there."
        raise UserError(reason) from error


def _raise_if_local(error: Exception) -> None:
    """Raise ``error`` if it is about the local disk: network errors have no file name, except HTTPError (the URL)."""
    if isinstance(error, OSError) and error.filename is not None and not isinstance(error, HTTPError):
        raise error


def _mismatch(path: Path, checksum: str | None) -> str | None:
    """What is wrong with the file at ``path``, or None."""
    if checksum is None:
        return None
    kind, _, expected = checksum.partition(":")
    with path.open("rb") as content:
        actual = hashlib.file_digest(content, kind).hexdigest()
    return None if actual.startswith(expected) else f"its {kind.upper()} is {actual}, published is {expected}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
