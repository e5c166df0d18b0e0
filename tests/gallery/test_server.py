"""How connections end: at shutdown, and when a client is slow or one too many; and ``softtriple serve`` as a whole."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from tests.gallery.small_gallery import Collection

from softtriple.config import Config, LossConfig, ModelConfig
from softtriple.errors import UserError
from softtriple.gallery import Settings
from softtriple.gallery.server import Server, listen, serve
from softtriple.progress import Reporter
from softtriple.search import Item, open_store
from softtriple.training.directory import RunDir

LARGE = "x" * 20_000_000  # more than the buffers of the kernel hold


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["type"] == "http"
    await PlainTextResponse(LARGE if scope["path"] == "/large" else "small")(scope, receive, send)


@contextmanager
def started(settings: Settings) -> Iterator[tuple[Server, tuple[str, int]]]:
    with listen("127.0.0.1", 0) as listening:
        address = listening.getsockname()
        server = Server(app, settings)
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
        server = Server(app, Settings())
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
        server = Server(app, Settings())
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
    assert "content-security-policy" in answer.headers
    assert (answer.headers["connection"], "retry-after" in answer.headers) == ("close", True)


def wait_for(condition, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The whole.


@pytest.fixture
def run(collection: Collection, tmp_path: Path) -> Path:
    """The files of a run directory that serving needs, and a LanceDB store beside it."""
    directory = RunDir(tmp_path / "run")
    collection.encoder.save(directory.encoder)
    save_file({"centers": collection.centers}, directory.centers_file)
    directory.write_config(Config(model=ModelConfig(dim=8), loss=LossConfig(centers_per_class=3)))
    with closing(
        open_store(str(tmp_path / "store"), fingerprint=collection.encoder.fingerprint(), dim=8, create=True)
    ) as store:
        for items, vectors in collection.store.scan(100):
            store.put(items, vectors)
    return directory.path


def free_port() -> int:
    """A port below those that the system assigns by itself, so that no other socket takes it meanwhile."""
    for port in range(20_000, 30_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise OSError("no free port")


def test_a_run_and_its_store_are_served_until_ctrl_c(run: Path, collection: Collection) -> None:
    port = free_port()
    command = [sys.executable, "-m", "softtriple", "serve", str(run), "--store", str(run.with_name("store"))]
    environment = {**os.environ, "SOFTTRIPLE_TOKEN": "sesam"}
    serving = subprocess.Popen(
        [*command, "--port", str(port)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        bearer = {"Authorization": "Bearer sesam"}
        with httpx.Client(base_url=f"http://localhost:{port}", headers=bearer, timeout=60) as client:
            for _ in range(600):
                try:
                    assert client.get("/health").json()["items"] == len(collection.ids)
                    break
                except httpx.TransportError:
                    assert serving.poll() is None, serving.stderr.read()
                    time.sleep(0.1)
            picture = (collection.folder / "1-4.png").read_bytes()
            answer = client.post("/api/search/image", content=picture, params={"k": 3}).json()
            assert answer["hits"][0]["item"]["id"] == "set/1-4.png"
            near = client.get("/api/search/item", params={"id": "set/0-0.png", "k": 1}).json()
            assert near["hits"][0]["item"]["id"] == "set/mislabelled.png"
            assert client.get("/api/thumbnail", params={"id": "set/2-2.png"}).status_code == 200
            assert client.get("/api/class", params={"class": "blue"}).json()["centers_per_class"] == 3
            assert client.get("/api/about", headers={"Authorization": ""}).status_code == 401
    finally:
        serving.send_signal(signal.SIGINT)
        out, err = serving.communicate(timeout=30)
    # 0 if the tests run in the background of a shell, whose children ignore Ctrl-C.
    assert serving.returncode in (0, 130)
    assert f"25 items at http://127.0.0.1:{port}/" in err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "status", "fact"),
    [
        (["--store", "STORE", "--host", "0.0.0.0"], 1, "SOFTTRIPLE_TOKEN"),
        (["--store", "nowhere"], 1, "nowhere"),
        (["--store", "STORE", "--port", "0"], 2, "--port"),
        (["--store", "STORE", "--port", "TAKEN"], 1, "Address already in use"),
        ([], 2, "--store"),
    ],
)
def test_errors_of_the_user_are_named(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    fact: str,
) -> None:
    from softtriple.cli import main

    with listen("127.0.0.1", 0) as taken:
        places = {"STORE": str(run.with_name("store")), "TAKEN": str(taken.getsockname()[1])}
        given = [places.get(argument, argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["softtriple", "serve", str(run), *given])
        with pytest.raises(SystemExit) as stop:
            main()
    err = capsys.readouterr().err
    assert stop.value.code == status
    assert fact in err
    assert "items at http" not in err


def serve_quietly(run: Path, store: Path) -> None:
    serve(run, str(store), host="127.0.0.1", port=0, token=None, allow_public=False, reporter=Reporter(quiet=True))


def test_a_store_of_another_run_is_an_error(run: Path, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "other"), fingerprint="another", dim=8, create=True)) as other:
        other.put([Item("one", 0, "a", "")], np.eye(8, dtype=np.float32)[:1])
    with pytest.raises(ValueError, match="fingerprint another"):
        serve_quietly(run, tmp_path / "other")


@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 3, 8), (2, 4, 8), (2, 8)])
def test_a_centre_file_of_another_run_is_an_error_at_the_start(run: Path, shape: tuple[int, ...]) -> None:
    save_file({"centers": torch.ones(shape)}, RunDir(run).centers_file)
    with pytest.raises(UserError, match=r"centers\.safetensors"):
        serve_quietly(run, run.with_name("store"))
