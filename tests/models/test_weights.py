import hashlib
import pickle
import random
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import nn

from softtriple.models.weights import load_exactly, read_weights


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of ``tmp_path / "served"`` on this machine; downloads go to ``tmp_path / "cache"``."""
    (tmp_path / "served").mkdir()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def save_with_checksum(weights: dict[str, torch.Tensor], folder: Path) -> Path:
    torch.save(weights, folder / "plain.pth")
    digest = hashlib.sha256((folder / "plain.pth").read_bytes()).hexdigest()
    return (folder / "plain.pth").rename(folder / f"net-{digest[:9]}.pth")


def test_round_trip_with_checksum(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    path = save_with_checksum(weights, tmp_path)
    read = read_weights(str(path))
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)


def test_url_is_downloaded_once(weights: dict[str, torch.Tensor], tmp_path: Path, server: str) -> None:
    path = save_with_checksum(weights, tmp_path / "served")
    first = read_weights(f"{server}/{path.name}")
    path.unlink()
    second = read_weights(f"{server}/{path.name}")
    assert first.keys() == second.keys() == weights.keys()
    assert [found.name for found in (tmp_path / "cache").rglob("*.pth")] == [path.name]


def test_urls_with_the_same_last_part_do_not_share_a_file(
    weights: dict[str, torch.Tensor], tmp_path: Path, server: str
) -> None:
    for number, folder in enumerate(("a", "b")):
        (tmp_path / "served" / folder).mkdir()
        torch.save({"bias": torch.tensor([number])}, tmp_path / "served" / folder / "net.pth")
    values = [read_weights(f"{server}/{folder}/net.pth")["bias"].item() for folder in ("a", "b", "a")]
    assert values == [0, 1, 0]


def test_download_with_wrong_checksum_is_not_kept(tmp_path: Path, server: str) -> None:
    (tmp_path / "served" / "net-0123456789.pth").write_bytes(b"something else")
    with pytest.raises(ValueError, match="0123456789"):
        read_weights(f"{server}/net-0123456789.pth")
    assert not list((tmp_path / "cache").rglob("*.pth"))


def test_url_that_does_not_exist(server: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"download failed .* give its path"):
        read_weights(f"{server}/net.pth")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such weight file"):
        read_weights(str(tmp_path / "net.pth"))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_file(weights: dict[str, torch.Tensor], tmp_path: Path, zipped: bool, share: float) -> None:
    path = tmp_path / "net.pth"
    torch.save(weights, path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="not a readable PyTorch weight file"):
        read_weights(str(path))


def test_damaged_file(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """Whatever torch, zipfile or pickle make of it, it is read or named."""
    path, draw = tmp_path / "net.pth", random.Random(0)
    torch.save(weights, path)
    content = path.read_bytes()
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(8):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            read_weights(str(path))
        except ValueError as error:
            refused += str(path) in str(error)
    assert refused > 200


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("sprung"),)


def test_nothing_but_tensors_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.pth").write_bytes(pickle.dumps(_Trap(), protocol=2))
    with pytest.raises(ValueError, match="not a readable PyTorch weight file"):
        read_weights(str(tmp_path / "net.pth"))
    assert not (tmp_path / "sprung").exists()


def test_a_file_of_something_else(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "net.pth")
    with pytest.raises(ValueError, match="not a state dict"):
        read_weights(str(tmp_path / "net.pth"))


def test_what_does_not_fit_is_listed(weights: dict[str, torch.Tensor]) -> None:
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = network[0].bias.clone()
    weights["0.weight"] = torch.zeros(2, 4)
    weights["2.weight"] = weights.pop("1.weight")
    weights["0.bias"] = torch.full((2,), 9.0)
    message = "f.pth: .*missing: 1.weight; unexpected: 2.weight; of another shape: 0.weight"
    with pytest.raises(ValueError, match=message):
        load_exactly(network, weights, "f.pth")
    assert torch.equal(network[0].bias, before), "weights that do not fit change nothing"


def test_long_lists_are_abridged() -> None:
    with pytest.raises(ValueError, match=r"0\.weight, 0\.bias, .* and 3 more"):
        load_exactly(nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))), {}, "f.pth")


def test_step_counters_may_be_missing(weights: dict[str, torch.Tensor]) -> None:
    del weights["1.num_batches_tracked"]
    load_exactly(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), weights, "f.pth")
