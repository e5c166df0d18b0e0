"""Indexing, searching and measuring a run: every kind of data, again, in parts, after a kill."""

import base64
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, ImageArray, ImageFiles, Split, Texts, Vectors
from softtriple.data.images import decode_image
from softtriple.errors import UserError
from softtriple.models import Encoder
from softtriple.progress import Reporter
from softtriple.search import Item, catalog, nearest, open_store
from softtriple.search.catalog import Indexed, embed_queries
from softtriple.search.lance import LanceStore
from softtriple.training import Run, train

QUIET = Reporter(quiet=True)
SMALL = ["train.epochs=1", "train.batch_size=16", "model.dim=6", "loss.centers_per_class=2"]
CONV = ["model.backbone=conv-small", "model.input_size=28", "data.augment=crop"]


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (30, 34, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of class folders: b and d, so that later ones can come before and between them."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, name in enumerate("bd"):
        (folder / name).mkdir()
        for item in range(5):
            picture(10 * number + item).save(folder / name / f"{item}.png")
    return folder


@pytest.fixture(scope="module")
def image_run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "images"
    config = with_settings(Config(), [*SMALL, *CONV, "data.split=instances"])
    train(str(images), out=out, config=config, reporter=QUIET)
    return out


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 10)
    values = random.standard_normal((6, 8))[labels] + random.standard_normal((60, 8))
    values[7] = values[3]  # a copy
    file = tmp_path_factory.mktemp("vectors") / "vectors.npz"
    np.savez(file, vectors=values.astype(np.float32), labels=labels, class_names=np.array(list("abcdef")))
    return file


@pytest.fixture(scope="module")
def vector_run(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "vectors"
    train(str(vectors), out=out, config=with_settings(Config(), SMALL), reporter=QUIET)
    return out


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def stored(run: Path, uri: str) -> dict[str, Item]:
    opened = open_store(uri, fingerprint=Encoder.load(run).fingerprint())
    return {item.id: item for items, _ in opened.scan() for item in items}


def test_image_files(image_run: Path, images: Path, uri: str) -> None:
    data = str(images)
    assert Run.load(image_run).index(data, uri) == Indexed(added=10, updated=0, unchanged=0, items=10, classes=2)
    found = stored(image_run, uri)
    assert set(found) == {str(path.resolve()) for path in images.glob("*/*.png")}
    assert {(Path(item.source).parent.name, item.class_name) for item in found.values()} == {("b", "b"), ("d", "d")}

    (hits,) = Run.load(image_run).search([str(images / "d" / "2.png")], uri, k=3)
    assert hits[0].item.source == str((images / "d" / "2.png").resolve())
    assert hits[0].score == pytest.approx(1, abs=1e-6)
    (only,) = Run.load(image_run).search([str(images / "d" / "2.png")], uri, k=30, classes=["b"])
    assert [hit.item.class_name for hit in only] == ["b"] * 5


def test_search_is_nearest_among_embeddings(vector_run: Path, vectors: Path, uri: str) -> None:
    Run.load(vector_run).index(str(vectors), uri, part="test")
    test = Run.load(vector_run).benchmark().test
    assert isinstance(test.items, Vectors)
    embedded = torch.from_numpy(Encoder.load(vector_run).embed(test.items.values))
    found = Run.load(vector_run).search(["row:0", "row:5", "row:17"], uri, k=7)
    best = nearest(embedded[[0, 5, 17]], embedded, 7)
    for hits, scores in zip(found, best.scores.tolist(), strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-6)


def test_indexing_again_changes_nothing(vector_run: Path, vectors: Path, uri: str, monkeypatch) -> None:
    data = str(vectors)
    Run.load(vector_run).index(data, uri)
    before = stored(vector_run, uri)
    assert len(before) == 60, "a copy of a vector is an item of its own"
    assert sum(one.endswith("#2") for one in before) == 1
    assert Run.load(vector_run).index(data, uri, again=True) == Indexed(60, 0, 0, items=60, classes=6)
    monkeypatch.setattr(catalog, "_embed", None)  # what is stored is not embedded again
    assert Run.load(vector_run).index(data, uri) == Indexed(0, 0, 60, items=60, classes=6)
    assert stored(vector_run, uri) == before


def test_parts_and_deletion(vector_run: Path, vectors: Path, uri: str, monkeypatch) -> None:
    data, indexed = str(vectors), []
    assert Run.load(vector_run).index(data, uri, part="test") == Indexed(30, 0, 0, items=30, classes=3)
    test = stored(vector_run, uri)
    assert Run.load(vector_run).index(data, uri) == Indexed(30, 0, 30, items=60, classes=6)
    with monkeypatch.context() as patch:
        patch.setattr(LanceStore, "build_index", lambda self: indexed.append(self.count()))
        assert Run.load(vector_run).delete(data, uri, part="train") == 30
    assert indexed == [30], "what is left is indexed anew"
    assert stored(vector_run, uri) == test
    assert Run.load(vector_run).delete(data, uri) == 30
    assert stored(vector_run, uri) == {}


def test_new_classes_come_without_training_or_embedding_again(
    image_run: Path, images: Path, tmp_path: Path, uri: str, monkeypatch
) -> None:
    copy = tmp_path / "grown"
    for path in images.glob("*/*.png"):
        (copy / path.parent.name).mkdir(parents=True, exist_ok=True)
        (copy / path.parent.name / path.name).write_bytes(path.read_bytes())
    Run.load(image_run).index(str(copy), uri)
    (copy / "c").mkdir()
    for item in range(3):
        picture(100 + item).save(copy / "c" / f"{item}.png")
    embedded: list[int] = []
    embed = catalog._embed
    monkeypatch.setattr(
        catalog, "_embed", lambda encoder, split, *half: embedded.append(len(split)) or embed(encoder, split)
    )
    # d was class 1 and is now class 2: its items get their new number, and keep their vectors.
    grown = Run.load(image_run).index(str(copy), uri)
    assert grown == Indexed(added=3, updated=5, unchanged=5, items=13, classes=3)
    assert sum(embedded) == 3
    assert {(item.class_name, item.label) for item in stored(image_run, uri).values()} == {("b", 0), ("c", 1), ("d", 2)}
    (hits,) = Run.load(image_run).search([str(copy / "c" / "1.png")], uri, k=1)
    assert hits[0].item.class_name == "c"


def test_moved_files_keep_their_vectors_and_do_not_double(
    image_run: Path, images: Path, tmp_path: Path, uri: str, monkeypatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(images, first)
    (first / "b" / "copy.png").write_bytes((first / "b" / "0.png").read_bytes())
    Run.load(image_run).index(str(first), uri)
    shutil.copytree(first, second)
    copied = Run.load(image_run).index(str(second), uri)
    assert (copied.added, copied.moved, copied.items) == (11, 0, 22), "both are there"
    Run.load(image_run).delete(str(second), uri)
    before = {Path(one).relative_to(first).as_posix() for one in stored(image_run, uri)}
    shutil.rmtree(first)
    monkeypatch.setattr(catalog, "_embed", None)  # nothing is embedded again
    moved = Run.load(image_run).index(str(second), uri)
    assert moved == Indexed(added=0, updated=0, unchanged=0, items=11, classes=2, moved=11)
    after = stored(image_run, uri)
    assert {Path(one).relative_to(second).as_posix() for one in after} == before
    assert all(item.source == one for one, item in after.items())
    again = Run.load(image_run).index(str(second), uri)
    assert (again.unchanged, again.moved) == (11, 0)


def test_a_split_needs_no_benchmark_and_no_run(image_run: Path, images: Path, uri: str) -> None:
    encoder = Encoder.load(image_run)
    paths = tuple(map(str, sorted(images.glob("d/*.png"))))
    entries = catalog.Entries(Split(ImageFiles(paths), np.zeros(5, dtype=np.int64)), list(paths), ("unlabelled",))
    store = open_store(uri, fingerprint=Encoder.load(image_run).fingerprint(), dim=encoder.dim, create=True)
    assert catalog.index_items(encoder, [entries], store, QUIET).added == 5
    vectors = catalog.embed_queries(encoder, [paths[2]])
    ((hit, *_),) = catalog.search_store(store, vectors, k=3, classes=(), exact=False)
    assert (hit.item.source, hit.item.class_name) == (paths[2], "unlabelled")
    assert catalog.delete_items([entries], store) == 5


def test_pictures_in_memory_are_stored_whole() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (3, 20, 20), dtype=np.uint8)
    split = Split(ImageArray(pixels), np.array([0, 1, 1]))
    benchmark = Benchmark(name="drawn", class_names=("a", "b"), train=split, test=split)
    (part, ids, _), _ = catalog.benchmark_entries(benchmark)
    for item, drawn in zip(catalog._items(part, ids, benchmark.class_names), pixels, strict=True):
        start, content = item.source.split(",")
        assert start == "data:image/png;base64"
        with Image.open(BytesIO(base64.b64decode(content))) as shown:
            np.testing.assert_array_equal(np.asarray(shown), drawn)


def test_ids_of_texts_depend_on_the_text_alone() -> None:
    split = Split(Texts(("one", "two", "one")), np.array([0, 1, 1]))
    other = Split(Texts(("two", "one")), np.array([1, 0]))
    benchmark = Benchmark(name="texts", class_names=("a", "b"), train=split, test=other)
    (first, ids, _), (_, more, _) = catalog.benchmark_entries(benchmark)
    assert ids[2] == f"{ids[0]}#2"
    assert more == [f"{ids[1]}#2", f"{ids[0]}#3"]
    assert catalog.benchmark_entries(benchmark, "test")[0].ids == more, "and not on which halves are asked for"
    assert [item.source for item in catalog._items(first, ids, benchmark.class_names)] == ["one", "two", "one"]


# Eight items at a time, and killed before the fourth eight are written.
KILLED = """
import os, signal, sys
from softtriple.search import catalog
from softtriple.search.lance import LanceStore
from softtriple.training import Run

put, left = LanceStore.put, [1, 1, 1]

def put_or_die(self, *given):
    left.pop() if left else os.kill(os.getpid(), signal.SIGKILL)
    put(self, *given)

catalog.ITEMS_AT_ONCE, LanceStore.put = 8, put_or_die
Run.load(sys.argv[1]).index(sys.argv[2], sys.argv[3])
"""


def test_a_killed_indexing_continues(vector_run: Path, vectors: Path, uri: str) -> None:
    command = [sys.executable, "-c", KILLED, str(vector_run), str(vectors), uri]
    assert subprocess.run(command, check=False).returncode == -9
    assert len(stored(vector_run, uri)) == 24
    told = Run.load(vector_run).index(str(vectors), uri)
    assert told == Indexed(added=36, updated=0, unchanged=24, items=60, classes=6)


def test_the_fingerprint_is_that_of_the_encoder(image_run: Path, vector_run: Path, uri: str, vectors: Path) -> None:
    assert Encoder.load(vector_run).fingerprint() == Encoder.load(vector_run).fingerprint()
    assert Encoder.load(vector_run).fingerprint() != Encoder.load(image_run).fingerprint()
    Run.load(vector_run).index(str(vectors), uri)
    with pytest.raises(
        ValueError,
        match=f"{Encoder.load(vector_run).fingerprint()}, this run has {Encoder.load(image_run).fingerprint()}",
    ):
        Run.load(image_run).search(["x.png"], uri)


def test_recall_of_a_flat_store_is_one(vector_run: Path, vectors: Path, uri: str) -> None:
    Run.load(vector_run).index(str(vectors), uri)
    assert Run.load(vector_run).check_recall(uri) == 1


def test_recall_is_what_a_search_finds(vector_run: Path, vectors: Path, uri: str, monkeypatch) -> None:
    Run.load(vector_run).index(str(vectors), uri)
    opened = open_store(uri, fingerprint=Encoder.load(vector_run).fingerprint())
    whole = type(opened).search
    # A search that loses the three nearest others finds, of ten true neighbours, seven.
    monkeypatch.setattr(
        type(opened),
        "search",
        lambda self, queries, k, **more: [hits[:1] + hits[4:] for hits in whole(self, queries, k + 3, **more)],
    )
    assert Run.load(vector_run).check_recall(uri) == pytest.approx(0.7, abs=0.03)


def test_wrong_questions(vector_run: Path, image_run: Path, vectors: Path, images: Path, tmp_path: Path) -> None:
    uri, pictures = str(tmp_path / "vectors"), str(tmp_path / "images")
    Run.load(vector_run).index(str(vectors), uri)
    Run.load(image_run).index(str(images), pictures)
    for run, place, query, sentence in (
        (vector_run, uri, "row:30", "row:30: the run has 30 test items, row:0 to row:29"),
        (vector_run, uri, "cat.png", "cat.png: the encoder takes vectors"),
        (image_run, pictures, "nowhere.png", "nowhere.png: no such file"),
        (image_run, pictures, "row:-1", "row:-1: no such file"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Run.load(run).search([query], place)
    with pytest.raises(ValueError, match="there is no class 'z' in the store"):
        Run.load(vector_run).search(["row:0"], uri, classes=["a", "z"])
    with pytest.raises(UserError, match="not a run directory"):
        Run.load(tmp_path)


def test_data_that_do_not_fit_make_no_store(vector_run: Path, image_run: Path, images: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.npz"
    np.savez(wide, vectors=np.ones((8, 9), dtype=np.float32), labels=np.repeat(np.arange(4), 2))
    for run, data, sentence in (
        (vector_run, wide, "vectors of 8 numbers, but the data have 9"),
        (vector_run, images, "takes vectors, but the data are images"),
        (image_run, wide, "takes images, but the data are vectors"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Run.load(run).index(str(data), str(tmp_path / "store"))
    assert not (tmp_path / "store").exists()


def test_a_file_name_that_is_not_unicode() -> None:
    split = Split(ImageFiles(("/pictures/\udcff.png",)), np.array([0]))
    benchmark = Benchmark(name="odd", class_names=("a",), train=split, test=split)
    with pytest.raises(ValueError, match="the name is not Unicode"):
        catalog.benchmark_entries(benchmark)


def test_a_query_is_seen_as_in_evaluation(image_run: Path, images: Path) -> None:
    encoder, path = Encoder.load(image_run), images / "b" / "0.png"
    from_file = embed_queries(encoder, [str(path)])
    np.testing.assert_array_equal(from_file, encoder.embed(decode_image(str(path))))
