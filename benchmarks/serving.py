"""Answers per second of the gallery's HTTP API to many clients at once, from memory and from LanceDB.

The server runs in a process of its own; the clients ask for the neighbours of random stored items over connections that
stay open. With the sources of version 0.1.0 the same store is also served by that version, which searches LanceDB.
Writes results/serving.json and results/serving.md.

    git worktree add ../first 484de4a
    python benchmarks/serving.py [--items 100000] [--clients 1,64] [--seconds 10] [--first ../first/src]
"""

import argparse
import os
import random
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measuring import machine, save, table

DIM = 64
K = 24  # what the page asks for
PORT = 8765
LENGTH = b"content-length: "
# Gigabytes that vectors in memory may take.
PLACES = {"memory": "2", "LanceDB": "0"}
FIRST = "LanceDB, version 0.1.0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--clients", default="1,64")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--first", metavar="SRC", help="the folder src of version 0.1.0")
    parser.add_argument("--serve", metavar="STORE", help=argparse.SUPPRESS)
    parser.add_argument("--serve-first", metavar="STORE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if options.serve_first:
        serve_first(options.serve_first)
        return
    servers = {place: ("--serve", {"SOFTTRIPLE_SEARCH_GB": gigabytes}) for place, gigabytes in PLACES.items()}
    if options.first:
        servers[FIRST] = ("--serve-first", {"PYTHONPATH": str(Path(options.first).resolve())})
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        fill(folder, options.items)
        for place, (how, environment) in servers.items():
            command = [sys.executable, __file__, how, folder]
            server = subprocess.Popen(command, env={**os.environ, **environment})
            try:
                ask(1, 1.0, options.items)  # waits for the server, and warms it up
                for clients in map(int, options.clients.split(",")):
                    before = processor_seconds(server.pid)
                    taken = ask(clients, options.seconds, options.items)
                    used = processor_seconds(server.pid) - before
                    row = summary(taken, options.seconds)
                    rows.append({"place": place, "clients": clients, **row, "cpu_ms": used / len(taken) * 1e3})
            finally:
                server.terminate()
                server.wait()
    print(text(rows))
    save("serving", machine("lancedb", "faiss-cpu", "torch", "uvicorn", "fastapi"), rows, text(rows))


def fill(folder: str, count: int, sources: Sequence[str] = ("",)) -> None:
    """A store of ``count`` items, whose images are the ``sources`` in turn."""
    from evaluate import sample

    from softtriple.search import Item, open_store

    vectors, labels = sample(count, DIM, count // 100, 1.2)
    items = [
        Item(f"{row:07}", label, str(label), sources[row % len(sources)]) for row, label in enumerate(labels.tolist())
    ]
    store = open_store(folder, fingerprint="benchmark", dim=DIM, create=True)
    for start in range(0, count, 20_000):
        store.put(items[start : start + 20_000], vectors[start : start + 20_000].numpy())
    store.build_index()


def serve(place: str) -> None:
    from softtriple.gallery import Settings, create_app
    from softtriple.gallery.server import Server, listen
    from softtriple.gallery.workers import one_core
    from softtriple.models import Encoder, EncoderConfig
    from softtriple.search import open_store, resident

    one_core()  # as `softtriple serve` does
    encoder = Encoder(EncoderConfig(backbone="conv-small", dim=DIM), class_names=("a", "b")).eval()
    store = resident(open_store(place, fingerprint="benchmark"))
    with listen("127.0.0.1", PORT) as listening:
        Server(create_app(encoder, store, None), Settings()).run(sockets=[listening])


def serve_first(place: str) -> None:
    """`serve` with the names of version 0.1.0."""
    from softtriple.gallery import Settings, create_app
    from softtriple.gallery.server import listen, make_server
    from softtriple.models import Encoder, EncoderConfig
    from softtriple.search import open_store

    encoder = Encoder(EncoderConfig(backbone="conv-small", dim=DIM), class_names=("a", "b")).eval()
    store = open_store(place, fingerprint="benchmark")
    with listen("127.0.0.1", PORT) as listening:
        make_server(create_app(encoder, store, None), Settings()).run(sockets=[listening])


def ask(clients: int, seconds: float, items: int) -> list[float]:
    """The seconds that each answer took."""
    taken: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number in range(clients):
            client = Client(stack.enter_context(connect()), random.Random(number), items)
            selector.register(client.connection, selectors.EVENT_READ, client)
            client.send()
        end = time.perf_counter() + seconds
        while selector.get_map():
            for key, _ in selector.select():
                client = key.data
                if client.receive():
                    now = time.perf_counter()
                    taken.append(now - client.sent)
                    if now < end:
                        client.send()
                    else:
                        selector.unregister(client.connection)
    return taken


class Client:
    """A connection with one request at a time."""

    def __init__(self, connection: socket.socket, draw: random.Random, items: int) -> None:
        self.connection, self.sent = connection, 0.0
        self._draw, self._items, self._received = draw, items, b""

    def send(self) -> None:
        """Ask for the neighbours of a random item."""
        self._received, self.sent = b"", time.perf_counter()
        path = f"/api/search/item?id={self._draw.randrange(self._items):07}&k={K}"
        self.connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def receive(self) -> bool:
        """Read what has arrived; whether the answer is complete."""
        part = self.connection.recv(1 << 16)
        assert part, "the server has closed the connection"
        self._received += part
        head, end, body = self._received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head[head.index(LENGTH) + len(LENGTH) :].partition(b"\r\n")[0]) if end else None
        return len(body) == length


def connect() -> socket.socket:
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", PORT))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start within a minute")


def processor_seconds(process: int) -> float:
    """Processor time of ``process`` so far (Linux only), which other load on the machine hardly changes."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(taken: list[float], seconds: float) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        "per_second": len(taken) / seconds,
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p95_ms": ordered[int(len(ordered) * 0.95)] * 1e3,
    }


def text(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            row["place"],
            str(row["clients"]),
            f"{row['per_second']:.0f}",
            *(f"{row[name]:.1f}" for name in ("p50_ms", "p95_ms", "cpu_ms")),
        ]
        for row in rows
    ]
    return table(
        ["searched in", "clients", "answers per second", "p50 ms", "p95 ms", "server CPU ms per answer"], cells
    )


if __name__ == "__main__":
    main()
