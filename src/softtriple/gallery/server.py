"""``softtriple serve``: uvicorn with limits on slow clients, and a shutdown that leaves no connection open."""

import asyncio
import gc
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from softtriple.errors import UserError, counted
from softtriple.gallery.app import create_app
from softtriple.gallery.audits import Audits, read_audit
from softtriple.gallery.compare import Other
from softtriple.gallery.layout import file_beside
from softtriple.gallery.security import SECURITY_HEADERS, Settings, error_response, host_name, settings_for
from softtriple.gallery.workers import RETRY_AFTER, one_core
from softtriple.models import Encoder
from softtriple.progress import Reporter
from softtriple.search import Store, open_store, resident
from softtriple.search.resident import serving
from softtriple.training import Run

HEADER_BYTES = 16 * 1024
KEEP_ALIVE_SECONDS = 5
SHUTDOWN_SECONDS = 5  # for requests in progress
# Open connections, including idle ones. `Guard` rejects requests long before (Settings.max_requests).
MAX_CONNECTIONS = 1000


def serve(
    run: str | Path,
    store_uri: str,
    *,
    host: str,
    port: int,
    token: str | None,
    allow_public: bool,
    trust: bool = False,
    edit: bool = False,
    compare: tuple[str | Path, str] | None = None,
    audit: Path | None = None,
    reporter: Reporter,
) -> None:
    """Show a run and its store in the browser until the server is stopped.

    ``compare`` is another run and its store, for a page that compares both. ``audit`` is a folder that ``softtriple
    audit`` has written; without it, the data of the run are audited when someone opens that page.
    """
    if audit is not None:
        read_audit(audit / "audit.json")
    if edit and token is None:
        token = secrets.token_urlsafe(12)
        reporter.note(f"token for this server: {token} (choose your own with SOFTTRIPLE_TOKEN)")
    settings = settings_for(host, token, allow_public=allow_public)
    with one_core(), listen(host, port) as listening:
        loaded = Run.load(run, trust=trust, reporter=reporter)
        encoder = loaded.encoder
        with ExitStack() as stores:
            durable = stores.enter_context(closing(_open(encoder, store_uri)))
            reporter.note(serving(durable).reason)
            store = resident(durable)
            other = None
            if compare is not None:
                second = Run.load(compare[0], trust=trust, reporter=reporter).encoder
                names = (Path(run).resolve().name, Path(compare[0]).resolve().name)
                other = Other(names, stores.enter_context(closing(_open(second, compare[1]))))
            endings = ("map.npz", "changes.jsonl", "audit")
            layout, log, beside = (file_beside(store_uri, Path(run), ending) for ending in endings)
            app = create_app(
                encoder,
                store,
                loaded.centers(),
                settings,
                loaded.calibration,
                layout_file=layout,
                changes_log=log if edit else None,
                other=other,
                audits=Audits(beside, Path(run), trust=trust) if audit is None else Audits(audit),
            )
            name = f"[{host_name(host)}]" if ":" in host_name(host) else host
            url = f"http://{name}:{listening.getsockname()[1]}/"
            items = counted(store.count(), "item")
            reporter.note(f"{items} at {url} (API documentation: {url}docs). Press Ctrl-C to stop.")
            Server(app, settings).run(sockets=[listening])


def _open(encoder: Encoder, uri: str) -> Store:
    return open_store(uri, fingerprint=encoder.fingerprint(), dim=encoder.dim)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or a UserError that names the options; uvicorn would log its own error and exit."""
    name = host_name(host)
    try:
        listening = socket.create_server((name, port), family=socket.AF_INET6 if ":" in name else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # without the address, which Python repeats
        raise UserError(f"cannot listen on --host {host} --port {port} ({reason}); choose another") from error
    # Connections inherit it. asyncio would set it, but not on a socket that, like this one, does not name its protocol.
    # Without it the body of an answer waits for the client to acknowledge the head: 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class Server(uvicorn.Server):
    """A uvicorn server of ``app`` that tracks its connections and aborts those that would outlive it.

    uvicorn asks the connections it knows of to finish, then waits for all of them. A connection accepted just before
    the listening socket closes is announced just after: nobody asks it to finish, so uvicorn waits until its graceful
    shutdown times out and leaves the socket open. Here a connection announced while the server stops is aborted at
    once, and so is every connection left when the shutdown is over.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        config = uvicorn.Config(
            partial(_answer, app),
            interface="asgi3",
            http="h11",
            ws="none",
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        super().__init__(config)
        self.connections: set[Connection] = set()
        config.load()
        protocol = partial(Connection, config.http_protocol_class, self, settings)
        config.http_protocol_class = cast(type[asyncio.Protocol], protocol)  # uvicorn only calls it

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the process is told to stop."""
        # What is loaded now stays. Looking for garbage in it would stop all threads for some 0.2 s each time.
        gc.collect()
        gc.freeze()
        super().run(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests in progress finish, then abort what is left."""
        await super().shutdown(sockets)
        for connection in self.connections:
            connection.abort()
        await asyncio.sleep(0)  # an aborted transport closes its socket in the next iteration of the loop


class Connection(asyncio.Protocol):
    """One connection: passes all events to uvicorn's protocol and aborts the connection of a client that is too slow.

    uvicorn waits without limit for the next request, for the rest of a body that was answered early, and for a client
    to read its answer, so a few clients could hold all connections. Here, between two requests, the next one has
    ``header_seconds`` to arrive, and a client has ``request_seconds`` to read what was sent. During a request, `Guard`
    limits the time.
    """

    def __init__(
        self,
        make_protocol: Callable[..., asyncio.Protocol],
        server: Server,
        settings: Settings,
        *,
        app_state: dict[str, Any],
        **options: Any,
    ) -> None:
        # uvicorn copies this state into the scope of every request, where `_answer` finds the connection.
        self._protocol = make_protocol(app_state={**app_state, "connection": self}, **options)
        self._server = server
        self._limits = {"request": settings.header_seconds, "reading": settings.request_seconds}
        self._awaited: str | None = None  # what the client owes: a key of the limits
        self._timer: asyncio.TimerHandle | None = None
        self._requests = 0  # in progress; pipelined ones may overlap for a moment
        self._unread = False  # whether a part of an answer waits in the transport

    @property
    def crowded(self) -> bool:
        """Whether the server has more connections than it should."""
        return len(self._server.connections) > MAX_CONNECTIONS

    @contextmanager
    def request(self) -> Iterator[None]:
        """Mark a request as in progress."""
        self._requests += 1
        self._watch()
        try:
            yield
        finally:
            self._requests -= 1
            self._watch()

    def abort(self) -> None:
        """Close the connection without sending what is buffered."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for the first request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # pause_writing as soon as anything is buffered
        self._server.connections.add(self)
        self._protocol.connection_made(cast(asyncio.BaseTransport, _JsonTransport(self._transport)))
        self._watch()
        if self._server.should_exit:
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Pass the data on."""
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the data on."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """Start waiting for the client to read."""
        self._unread = True
        self._protocol.pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """The client has read everything."""
        self._unread = False
        self._protocol.resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._server.connections.discard(self)
        self._protocol.connection_lost(exc)
        self._watch()

    def _watch(self) -> None:
        """Start the timer of what the client owes now, unless it is running already."""
        if self not in self._server.connections:
            awaited = None
        elif self._unread:
            awaited = "reading"
        else:
            awaited = None if self._requests else "request"
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if awaited is not None:
            self._timer = asyncio.get_running_loop().call_later(self._limits[awaited], self.abort)


class _JsonTransport:
    """The transport that uvicorn writes to: sends uvicorn's own plain-text 400 in the form of all other errors."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._replaced = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send ``data``, unless it belongs to uvicorn's 400."""
        if data.startswith(b"HTTP/1.1 400 ") and b"text/plain" in data:
            self._replaced = True
            error = error_response(400, "not a valid HTTP request", {"Connection": "close", **SECURITY_HEADERS})
            lines = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % header for header in error.raw_headers), b""]
            self._transport.write(b"\r\n".join([*lines, bytes(error.body)]))
        elif not self._replaced:
            self._transport.write(data)


async def _answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Let ``app`` answer, unless there are too many connections, and tell the connection how long that takes."""
    if scope["type"] != "http":
        await app(scope, receive, send)
        return
    connection: Connection = scope["state"].pop("connection")
    with connection.request():
        if connection.crowded:
            headers = {"Connection": "close", **RETRY_AFTER, **SECURITY_HEADERS}
            app = error_response(503, "the server has too many connections, try again in a moment", headers)
        await app(scope, receive, send)
