"""Answers of the gallery, from Python values."""

import json
from base64 import b64encode
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.exceptions import HTTPException
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_gallery import COLORS, PER_CLASS, Collection, make_calibration

from softtriple.errors import UserError
from softtriple.gallery import Settings
from softtriple.gallery.schemas import ClassList, MapAnswer
from softtriple.gallery.searches import SearchQuery
from softtriple.gallery.service import GalleryService
from softtriple.models import Encoder
from softtriple.search import Hit, Item


def classes_of(service: GalleryService) -> ClassList:
    return ClassList.model_validate_json(service.classes())


def test_thumbnails_of_files_and_of_embedded_images(collection: Collection, tmp_path: Path) -> None:
    Image.new("RGB", (1000, 500), "teal").save(tmp_path / "wide.jpg")
    dot = BytesIO()
    Image.new("L", (1, 1)).save(dot, "PNG")
    embedded = f"data:image/png;base64,{b64encode(dot.getvalue()).decode()}"
    items = [Item("wide", 0, "a", str(tmp_path / "wide.jpg")), Item("dot", 0, "a", embedded)]
    items += [Item("gone", 0, "a", str(tmp_path / "gone.jpg")), Item("bare", 0, "a", "")]
    store = MemoryStore(items, np.eye(8, dtype=np.float32)[:4])
    service = GalleryService(collection.encoder, store, None, Settings())
    sizes = [Image.open(BytesIO(service.thumbnail("wide", size))).size for size in ("small", "large")]
    assert sizes == [(256, 128), (800, 400)]
    assert Image.open(BytesIO(service.thumbnail("dot", "small"))).size == (1, 1)
    for missing, sentence in (
        ("gone", "no such file"),
        ("bare", "no image"),
        ("nowhere", "no item"),
    ):
        with pytest.raises(HTTPException, match=sentence):
            service.thumbnail(missing, "small")


def test_a_calibrated_run_says_none_of_these(collection: Collection) -> None:
    service = GalleryService(collection.encoder, collection.store, collection.centers, Settings(), make_calibration())
    (copy,) = service.search([SearchQuery(3, collection.store.get([collection.ids[0]])[0].vector[None])])
    assert copy.known is True
    assert copy.threshold == 0.99999
    assert [hit.probability for hit in copy.hits] == sorted((hit.probability for hit in copy.hits), reverse=True)
    assert copy.vote is not None
    assert copy.vote.class_name in COLORS
    assert copy.by_centers is not None
    assert copy.by_centers.class_name == "blue"
    far = np.roll(collection.store.get([collection.ids[0]])[0].vector, 1)[None]
    assert service.search([SearchQuery(3, far)])[0].known is False
    (plain,) = GalleryService(collection.encoder, collection.store, None, Settings()).search([SearchQuery(3, far)])
    assert plain.known is plain.threshold is plain.by_centers is plain.hits[0].probability is None


def test_search_as_json_says_the_same(collection: Collection) -> None:
    service = GalleryService(collection.encoder, collection.store, collection.centers, Settings(), make_calibration())
    queries = [SearchQuery(3, item_id=collection.ids[0]), SearchQuery(2, item_id="nowhere")]
    (found, missing), (answer, _) = service.search_json(queries), service.search(queries)
    assert json.loads(found) == asdict(answer) | {"query": asdict(answer.query) | {"tags": []}, "hits": ANY}
    assert [hit["score"] for hit in json.loads(found)["hits"]] == [hit.score for hit in answer.hits]
    assert isinstance(missing, HTTPException)


def test_new_items_are_seen_without_a_restart(collection: Collection) -> None:
    store = MemoryStore([Item("one", 0, "a", "")], np.eye(8, dtype=np.float32)[:1])
    service = GalleryService(collection.encoder, store, None, Settings())
    assert service.items(0, 10).total == 1
    store.put([Item("two", 1, "b", "")], np.eye(8, dtype=np.float32)[1:2])
    assert service.items(0, 10).total == 2
    assert len(classes_of(service).classes) == 2


def test_items_of_another_class_are_seen_though_there_are_as_many(collection: Collection) -> None:
    vector = np.eye(8, dtype=np.float32)[:1]
    store = MemoryStore([Item("one", 0, "a", "")], vector)
    service = GalleryService(collection.encoder, store, None, Settings(recount_seconds=0.0))
    assert [one.class_name for one in classes_of(service).classes] == ["a"]
    store.put([Item("one", 1, "b", "")], vector)
    assert [one.class_name for one in classes_of(service).classes] == ["b"]


def test_a_large_store_is_measured_by_some_classes_and_knows_the_others(collection: Collection) -> None:
    settings = Settings(analyzed_items=2 * PER_CLASS + 1, map_points=4)
    service = GalleryService(collection.encoder, collection.store, collection.centers, settings)
    answer = classes_of(service)
    assert len(answer.classes) == 2
    assert answer.sampled == sum(one.items for one in answer.classes) == len(service.items(0, 100).items)
    (left_out,) = set(COLORS) - {one.class_name for one in answer.classes}
    summary = service.class_page(left_out).summary
    assert (summary.items, summary.recall, summary.confused) == (collection.store.classes()[left_out], None, [])
    assert service.items(0, 100, left_out).items == []
    shown = MapAnswer.model_validate_json(service.map())
    assert (len(shown.x), shown.total) == (4, len(collection.ids))
    with pytest.raises(HTTPException, match="4 items"):
        service.map_items(shown.version, [4])


def test_a_run_on_vectors_has_names_instead_of_images() -> None:
    encoder = Encoder.from_backbone("linear", dim=3, in_features=3).eval()
    store = MemoryStore([Item("row:0", 0, "a", "")], np.eye(3, dtype=np.float32)[:1])
    service = GalleryService(encoder, store, None, Settings())
    assert service.about().kind == "vector"
    (item,) = service.items(0, 10).items
    assert (item.has_picture, item.text) == (False, None)
    for ask in (lambda: service.embed_image(b""), lambda: service.embed_text("a bird")):
        with pytest.raises(HTTPException, match="takes vectors"):
            ask()


def test_a_run_on_texts_is_asked_by_text() -> None:
    texts = ("how do I reset my password", "password reset", "where is my parcel", "track a parcel")
    torch.manual_seed(0)
    encoder = Encoder.from_backbone("text", dim=8).eval()
    items = [Item(f"sha256:{row}", 0, f"class {row // 2}", text) for row, text in enumerate(texts)]
    service = GalleryService(encoder, MemoryStore(items, encoder.embed(list(texts))), None, Settings())
    assert service.about().kind == "text"
    (answer,) = service.search([SearchQuery(2, service.embed_text("track a parcel"), "class 1")])
    assert (answer.hits[0].item.text, answer.hits[0].same_class) == ("track a parcel", True)
    assert answer.hits[0].item.has_picture is False
    assert [one.text for one in service.map_items(service.map_state().version, [2, 0]).items] == [texts[2], texts[0]]
    with pytest.raises(HTTPException, match="takes texts, not images"):
        service.embed_image(b"")


def test_scores_stay_within_the_range_of_a_cosine(collection: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    item = Item("one", 0, "a", "")
    store = MemoryStore([item], np.eye(8, dtype=np.float32)[:1])
    service = GalleryService(collection.encoder, store, None, Settings())
    monkeypatch.setattr(
        store, "search", lambda *_, **__: [[Hit(item, 1.0000001), Hit(item, 0.25), Hit(item, -1.0000001)]]
    )
    (answer,) = service.search([SearchQuery(3, np.eye(8, dtype=np.float32)[:1])])
    assert [hit.score for hit in answer.hits] == [1.0, 0.25, -1.0]


@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 3, 8), (2, 8), (2, 3, 8, 1)])
def test_centres_that_do_not_fit_the_encoder_are_an_error_at_the_start(
    collection: Collection, shape: tuple[int, ...]
) -> None:
    with pytest.raises(UserError, match=r"centers\.safetensors") as error:
        GalleryService(collection.encoder, collection.store, torch.ones(shape), Settings())
    assert str(shape) in str(error.value)
    assert "(2, k, 8)" in str(error.value)


def test_centres_that_are_not_finite_are_an_error_at_the_start(collection: Collection) -> None:
    centers = collection.centers.clone()
    centers[1, 2, 3] = torch.nan
    with pytest.raises(UserError, match="NaN"):
        GalleryService(collection.encoder, collection.store, centers, Settings())
