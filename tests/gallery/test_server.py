"""How connections end: at shutdown, and when a client is slow or one too many."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from softtriple.gallery import Settings
from softtriple.gallery.server import Server, listen, make_server

LARGE = "x" * 20_000_000  # more than the buffers of the kernel hold


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["type"] == "http"
    await PlainTextResponse(LARGE if scope["path"] == "/large" else "small")(scope, receive, send)


@contextmanager
def started(settings: Settings) -> Iterator[tuple[Server, tuple[str, int]]]:
    with listen("127.0.0.1", 0) as listening:
        address = listening.getsockname()
        server = make_server(app, settings)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield server, address
        finally:
            server.should_exit = True
            thread.join()


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes the connection without an answer; a timeout is an error."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


# Two turns before the listening socket closes, asyncio itself drops the connection; uvicorn's loop never gets there.
@pytest.mark.parametrize("turns", [0, 1, 3, 4, 5, 6])
def test_a_connection_made_while_stopping_is_closed(turns: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The shutdown begins ``turns`` iterations of the event loop after the client connects.

    After three, asyncio has accepted the connection and not yet announced it to the protocol.
    """
    with listen("127.0.0.1", 0) as listening, socket.socket() as client:
        server = make_server(app, Settings())
        address = listening.getsockname()

        async def main_loop() -> None:
            client.connect(address)
            for _ in range(turns):
                await asyncio.sleep(0)
            server.should_exit = True

        server.main_loop = main_loop  # type: ignore[method-assign]
        server.run(sockets=[listening])
        assert not server.connections
        assert is_closed(client)
    assert "graceful shutdown exceeded" not in capsys.readouterr().err


def test_connections_left_after_the_graceful_shutdown_are_closed(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as listening, socket.socket() as client:
        server = make_server(app, Settings())
        server.config.timeout_graceful_shutdown = 0
        address = listening.getsockname()

        async def main_loop() -> None:
            client.connect(address)
            client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not any(connection._unread for connection in server.connections):
                await asyncio.sleep(0)
            server.should_exit = True

        server.main_loop = main_loop  # type: ignore[method-assign]
        server.run(sockets=[listening])
        assert not server.connections
    assert "graceful shutdown exceeded" in capsys.readouterr().err


@pytest.mark.parametrize("keep", ["keep-alive", "close"])
def test_a_client_that_never_reads_is_cut_off(keep: str) -> None:
    request = f"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: {keep}\r\n\r\n".encode()
    with started(Settings(request_seconds=0.3)) as (server, address), socket.create_connection(address) as client:
        client.sendall(request * 20)
        wait_for(lambda: server.server_state.total_requests > 0)
        wait_for(lambda: not server.connections)


def test_a_client_that_reads_is_not_cut_off() -> None:
    settings = Settings(request_seconds=20.0, header_seconds=0.3)
    with started(settings) as (_, address), socket.create_connection(address, timeout=10) as client:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        time.sleep(0.6)  # longer than a next request may take
        received = client.makefile("rb").read()
    assert received.endswith(LARGE.encode())


def test_too_many_connections_get_an_error_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softtriple.gallery.server.MAX_CONNECTIONS", 0)
    with started(Settings()) as (_, (host, port)):
        answer = httpx.get(f"http://{host}:{port}/", timeout=60)
    assert answer.status_code == 503
    assert list(answer.json()) == ["error"]
    assert (answer.headers["connection"], "retry-after" in answer.headers) == ("close", True)


def wait_for(condition, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
