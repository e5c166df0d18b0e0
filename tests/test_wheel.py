"""The wheel alone, in an empty environment and an empty folder: what a user has after pip install."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import venv
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an environment with the wheel and two of its extras, in the pinned versions, has its programs."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT])
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "environment", with_pip=True)
    programs = folder / "environment" / "bin"
    what = f"softtriple[serve,store] @ {wheel.as_uri()}"
    run([programs / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", what])
    return programs


@pytest.mark.slow
def test_the_wheel_needs_no_repository(programs: Path, tmp_path: Path) -> None:
    softtriple = programs / "softtriple"
    where = run([programs / "python", "-c", "import softtriple; print(softtriple.__file__)"], tmp_path)
    assert where.startswith(str(programs.parent))
    assert "SoftTriple, K = 10" in run([softtriple, "demo"], tmp_path)
    write_photos(tmp_path / "photos")
    trained = json.loads(run([softtriple, "train", "photos", "--out", "runs/photos", "--json"], tmp_path))
    assert 0 <= trained["recall"]["1"] <= 1
    indexed = json.loads(run([softtriple, "index", "runs/photos", "photos", "--store", "s", "--json"], tmp_path))
    assert indexed["items"] == 24
    query = tmp_path / "photos" / "class0" / "0.png"
    found = run([softtriple, "search", "runs/photos", query, "--store", "s", "-k", "1"], tmp_path)
    assert str(query) in found.splitlines()[-1]

    port = free_port()
    command = [softtriple, "serve", "runs/photos", "--store", "s", "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, env=surroundings(), stderr=subprocess.PIPE, text=True) as serving:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                wait_for(client, serving)
                answer = client.post("/api/search/image", content=query.read_bytes(), params={"k": 1}).json()
                assert answer["hits"][0]["item"]["class_name"] == "class0"
                assert "<html" in client.get("/").text
        finally:
            serving.send_signal(signal.SIGINT)
            _, messages = serving.communicate(timeout=60)
    assert "Traceback" not in messages


def run(command: list[str | Path], folder: Path = ROOT) -> str:
    """What ``command`` prints."""
    done = subprocess.run(command, cwd=folder, env=surroundings(), capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def surroundings() -> dict[str, str]:
    """The environment without what would lead back to the repository."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def write_photos(folder: Path) -> None:
    random = np.random.default_rng(0)
    for label, color in enumerate([(200, 40, 40), (40, 200, 40), (40, 40, 200), (200, 200, 40)]):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(6):
            noisy = np.clip(np.array(color) + random.integers(-30, 30, (64, 64, 3)), 0, 255)
            Image.fromarray(noisy.astype(np.uint8)).save(folder / f"class{label}" / f"{number}.png")


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def wait_for(client: httpx.Client, serving: subprocess.Popen[str]) -> None:
    for _ in range(600):
        try:
            client.get("/health")
        except httpx.TransportError:
            assert serving.poll() is None, "the server has ended"
            time.sleep(0.5)
        else:
            return
    raise TimeoutError("the server does not answer")
