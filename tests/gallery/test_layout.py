"""The UMAP layout: computed by another process, kept in a file, and only for the vectors it was asked for."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.gallery.memory_store import MemoryStore

from softtriple.gallery import Settings, layout
from softtriple.gallery.layout import FEWEST, UmapLayout, digest_of, write_layout
from softtriple.gallery.schemas import MapAnswer
from softtriple.gallery.service import GalleryService
from softtriple.models import Encoder
from softtriple.search import Item

VECTORS = np.random.default_rng(0).standard_normal((FEWEST, 3)).astype(np.float32)


class Process:
    """Stands for the process: ends when ``finish`` is called."""

    def __init__(self, arguments: list[str], **_: object) -> None:
        self.arguments, self.status = arguments[3:], None
        self.ended, self.reaped = threading.Event(), threading.Event()
        started.append(self)

    def finish(self) -> None:
        write_layout(*self.arguments)
        self.end(0)

    def end(self, status: int) -> None:
        self.status = status
        self.ended.set()

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.end(self.status or -15)

    def wait(self) -> None:
        assert self.ended.wait(30)
        self.reaped.set()


started: list[Process] = []


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started.clear()
    monkeypatch.setattr(layout.subprocess, "Popen", Process)
    monkeypatch.setattr(layout, "umap_points", lambda vectors: 2 * vectors[:, :2])
    monkeypatch.setattr(layout.os, "nice", lambda _: None)


def test_a_layout_is_computed_once_and_read_by_the_next_server(tmp_path: Path) -> None:
    first = UmapLayout(tmp_path / "a.map.npz")
    first.request("x", VECTORS)
    first.request("x", VECTORS)
    (process,) = started
    assert first.state("x") == "computing"
    assert first.state("y") == "unavailable"
    process.finish()
    assert first.state("x") == "ready"
    np.testing.assert_allclose(first.points("x"), 2 * VECTORS[:, :2])
    assert not Path(process.arguments[0]).exists(), "what the process was given"
    second = UmapLayout(tmp_path / "a.map.npz")
    second.request("x", VECTORS)
    assert (second.state("x"), len(started)) == ("ready", 1)
    second.request("y", VECTORS)
    assert (second.state("y"), len(started)) == ("computing", 2)
    second.close()
    assert started[1].status == -15


def test_a_process_that_ends_is_reaped_though_nobody_asks(tmp_path: Path) -> None:
    layout_of_a = UmapLayout(tmp_path / "a.npz")
    layout_of_a.request("x", VECTORS)
    started[0].finish()
    assert started[0].reaped.wait(30)
    layout_of_a.close()


def test_there_is_none_without_a_file_or_the_package_and_for_a_few_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = UmapLayout(tmp_path / "a.npz")
    few.request("x", VECTORS[:-1])
    monkeypatch.setattr(layout, "find_spec", lambda _: None)
    for without in (few, UmapLayout(None), UmapLayout(tmp_path / "b.npz")):
        without.request("x", VECTORS[:-1])
        assert without.state("x") == "unavailable"
    assert started == []


def test_a_process_that_failed_and_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("not an archive")
    failed = UmapLayout(tmp_path / "a.npz")
    failed.request("x", VECTORS)
    started[0].end(1)
    assert failed.state("x") == "unavailable"


def test_the_map_changes_to_umap_when_that_is_ready(tmp_path: Path) -> None:
    encoder = Encoder.from_backbone("linear", dim=3, in_features=3).eval()
    store = MemoryStore([Item(f"{row:03}", 0, "a", "") for row in range(FEWEST)], VECTORS)
    service = GalleryService(encoder, store, None, Settings(), None, tmp_path / "a.npz")
    before = MapAnswer.model_validate_json(service.map())
    assert (before.method, before.umap) == ("pca", "computing")
    started[0].finish()
    after = MapAnswer.model_validate_json(service.map())
    assert (after.method, after.umap, after.explained) == ("umap", "ready", None)
    assert after.version == before.version
    assert len(after.x) == FEWEST
    assert MapAnswer.model_validate_json(service.map("pca")).x == before.x
    service.close()


def test_the_digest_is_of_names_and_vectors() -> None:
    digests = {
        digest_of(["a", "b"], VECTORS[:2]),
        digest_of(["b", "a"], VECTORS[:2]),
        digest_of(["a", "b"], VECTORS[1::-1]),
    }
    assert len(digests) == 3


@pytest.mark.slow
def test_umap_keeps_groups_apart_and_is_the_same_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own process, as a server does it."""
    monkeypatch.undo()
    random = np.random.default_rng(0)
    groups = np.repeat(np.eye(3, 60), 40, axis=0) + 0.02 * random.standard_normal((120, 60))
    places = []
    for name in ("a.npz", "b.npz"):
        umap = UmapLayout(tmp_path / name)
        umap.request("x", groups)
        while umap.state("x") == "computing":
            time.sleep(0.1)
        places.append(umap.points("x"))
    np.testing.assert_array_equal(*places)
    middles = places[0].reshape(3, 40, 2).mean(axis=1)
    assigned = ((places[0][:, None] - middles) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(assigned, np.repeat(range(3), 40))
