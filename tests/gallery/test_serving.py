"""``softtriple serve``: who may bind where, and a real run with a real store behind the page."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.gallery.small_gallery import Collection

from softtriple.gallery.server import listen
from softtriple.gallery.serving import read_centers, settings_for
from softtriple.gallery.settings import LOOPBACK
from softtriple.search import Item, open_store
from softtriple.search.catalog import fingerprint
from softtriple.training.directory import RunDir


def test_loopback_needs_no_token_and_knows_its_names() -> None:
    settings = settings_for("127.0.0.5", None, allow_public=False)
    assert settings.token is None
    assert settings.hosts == (*LOOPBACK, "127.0.0.5")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_a_public_address_needs_a_token_or_to_be_wanted(host: str) -> None:
    with pytest.raises(ValueError, match=r"others could look at everything; set a token .* or give --allow-public"):
        settings_for(host, None, allow_public=False)
    assert settings_for(host, "sesam", allow_public=False).token == "sesam"
    assert settings_for(host, None, allow_public=True).hosts is None


def test_centres_are_read_where_the_loss_has_them(collection: Collection, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert read_centers(run, collection.encoder) is None
    for tensors in ({"proxies": torch.eye(2)}, {"centers": torch.eye(2)}, {"centers": torch.zeros(3, 1, 8)}):
        save_file(tensors, run.centers_file)
        assert read_centers(run, collection.encoder) is None
    save_file({"centers": collection.centers}, run.centers_file)
    found = read_centers(run, collection.encoder)
    assert found is not None
    torch.testing.assert_close(found, collection.centers)


@pytest.fixture
def run(collection: Collection, tmp_path: Path) -> Path:
    """A run directory as training leaves it, as far as serving needs it, and beside it a store in LanceDB."""
    folder = tmp_path / "run"
    collection.encoder.save(RunDir(folder).encoder)
    save_file({"centers": collection.centers}, RunDir(folder).centers_file)
    store = open_store(str(tmp_path / "store"), fingerprint=fingerprint(folder), dim=8, create=True)
    for items, vectors in collection.store.scan(100):
        store.put(items, vectors)
    store.close()
    return folder


def free_port() -> int:
    """One below those that the system hands out by itself, so that nobody takes it before it is used."""
    for port in range(20_000, 30_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise OSError("no port is free")


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
            found = client.post("/api/search/image", content=picture, params={"k": 3}).json()
            assert found["hits"][0]["item"]["id"] == "set/1-4.png"
            near = client.get("/api/search/item", params={"id": "set/0-0.png", "k": 1}).json()
            assert near["hits"][0]["item"]["id"] == "set/mislabelled.png"
            assert client.get("/api/thumbnail", params={"id": "set/2-2.png"}).status_code == 200
            assert client.get("/api/class", params={"class": "blue"}).json()["centers_per_class"] == 3
            assert client.get("/api/about", headers={"Authorization": ""}).status_code == 401
    finally:
        serving.send_signal(signal.SIGINT)
        out, said = serving.communicate(timeout=30)
    # 0 where the tests themselves run in the background of a shell, which makes their children ignore Ctrl-C.
    assert serving.returncode in (0, 130)
    assert f"25 items at http://127.0.0.1:{port}/" in said
    assert "Traceback" not in said
    assert out == ""


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--store", "STORE", "--host", "0.0.0.0"], 1, "others could look at everything"),
        (["--store", "nowhere"], 1, "nowhere: there is no store here"),
        (["--store", "STORE", "--port", "0"], 2, "--port"),
        (["--store", "STORE", "--port", "TAKEN"], 1, "cannot be listened on (Address already in use); choose another"),
        ([], 2, "--store"),
    ],
)
def test_what_a_user_got_wrong_is_said(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    sentence: str,
) -> None:
    from softtriple.cli import main

    with listen("127.0.0.1", 0) as taken:
        places = {"STORE": str(run.with_name("store")), "TAKEN": str(taken.getsockname()[1])}
        given = [places.get(argument, argument) for argument in arguments]
        monkeypatch.setattr(sys, "argv", ["softtriple", "serve", str(run), *given])
        with pytest.raises(SystemExit) as stop:
            main()
    said = capsys.readouterr().err
    assert stop.value.code == status
    assert sentence in said
    assert "items at http" not in said


def test_a_store_of_another_run_is_refused(run: Path, collection: Collection, tmp_path: Path) -> None:
    from softtriple.gallery.serving import serve
    from softtriple.progress import Reporter

    other = open_store(str(tmp_path / "other"), fingerprint="another", dim=8, create=True)
    other.put([Item("one", 0, "a", "")], np.eye(8, dtype=np.float32)[:1])
    other.close()
    with pytest.raises(ValueError, match="the store holds vectors of the run with fingerprint another"):
        serve(
            run,
            str(tmp_path / "other"),
            host="127.0.0.1",
            port=1,
            token=None,
            allow_public=False,
            reporter=Reporter(quiet=True),
        )
