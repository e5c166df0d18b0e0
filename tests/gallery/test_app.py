"""The JSON API, through a real server."""

from io import BytesIO

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.gallery.small_gallery import COLORS, HOSTILE, PER_CLASS, Collection

TOTAL = PER_CLASS * len(COLORS) + 1


def test_health_and_about(client: httpx.Client, collection: Collection) -> None:
    about = client.get("/api/about").json()
    assert client.get("/health").json() == {"status": "ok", "items": TOTAL, "version": collection.store.version()}
    assert about["version"] == collection.store.version()
    assert about["kind"] == "image"
    assert about["items"] == TOTAL
    assert about["classes"] == len(COLORS)
    assert about["dim"] == 8
    assert about["trained_classes"] == 2
    assert about["fingerprint"] == collection.store.fingerprint


def test_the_neighbours_of_an_item_are_those_of_the_store(client: httpx.Client, collection: Collection) -> None:
    answer = client.get("/api/search/item", params={"id": "set/0-0.png", "k": 5}).json()
    vector = collection.store.get(["set/0-0.png"])[0].vector
    expected = [hit for hit in collection.store.search(vector[None], 6)[0] if hit.item.id != "set/0-0.png"]
    assert [hit["item"]["id"] for hit in answer["hits"]] == [hit.item.id for hit in expected]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in expected])
    assert answer["query_class"] == "blue"
    assert answer["hits"][0]["item"]["id"] == "set/mislabelled.png", "a copy of the query"
    assert answer["hits"][0]["same_class"] is False
    assert [hit["same_class"] for hit in answer["hits"]] == [hit.item.class_name == "blue" for hit in expected]


def test_an_uploaded_image_finds_itself(client: httpx.Client, collection: Collection) -> None:
    data = (collection.folder / "2-3.png").read_bytes()
    answer = client.post("/api/search/image", content=data, params={"k": 3}).json()
    assert answer["hits"][0]["item"]["id"] == "set/2-3.png"
    assert answer["hits"][0]["score"] == pytest.approx(1, abs=1e-4)
    assert answer["query"] is None
    assert [hit["same_class"] for hit in answer["hits"]] == [None] * 3
    told = client.post("/api/search/image", content=data, params={"k": 3, "class": "blue"}).json()
    assert [hit["same_class"] for hit in told["hits"]] == [hit["item"]["class_name"] == "blue" for hit in told["hits"]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_images_of_many_formats_are_read(client: httpx.Client, collection: Collection, kind: str, mode: str) -> None:
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
    assert (answer["method"], answer["umap"]) == ("pca", "unavailable")
    assert len(answer["x"]) == len(answer["y"]) == len(answer["labels"]) == TOTAL
    rows = client.get("/api/map/items", params={"version": answer["version"], "row": list(range(TOTAL))}).json()[
        "items"
    ]
    assert [item["id"] for item in rows] == list(collection.ids)
    assert [answer["class_names"][label] for label in answer["labels"]] == [item["class_name"] for item in rows]
    assert np.ptp(answer["x"]) >= np.ptp(answer["y"]) > 0
    assert 0 < answer["explained"] <= 1
    assert client.get("/api/map/state").json() == {"version": answer["version"], "umap": "unavailable"}


def test_columns_of_the_map_agree_with_the_pages_of_classes(client: httpx.Client) -> None:
    answer = client.get("/api/map").json()
    column = {
        name: client.get("/api/map/column", params={"version": answer["version"], "column": name}).json()
        for name in ("prediction", "center")
    }
    own = [answer["class_names"][label] for label in answer["labels"]]
    taken = [column["prediction"]["names"][value] for value in column["prediction"]["values"]]
    for name in COLORS:
        page = client.get("/api/class", params={"class": name}).json()
        here = [row for row, one in enumerate(own) if one == name]
        right = sum(taken[row] == name for row in here)
        assert page["summary"]["recall"] == pytest.approx(right / len(here))
        numbers = [column["center"]["values"][row] for row in here]
        counts = [center["count"] for center in page["centers"]]
        assert [numbers.count(place) for place in range(len(counts))] == counts
        assert numbers.count(-1) == (0 if counts else len(here))


def test_thumbnails_are_small_images(client: httpx.Client) -> None:
    answer = client.get("/api/thumbnail", params={"id": "set/1-2.png"})
    assert answer.headers["content-type"] == "image/webp"
    assert Image.open(BytesIO(answer.content)).size == (72, 72), "never enlarged"


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/search/item?id=nothing", 404, "no item 'nothing'"),
        ("/api/thumbnail?id=nothing", 404, "no item 'nothing'"),
        ("/api/thumbnail?id=set/0-0.png&size=huge", 422, "size: "),
        ("/api/class?class=nothing", 404, "no class 'nothing'"),
        ("/api/items?class=nothing", 404, "no class 'nothing'"),
        ("/api/items?limit=100000", 422, "limit: "),
        ("/api/items?center=0", 422, "center: "),
        ("/api/items?class=blue&center=2", 404, "class 'blue' has 2 distinct centres"),
        ("/api/search/item?id=set/0-0.png&k=0", 422, "k: "),
        ("/api/map?method=umap", 404, "unavailable"),
        ("/api/map/items?version=old&row=0", 409, "changed"),
        ("/api/map/column?version=old&column=center", 409, "changed"),
        ("/api/search/item", 422, "id: Field required"),
        ("/api/search/text?text=bird", 404, "takes images, not texts"),
        ("/api/search/image", 405, "GET"),
        ("/api/nothing", 404, "no such page"),
        ("/nothing.html", 404, "no such page"),
    ],
)
def test_errors_have_one_form(client: httpx.Client, path: str, status: int, sentence: str) -> None:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert sentence in answer.json()["error"]


def test_every_address_is_described(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    assert set(described["paths"]) == {
        "/health",
        *(f"/api/{name}" for name in ("about", "item", "items", "thumbnail", "classes", "class", "class-names", "map")),
        *(f"/api/map/{name}" for name in ("column", "items", "state")),
        *(f"/api/search/{name}" for name in ("image", "text", "item")),
    }
    for methods in described["paths"].values():
        for operation in methods.values():
            assert operation["description"]
            refusals = {status: answer for status, answer in operation["responses"].items() if status != "200"}
            assert {"403", "404", "413", "422", "429", "503"} <= set(refusals)
            for answer in refusals.values():
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorAnswer")
