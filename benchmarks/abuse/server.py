"""64 concurrent clients, valid and malicious, against the gallery: status codes, memory growth and latency."""

import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.abuse.images import CLASSES, SMALL
from benchmarks.abuse.mutants import bombs, mutant, pictures

WAIT = 45.0  # longer than every timeout of the server: by then it must have answered or closed the connection


class Kind(NamedTuple):
    """A kind of request: the parts to send, the pause before each, and whether it must succeed."""

    name: str
    parts: Callable[[random.Random], list[bytes]]
    pause: float = 0.0
    good: bool = False


def clients(folder: Path, *, seconds: float, count: int = 64) -> dict[str, Any]:
    """Run ``count`` clients for ``seconds``; each sends one random kind of request after another."""
    run, store = _prepare(folder)
    port = _free_port()
    environment = {**os.environ, "SOFTTRIPLE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "softtriple", "serve", str(run), "--store", str(store), "--port", str(port)]
    log = (folder / "server.log").open("w+")
    server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _until_ready(port, server)
        asyncio.run(_storm(port, seconds=min(5.0, seconds), count=count))  # warm-up: what is loaded once is loaded now
        before = _resident(server.pid)
        answers, times = asyncio.run(_storm(port, seconds=seconds, count=count))
        growth = _resident(server.pid) - before
        alive = server.poll() is None
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
        log.seek(0)
        output = log.read()
        log.close()
    failures = [f"{name}: answered {status}" for name, status in answers if status not in _allowed(name)]
    failures += [] if alive else ["the server died"]
    failures += ["traceback in the server's log: " + output[-1500:]] if "Traceback" in output else []
    failures += [f"memory grew by {growth:.0f} MB"] if growth > 60 else []
    closed = Counter(name for name, status in answers.elements() if status == "closed")
    statuses = Counter(str(status) for _, status in answers.elements())
    return {
        "trials": {"requests": sum(answers.values())},
        "statuses": dict(sorted(statuses.items())),
        "closed without a response": dict(closed),
        "valid requests": len(times),
        "median, ms": round(1000 * statistics.median(times)),
        "p99, ms": round(1000 * statistics.quantiles(times, n=100)[98]),
        "memory growth, MB": round(growth, 1),
        "failures": failures[:20],
    }


def _allowed(name: str) -> set[int | str]:
    """Allowed statuses for a kind of request; "closed" means the connection ended without a response."""
    if name in (kind.name for kind in KINDS if kind.good):
        return {200, 429}
    return {*range(200, 300), *range(400, 500), "closed"}


def _request(method: str, path: str, body: bytes = b"", headers: str = "Host: 127.0.0.1\r\n") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\n{headers}{length}Connection: close\r\n\r\n".encode("latin-1") + body


def _upload(content: bytes) -> bytes:
    return _request("POST", "/api/search/image", content, "Host: 127.0.0.1\r\nContent-Type: image/png\r\n")


def _declared(length: str) -> bytes:
    return f"POST /api/search/image HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n".encode()


def _mutated_upload(draw: random.Random) -> list[bytes]:
    import numpy as np

    return [_upload(mutant(pictures()[".jpg"], np.random.default_rng(draw.randrange(10**6))))]


TRAVERSALS = (
    "/../../etc/passwd",
    "/static/../../../../etc/passwd",
    "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2f..%2fetc%2fpasswd",
    "/static/....//....//etc/passwd",
    "/api/thumbnail?id=../../etc/passwd",
    "/api/thumbnail?id=/etc/passwd",
    "/api/class?name=../../etc/passwd%00",
    "//etc/passwd",
)
KINDS = (
    Kind("health", lambda draw: [_request("GET", "/health")], good=True),
    Kind("page", lambda draw: [_request("GET", "/")], good=True),
    Kind("classes", lambda draw: [_request("GET", "/api/classes")], good=True),
    Kind("upload", lambda draw: [_upload(pictures()[".png"])], good=True),
    Kind("mutated upload", _mutated_upload),
    Kind("bomb", lambda draw: [_upload(draw.choice(list(bombs().values())))]),
    Kind("traversal", lambda draw: [_request("GET", draw.choice(TRAVERSALS))]),
    Kind("oversized body", lambda draw: [_upload(bytes(11_000_000))]),
    Kind("declared length", lambda draw: [_declared(draw.choice(["9" * 16, "-1", "x", "1e3", ""]))]),
    Kind("not HTTP", lambda draw: [draw.randbytes(draw.randrange(1, 400)) + b"\r\n\r\n"]),
    Kind("long header", lambda draw: [_request("GET", "/", headers="Host: 127.0.0.1\r\nX: " + "a" * 200_000 + "\r\n")]),
    Kind("many headers", lambda draw: [_request("GET", "/", headers="Host: 127.0.0.1\r\n" + "X: a\r\n" * 20_000)]),
    Kind("another host", lambda draw: [_request("GET", "/api/classes", headers="Host: evil.example\r\n")]),
    Kind("two lengths", lambda draw: [_request("POST", "/", b"x", "Host: 127.0.0.1\r\nContent-Length: 5\r\n")]),
    Kind("strange method", lambda draw: [_request(draw.choice(["PUT", "DELETE", "TRACE", "FOO"]), "/api/classes")]),
    Kind("wrong query", lambda draw: [_request("GET", "/api/items?limit=" + draw.choice(["-1", "x", "9" * 30]))]),
    Kind("gone early", lambda draw: [_upload(pictures()[".png"])[:200]]),
    Kind("slow head", lambda draw: [b"GET / HTTP/1.1\r\n", *[b"X: a\r\n"] * 30], pause=1.0),
    Kind("slow body", lambda draw: [_upload(pictures()[".png"])[:300], *[b"a"] * 60], pause=1.0),
)


async def _storm(port: int, *, seconds: float, count: int) -> tuple[Counter[tuple[str, int | str]], list[float]]:
    answers: Counter[tuple[str, int | str]] = Counter()
    times: list[float] = []
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            kind = draw.choice(KINDS)
            start = time.monotonic()
            status = await _ask(port, kind, draw)
            answers[kind.name, status] += 1
            if kind.good:
                times.append(time.monotonic() - start)

    await asyncio.gather(*(client(number) for number in range(count)))
    return answers, times


async def _ask(port: int, kind: Kind, draw: random.Random) -> int | str:
    """The status of the response, "closed" if the connection ended without one, "hangs" if neither happened."""
    try:
        async with asyncio.timeout(WAIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            sending = asyncio.create_task(_send(writer, kind, draw))
            try:
                head = await reader.read(4096)
                while await reader.read(65_536):
                    pass
            finally:
                sending.cancel()
                writer.close()
        return int(head.split()[1]) if head.startswith(b"HTTP/") else "closed"
    except TimeoutError:
        return "hangs"
    except OSError:
        return "closed"


async def _send(writer: asyncio.StreamWriter, kind: Kind, draw: random.Random) -> None:
    try:
        for part in kind.parts(draw):
            await asyncio.sleep(kind.pause)
            writer.write(part)
            await writer.drain()
        if kind.name == "gone early":
            writer.close()
    except OSError:
        pass


def _prepare(folder: Path) -> tuple[Path, Path]:
    """Train a run and index its images."""
    data, run, store = folder / "data", folder / "run", folder / "store"
    for label in range(CLASSES):
        (data / str(label)).mkdir(parents=True)
        for number in range(20):
            (data / str(label) / f"{number}.png").write_bytes(pictures()[".png"])
    environment = {**os.environ, "SOFTTRIPLE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    for arguments in (["train", data, "--out", run, *SMALL], ["index", run, data, "--store", store]):
        command = [sys.executable, "-m", "softtriple", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
    return run, store


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_ready(port: int, server: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError("the server exited while starting")
        if asyncio.run(_ask(port, KINDS[0], random.Random(0))) == 200:
            return
        time.sleep(0.1)
    raise TimeoutError("the server did not start")


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
