"""Run the command line in forked children, so that hundreds of runs import torch once, and inject faults into them.

A child counts its file-system calls inside the watched folders; each call is a numbered event. A ``Fault`` says what
happens at an event: the process is killed before it, or halfway through a write, or as by a power loss, which loses
everything not yet synchronised; or the process is stopped; or the disk is full from there on.
"""

import builtins
import errno
import importlib
import io
import mmap
import os
import re
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

MODULES = (
    "softtriple.cli",
    "softtriple.report",
    "softtriple.training",
    "faiss",
    "matplotlib.backends.backend_svg",
    "matplotlib.figure",
    "PIL.JpegImagePlugin",
    "PIL.PngImagePlugin",
    "PIL.WebPImagePlugin",
    "pyarrow.parquet",
    "sklearn.cluster",
    "sklearn.metrics",
    "torch._dynamo",
)


class Fault(NamedTuple):
    """A fault of kind ``kind`` at event number ``event``."""

    event: int
    kind: Literal["kill", "torn", "power", "full", "stop"]


class Ending(NamedTuple):
    """How a child ended: exit status or signal, its output, the number of its last event, and its duration."""

    status: int | None
    signal: int | None
    err: str
    event: int
    seconds: float


def warm_up() -> None:
    """Import what the children need. No threads may run here: a fork could inherit a lock that is never released."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in MODULES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def softtriple(*arguments: object, cache: Path, watched: Sequence[Path] = (), **how: Any) -> Ending:
    """Run ``softtriple ARGUMENTS`` in a child with the cache directory ``cache``; ``how`` as for ``run``."""

    def verb() -> None:
        os.environ["SOFTTRIPLE_CACHE"] = str(cache)
        sys.argv = ["softtriple", *map(str, arguments)]
        from softtriple.cli import main

        main()

    return run(verb, watched=(*watched, cache), **how)


def run(
    function: Callable[[], None],
    *,
    watched: Sequence[Path] = (),
    fault: Fault | None = None,
    kill_after: float | None = None,
    trace: list[str] | None = None,
    limit: float = 120.0,
    meanwhile: Callable[[], None] | None = None,
) -> Ending:
    """Call ``function`` in a forked child; TimeoutError if it takes longer than ``limit`` seconds.

    ``trace`` gets one line per event. ``meanwhile`` is called while the child is stopped; the child is then killed.
    """
    shared = mmap.mmap(-1, 8)
    err_read, err_write = os.pipe()
    trace_read, trace_write = os.pipe()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(err_read)
        os.close(trace_read)
        _child(function, [folder.resolve() for folder in watched], fault, shared, err_write, trace_write)
    os.close(err_write)
    os.close(trace_write)
    stopped = False
    texts = {err_read: b"", trace_read: b""}
    for descriptor in texts:
        os.set_blocking(descriptor, False)
    while True:
        _drain(texts)
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        elapsed = time.monotonic() - start
        if done and os.WIFSTOPPED(status):
            stopped = True
            if meanwhile is not None:
                meanwhile()
            os.kill(pid, signal.SIGKILL)
        elif done:
            break
        elif kill_after is not None and elapsed >= kill_after:
            os.kill(pid, signal.SIGKILL)
        elif elapsed > limit and not stopped:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise TimeoutError(f"the child hangs: {texts[err_read].decode(errors='replace')[-500:]}")
        time.sleep(0.002)
    _drain(texts)
    for descriptor in texts:
        os.close(descriptor)
    if trace is not None:
        trace += texts[trace_read].decode().splitlines()
    (event,) = struct.unpack("q", shared[:8])
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    err = texts[err_read].decode(errors="replace")
    return Ending(None if killed else os.WEXITSTATUS(status), killed, err, event, time.monotonic() - start)


def refused(ending: Ending, pattern: str) -> bool:
    """Whether a child ended with a user error: status 1, a last line matching ``pattern``, and no traceback."""
    lines = ending.err.strip().splitlines()
    matches = bool(lines) and lines[-1].startswith("softtriple: ") and re.search(pattern, lines[-1]) is not None
    return ending.status == 1 and matches and "Traceback" not in ending.err


def _drain(texts: dict[int, bytes]) -> None:
    for descriptor in texts:
        try:
            while part := os.read(descriptor, 1 << 16):
                texts[descriptor] += part
        except BlockingIOError:
            pass


def _child(
    function: Callable[[], None],
    watched: list[Path],
    fault: Fault | None,
    shared: mmap.mmap,
    err: int,
    trace: int,
) -> None:
    """Run ``function`` and exit. Never returns: a forked child must not continue with its parent's code."""
    status = 1
    try:
        os.dup2(err, 1)
        os.dup2(err, 2)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), errors="backslashreplace", write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="backslashreplace", write_through=True)
        if watched:
            _Watch(watched, fault, shared, trace).install()
        function()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


class _Watch:
    """Counts file-system calls inside ``folders`` and triggers the fault."""

    def __init__(self, folders: list[Path], fault: Fault | None, shared: mmap.mmap, trace: int) -> None:
        self.folders, self.fault, self.shared, self.trace = folders, fault, shared, trace
        self.events = 0
        self.full = False
        self.unsynced: set[str] = set()

    def install(self) -> None:
        builtins.open = io.open = self._open  # type: ignore[assignment]
        for name in ("replace", "rename", "unlink", "remove", "mkdir"):
            setattr(os, name, self._counted(name, getattr(os, name)))
        os.fsync = self._fsync(os.fsync)  # type: ignore[assignment]
        import softtriple.models.weights as weights

        weights.save_file = self._save_file(weights.save_file)  # type: ignore[attr-defined]

    def inside(self, path: object) -> bool:
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        absolute = Path(os.fsdecode(path)).absolute()
        return any(folder == absolute or folder in absolute.parents for folder in self.folders)

    def event(self, kind: str, path: object, half: Callable[[], object] | None = None) -> None:
        self.events += 1
        self.shared[:8] = struct.pack("q", self.events)
        os.write(self.trace, f"{kind} {_short(path)}\n".encode())
        if self.fault is not None and self.events == self.fault.event:
            match self.fault.kind:
                case "full":
                    self.full = True
                case "stop":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "torn":
                    if half is not None:
                        half()
                case "power":
                    for name in self.unsynced:
                        if os.path.exists(name):  # noqa: PTH110 - pathlib would be watched too
                            os.truncate(name, 0)
            if self.fault.kind not in ("full", "stop"):
                os.kill(os.getpid(), signal.SIGKILL)
        if self.full and kind in ("write", "mkdir", "open", "fsync"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        if not set(mode) & set("wax+") or not self.inside(file):
            return _PLAIN_OPEN(file, mode, buffering, *more, **named)
        self.event("open", file)
        raw = _File(self, os.fspath(file), mode.replace("b", "").replace("t", ""))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")

    def _counted(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any, *more: Any, **named: Any) -> Any:
            if "dir_fd" not in named and self.inside(path):
                self.event(kind, path)
                result = call(path, *more, **named)
                if kind in ("replace", "rename") and str(path) in self.unsynced:
                    self.unsynced = (self.unsynced - {str(path)}) | {str(more[0])}
                return result
            return call(path, *more, **named)

        return counted

    def _fsync(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a plain string, as passed to open
            if self.inside(path):
                self.event("fsync", path)
                self.unsynced.discard(path)
            call(descriptor)

        return fsync

    def _save_file(self, call: Callable[..., None]) -> Callable[..., None]:
        def save_file(tensors: Any, path: Any, metadata: Any = None) -> None:
            from safetensors import SafetensorError

            def half() -> None:
                call(tensors, path, metadata)
                os.truncate(path, Path(path).stat().st_size // 2)

            self.unsynced.add(str(path))
            try:
                self.event("write", path, half)
            except OSError as error:
                raise SafetensorError(f"I/O error: {error.strerror} (os error {error.errno})") from error
            call(tensors, path, metadata)

        return save_file


class _File(io.FileIO):
    """A file whose writes are events."""

    def __init__(self, watch: _Watch, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._watch, self._path = watch, path

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._watch.unsynced.add(self._path)
        self._watch.event("write", self._path, lambda: super(_File, self).write(view[: len(view) // 2]))
        return super().write(data)


_PLAIN_OPEN = open


def _short(path: object) -> str:
    """The file name without its random and numeric parts, so that it is the same in every run."""
    name = Path(os.fsdecode(path)).name if isinstance(path, str | bytes | os.PathLike) else str(path)
    if name.startswith(".softtriple-partial-"):
        return ".partial" + Path(name).suffix
    return re.sub(r"[0-9a-f]{16}|\d{3,}", "N", name)
