"""The JSON interface, asked through a real server."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from starlette.exceptions import HTTPException
from tests.gallery.memory_store import MemoryStore
from tests.gallery.small_gallery import COLORS, HOSTILE, PER_CLASS, Collection

from softtriple.data.images import ImageError
from softtriple.gallery import Settings
from softtriple.gallery.contents import Contents
from softtriple.gallery.thumbnails import make_thumbnail, thumbnail_maker
from softtriple.models import Encoder
from softtriple.search import Item

TOTAL = PER_CLASS * len(COLORS) + 1


def test_health_and_about(client: httpx.Client, collection: Collection) -> None:
    assert client.get("/health").json() == {"status": "ok", "items": TOTAL}
    about = client.get("/api/about").json()
    assert about["kind"] == "image"
    assert about["items"] == TOTAL
    assert about["classes"] == len(COLORS)
    assert about["dim"] == 8
    assert about["trained_classes"] == 2
    assert about["fingerprint"] == collection.store.fingerprint


def test_the_neighbours_of_an_item_are_those_of_the_store(client: httpx.Client, collection: Collection) -> None:
    found = client.get("/api/search/item", params={"id": "set/0-0.png", "k": 5}).json()
    vector = collection.store.get(["set/0-0.png"])[0].vector
    expected = [hit for hit in collection.store.search(vector[None], 6)[0] if hit.item.id != "set/0-0.png"]
    assert [hit["item"]["id"] for hit in found["hits"]] == [hit.item.id for hit in expected]
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in expected])
    assert found["query_class"] == "blue"
    assert found["hits"][0]["item"]["id"] == "set/mislabelled.png", "a copy of the query"
    assert found["hits"][0]["same_class"] is False
    assert [hit["same_class"] for hit in found["hits"]] == [hit.item.class_name == "blue" for hit in expected]


def test_an_uploaded_picture_finds_itself(client: httpx.Client, collection: Collection) -> None:
    data = (collection.folder / "2-3.png").read_bytes()
    found = client.post("/api/search/image", content=data, params={"k": 3}).json()
    assert found["hits"][0]["item"]["id"] == "set/2-3.png"
    assert found["hits"][0]["score"] == pytest.approx(1, abs=1e-4)
    assert found["query"] is None
    assert [hit["same_class"] for hit in found["hits"]] == [None] * 3
    told = client.post("/api/search/image", content=data, params={"k": 3, "class": "blue"}).json()
    assert [hit["same_class"] for hit in told["hits"]] == [hit["item"]["class_name"] == "blue" for hit in told["hits"]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_of_many_formats_are_read(client: httpx.Client, collection: Collection, kind: str, mode: str) -> None:
    buffer = BytesIO()
    Image.open(collection.folder / "0-1.png").convert(mode).save(buffer, kind)
    answer = client.post("/api/search/image", content=buffer.getvalue(), params={"k": 1})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["hits"]) == 1


def test_pages_of_items_are_all_items_once(client: httpx.Client, collection: Collection) -> None:
    seen, offset = [], 0
    while offset is not None:
        page = client.get("/api/items", params={"offset": offset, "limit": 7}).json()
        seen += [item["id"] for item in page["items"]]
        offset = page["next_offset"]
    assert sorted(seen) == sorted(collection.ids)
    assert page["total"] == TOTAL
    of_class = client.get("/api/items", params={"class": HOSTILE, "limit": 100}).json()
    assert {item["class_name"] for item in of_class["items"]} == {HOSTILE}
    assert of_class["total"] == PER_CLASS
    assert client.get("/api/items", params={"offset": 10_000}).json()["items"] == []


def test_classes_worst_first(client: httpx.Client) -> None:
    answer = client.get("/api/classes").json()
    rows = {row["class_name"]: row for row in answer["classes"]}
    assert set(rows) == set(COLORS)
    recalls = [row["recall"] for row in answer["classes"]]
    assert recalls == sorted(recalls)
    assert rows["green"]["recall"] < 1, "one of them is a blue picture"
    assert {"class_name": "blue", "items": 1} in rows["green"]["confused"]
    assert (rows["blue"]["trained"], rows["blue"]["distinct_centers"]) == (True, 2)
    assert (rows[HOSTILE]["trained"], rows[HOSTILE]["distinct_centers"]) == (False, None)
    weights = [row["items"] for row in answer["classes"]]
    assert answer["recall"] == pytest.approx(np.average(recalls, weights=weights))
    assert answer["sampled"] is None


def test_a_trained_class_has_centres_and_a_new_one_items(client: httpx.Client) -> None:
    blue = client.get("/api/class", params={"class": "blue"}).json()
    assert blue["centers_per_class"] == 3
    assert [center["merged"] for center in blue["centers"]] == [2, 1]
    assert sum(center["count"] for center in blue["centers"]) == PER_CLASS
    assert blue["centers"][0]["items"][0]["id"] == "set/0-0.png", "the centre is its vector"
    new = client.get("/api/class", params={"class": HOSTILE}).json()
    assert (new["centers_per_class"], new["centers"]) == (None, [])
    assert len(new["items"]) == PER_CLASS


def test_items_of_a_class_say_what_they_are_taken_for(client: httpx.Client) -> None:
    green = client.get("/api/class", params={"class": "green"}).json()
    taken = [item["id"] for center in green["centers"] for item in center["items"] if item["taken_for"] == "blue"]
    assert taken == ["set/mislabelled.png"]
    listed = client.get("/api/items", params={"class": "green", "limit": 100}).json()["items"]
    assert [item["id"] for item in listed if item["taken_for"] == "blue"] == taken
    confused = sum(confusion["items"] for confusion in green["summary"]["confused"])
    assert sum(item["taken_for"] is not None for item in listed) == confused


def test_the_items_of_a_centre_in_pages(client: httpx.Client) -> None:
    shown = client.get("/api/class", params={"class": "blue"}).json()["centers"]
    for place, center in enumerate(shown):
        page = client.get("/api/items", params={"class": "blue", "center": place}).json()
        assert (page["total"], page["items"]) == (center["count"], center["items"])


def test_class_names_in_order(client: httpx.Client) -> None:
    assert client.get("/api/class-names").json() == {"class_names": sorted(COLORS)}


def test_the_map_has_every_item(client: httpx.Client, collection: Collection) -> None:
    answer = client.get("/api/map").json()
    assert answer["ids"] == list(collection.ids)
    assert len(answer["x"]) == len(answer["y"]) == len(answer["labels"]) == TOTAL
    names = [answer["class_names"][label] for label in answer["labels"]]
    assert names == [stored.item.class_name for stored in collection.store.get(answer["ids"])]
    assert np.ptp(answer["x"]) >= np.ptp(answer["y"]) > 0
    assert 0 < answer["explained"] <= 1


def test_thumbnails_are_small_pictures(client: httpx.Client, tmp_path: Path) -> None:
    answer = client.get("/api/thumbnail", params={"id": "set/1-2.png"})
    assert answer.headers["content-type"] == "image/webp"
    assert Image.open(BytesIO(answer.content)).size == (72, 72), "never enlarged"


def test_large_and_embedded_pictures(collection: Collection, tmp_path: Path) -> None:
    Image.new("RGB", (1000, 500), "teal").save(tmp_path / "wide.jpg")
    dot = BytesIO()
    Image.new("L", (1, 1)).save(dot, "PNG")
    embedded = f"data:image/png;base64,{b64encode(dot.getvalue()).decode()}"
    items = [Item("wide", 0, "a", str(tmp_path / "wide.jpg")), Item("dot", 0, "a", embedded)]
    items += [Item("gone", 0, "a", str(tmp_path / "gone.jpg")), Item("bare", 0, "a", "")]
    store = MemoryStore(items, np.eye(8, dtype=np.float32)[:4])
    contents = Contents(collection.encoder, store, None, Settings())
    sizes = [Image.open(BytesIO(contents.thumbnail("wide", size))).size for size in ("small", "large")]
    assert sizes == [(256, 128), (800, 400)]
    assert Image.open(BytesIO(contents.thumbnail("dot", "small"))).size == (1, 1)
    for missing, sentence in (
        ("gone", "cannot be shown: no such file"),
        ("bare", "no picture"),
        ("nowhere", "no item"),
    ):
        with pytest.raises(HTTPException, match=sentence):
            contents.thumbnail(missing, "small")


def png(side: int = 40) -> bytes:
    buffer = BytesIO()
    Image.effect_noise((side, side), 80).save(buffer, "PNG")
    return buffer.getvalue()


def test_only_small_thumbnails_are_remembered(tmp_path: Path) -> None:
    source = tmp_path / "a.png"
    source.write_bytes(png())
    thumbnail = thumbnail_maker()
    small = [thumbnail(str(source), "small"), thumbnail(str(source), "large")][0]
    source.unlink()
    assert thumbnail(str(source), "small") == small
    with pytest.raises(ImageError, match="no such file"):
        thumbnail(str(source), "large")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"


@pytest.mark.parametrize(
    "encoded",
    [b64encode(EPS).decode(), b64encode(png()).decode()[:-3], b64encode(png()[:300]).decode(), "", "é"],
    ids=["another format", "damaged base64", "damaged picture", "nothing", "no base64"],
)
def test_an_embedded_picture_is_a_png_or_nothing(encoded: str) -> None:
    with pytest.raises(ImageError, match="a picture in the store: not a readable PNG"):
        make_thumbnail(f"data:image/png;base64,{encoded}", "small")


def test_new_items_are_seen_without_a_restart(collection: Collection) -> None:
    store = MemoryStore([Item("one", 0, "a", "")], np.eye(8, dtype=np.float32)[:1])
    contents = Contents(collection.encoder, store, None, Settings())
    assert contents.items(0, 10).total == 1
    store.put([Item("two", 1, "b", "")], np.eye(8, dtype=np.float32)[1:2])
    assert contents.items(0, 10).total == 2
    assert len(contents.classes().classes) == 2


def test_items_of_another_class_are_seen_though_there_are_as_many(collection: Collection) -> None:
    vector = np.eye(8, dtype=np.float32)[:1]
    store = MemoryStore([Item("one", 0, "a", "")], vector)
    contents = Contents(collection.encoder, store, None, Settings(recount_seconds=0.0))
    assert [one.class_name for one in contents.classes().classes] == ["a"]
    store.put([Item("one", 1, "b", "")], vector)
    assert [one.class_name for one in contents.classes().classes] == ["b"]


def test_a_large_store_is_measured_by_some_classes_and_knows_the_others(collection: Collection) -> None:
    settings = Settings(analyzed_items=2 * PER_CLASS + 1, map_points=4)
    contents = Contents(collection.encoder, collection.store, collection.centers, settings)
    found = contents.classes()
    assert len(found.classes) == 2
    assert found.sampled == sum(one.items for one in found.classes) == len(contents.items(0, 100).items)
    (left_out,) = set(COLORS) - {one.class_name for one in found.classes}
    summary = contents.class_page(left_out).summary
    assert (summary.items, summary.recall, summary.confused) == (collection.store.classes()[left_out], None, [])
    assert contents.items(0, 100, left_out).items == []
    shown = contents.map()
    assert (len(shown.ids), shown.total) == (4, TOTAL)


def test_a_run_on_vectors_has_names_instead_of_pictures() -> None:
    encoder = Encoder.from_backbone("linear", dim=3, in_features=3).eval()
    store = MemoryStore([Item("row:0", 0, "a", "")], np.eye(3, dtype=np.float32)[:1])
    contents = Contents(encoder, store, None, Settings())
    assert contents.about().kind == "vector"
    (item,) = contents.items(0, 10).items
    assert (item.has_picture, item.text) == (False, None)
    for ask in (lambda: contents.embed_upload(b""), lambda: contents.embed_text("a bird")):
        with pytest.raises(Exception, match="this run's encoder takes vectors"):
            ask()


def test_a_run_on_texts_is_asked_by_text() -> None:
    texts = ("how do I reset my password", "password reset", "where is my parcel", "track a parcel")
    torch.manual_seed(0)
    encoder = Encoder.from_backbone("text", dim=8).eval()
    items = [Item(f"sha256:{row}", 0, f"class {row // 2}", text) for row, text in enumerate(texts)]
    contents = Contents(encoder, MemoryStore(items, encoder.embed(list(texts))), None, Settings())
    assert contents.about().kind == "text"
    found = contents.search_vector(contents.embed_text("track a parcel"), 2, "class 1")
    assert (found.hits[0].item.text, found.hits[0].same_class) == ("track a parcel", True)
    assert found.hits[0].item.has_picture is False
    assert contents.map().texts == list(texts)
    with pytest.raises(Exception, match="this run's encoder takes texts, not images"):
        contents.embed_upload(b"")


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/search/item?id=nothing", 404, "there is no item 'nothing' here"),
        ("/api/thumbnail?id=nothing", 404, "there is no item 'nothing' here"),
        ("/api/thumbnail?id=set/0-0.png&size=huge", 422, "size: "),
        ("/api/class?class=nothing", 404, "there is no class 'nothing' here"),
        ("/api/items?class=nothing", 404, "there is no class 'nothing' here"),
        ("/api/items?limit=100000", 422, "limit: "),
        ("/api/items?center=0", 422, "center: it goes with a class"),
        ("/api/items?class=blue&center=2", 404, "the class 'blue' has 2 distinct centres, counted from 0"),
        ("/api/search/item?id=set/0-0.png&k=0", 422, "k: "),
        ("/api/search/item", 422, "id: Field required"),
        ("/api/search/text?text=bird", 404, "this run's encoder takes images, not texts"),
        ("/api/search/image", 405, "no GET here"),
        ("/api/nothing", 404, "there is nothing at this address"),
        ("/nothing.html", 404, "there is nothing at this address"),
    ],
)
def test_refusals_are_sentences(client: httpx.Client, path: str, status: int, sentence: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert sentence in answer.json()["error"]


def test_every_address_is_described(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/health",
        *(f"/api/{name}" for name in ("about", "items", "thumbnail", "classes", "class", "class-names", "map")),
        *(f"/api/search/{name}" for name in ("image", "text", "item")),
    }
    for methods in described["paths"].values():
        for operation in methods.values():
            assert operation["description"]
            refusals = {status: answer for status, answer in operation["responses"].items() if status != "200"}
            assert {"404", "413", "422", "429"} <= set(refusals)
            for answer in refusals.values():
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
