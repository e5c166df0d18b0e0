"""An HTTP server of a few files in memory, with the faults of real ones."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """A file, and how it is answered for.

    The first ``breaks`` answers break off half-way through what is left; with ``stalls`` the connection stays silent
    there until the server stops. ``chunk`` bytes are sent at a time.
    """

    content: bytes
    status: int = 200
    ranges: bool = True
    etag: str | None = None
    breaks: int = 0
    stalls: bool = False
    announce: bool = True
    chunk: int = 1 << 16


@dataclass
class UnreliableServer:
    """``files`` by path; ``requests`` are the paths asked for, with the first byte wanted."""

    address: str
    files: dict[str, Served] = field(default_factory=dict)
    requests: list[tuple[str, int]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving() -> Iterator[UnreliableServer]:
    """The server, on a free port of this machine; all its threads have ended when the block is left."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            served = server.files.get(path, Served(b"", status=404))
            wanted = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-")
            start = int(wanted) if served.ranges and self.headers.get("If-Range", served.etag) == served.etag else 0
            server.requests.append((path, start))
            if served.status == 200 and start > 0 and start >= len(served.content):
                self.send_error(416)
                return
            content = served.content[start:]
            self.send_response(206 if start and served.status == 200 else served.status)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(served.content) - 1}/{len(served.content)}")
            if served.announce:
                self.send_header("Content-Length", str(len(content)))
            if served.etag:
                self.send_header("ETag", served.etag)
            self.end_headers()
            if served.breaks:
                served.breaks -= 1
                content = content[: len(content) // 2]
            for place in range(0, len(content), served.chunk):
                self.wfile.write(content[place : place + served.chunk])
                self.wfile.flush()
            if served.stalls:
                server.stopped.wait()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.daemon_threads = False
        server = UnreliableServer(f"http://127.0.0.1:{httpd.server_port}")
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stopped.set()
            httpd.shutdown()
            thread.join()
