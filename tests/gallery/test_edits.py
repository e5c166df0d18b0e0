"""The routes that change items: only with a log, only with the token."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_gallery import Collection, running

from softtriple.errors import UserError
from softtriple.gallery import Settings, create_app
from softtriple.search import Item

TOKEN = {"Authorization": "Bearer sesam"}


@pytest.fixture
def editor(collection: Collection, tmp_path: Path) -> Iterator[httpx.Client]:
    store = MemoryStore([Item(name, 0, "blue", "") for name in "abcd"], np.eye(4, 8, dtype=np.float32))
    settings = Settings(token="sesam")
    app = create_app(collection.encoder, store, None, settings, changes_log=tmp_path / "s.changes.jsonl")
    with running(app, settings) as url, httpx.Client(base_url=url, timeout=60, headers=TOKEN) as client:
        yield client


def test_items_are_changed_and_changed_back(editor: httpx.Client, tmp_path: Path) -> None:
    assert editor.get("/api/about").json()["edit"] is True
    answer = editor.post("/api/edit", json={"action": "relabel", "ids": ["a", "b"], "value": " red "}).json()
    assert answer == {"changed": 2, "last": "2 items relabelled “red”", "relabelled": 2, "deleted": 0, "tagged": 0}
    assert editor.get("/api/item?id=a").json()["item"]["proposed"] == "red"
    assert editor.get("/api/item?id=a").json()["item"]["class_name"] == "blue", "only proposed"
    editor.post("/api/edit", json={"action": "delete", "ids": ["a"]})
    assert editor.get("/api/item?id=a").status_code == 404
    assert "a,,blue" in editor.get("/api/changes.csv").text
    assert editor.post("/api/undo").json()["last"] == "2 items relabelled “red”"
    assert editor.get("/api/item?id=a").status_code == 200
    assert (tmp_path / "s.changes.csv").read_text() == editor.get("/api/changes.csv").text
    assert editor.get("/api/edits").json()["relabelled"] == 2


@pytest.mark.parametrize(
    "body",
    [
        {"action": "tag", "ids": ["a"], "value": " "},
        {"action": "burn", "ids": ["a"]},
        {"action": "delete", "ids": []},
        {"action": "delete"},
    ],
)
def test_a_wrong_change_is_rejected(editor: httpx.Client, body: dict) -> None:
    assert editor.post("/api/edit", json=body).status_code == 422
    assert editor.get("/health").json()["items"] == 4


def test_without_the_token_or_from_elsewhere_nothing_changes(editor: httpx.Client) -> None:
    body = {"action": "delete", "ids": ["a"]}
    assert editor.post("/api/edit", json=body, headers={"Authorization": "Bearer other"}).status_code == 401
    assert editor.post("/api/edit", json=body, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert editor.get("/health").json()["items"] == 4


def test_it_is_off_by_default_and_never_without_a_token(
    client: httpx.Client, collection: Collection, tmp_path: Path
) -> None:
    assert client.get("/api/about").json()["edit"] is False
    assert client.post("/api/edit", json={"action": "delete", "ids": [collection.ids[0]]}).status_code == 404
    assert client.get("/api/changes.csv").status_code == 404
    with pytest.raises(UserError, match="token"):
        collection.app(changes_log=tmp_path / "log.jsonl")
