"""uvicorn with limits, and a protocol that gives up on clients that dawdle."""

import asyncio
import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from softtriple.gallery.guard import host_name
from softtriple.gallery.settings import Settings

HEADER_BYTES = 16 * 1024
KEEP_ALIVE_SECONDS = 5
# Open connections, idle ones too. Requests are turned away with a sentence long before (Settings.max_requests).
MAX_CONNECTIONS = 1000


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; where it cannot, uvicorn would say so in its own words and end the program."""
    name = host_name(host)
    try:
        return socket.create_server((name, port), family=socket.AF_INET6 if ":" in name else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (")[0]  # without the address, which Python repeats
        raise OSError(f"--host {host} --port {port} cannot be listened on ({reason}); choose another") from error


def make_server(app: ASGIApp, settings: Settings) -> uvicorn.Server:
    """The server of ``app``, not yet running; its ``run`` takes the sockets."""
    config = uvicorn.Config(
        app,
        http=partial(PunctualProtocol, settings=settings),  # type: ignore[arg-type]  # any maker of a protocol will do
        ws="none",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    return uvicorn.Server(config)


class PunctualProtocol(H11Protocol):
    """uvicorn's protocol, and connections whose request does not arrive in time are closed.

    uvicorn waits without limit for the head of a request, and for the body of one that is already answered, so that a
    handful of clients that send a byte a minute could hold all connections (slow loris). Here the head has
    ``header_seconds``, and the body a little more than `Guard` grants it, which answers a slow one with a sentence.
    """

    def __init__(self, *arguments: Any, settings: Settings, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seconds = {h11.IDLE: settings.header_seconds, h11.SEND_BODY: 1.25 * settings.body_seconds}
        self._awaited: Any = None  # a state of h11
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._wait_for(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        """Take in data; they may complete a head or a body, or begin another request."""
        super().data_received(data)
        self._wait_for(self.conn.their_state)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        super().connection_lost(exc)
        self._wait_for(h11.CLOSED)

    def _wait_for(self, state: Any) -> None:
        """Set the alarm for what is missing: the head (IDLE), the body (SEND_BODY), or nothing."""
        if state is self._awaited:
            return  # more bytes of the same part do not give it more time
        self._awaited = state
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state in self._seconds:
            self._timer = self.loop.call_later(self._seconds[state], self.transport.close)
