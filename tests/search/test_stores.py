"""One contract for every store: LanceDB and Milvus Lite, for real, against `nearest` and a dictionary."""

import doctest
import hashlib
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from pymilvus import MilvusException

from softtriple.errors import UserError
from softtriple.search import Hit, Item, Store, backend, lance, milvus, nearest, open_store, store

DIM = 12
# Names that mean something in SQL, in Milvus' expressions, in Python or in JSON.
NASTY = [
    "it's",
    'say "x"',
    "back\\slash",
    "tail\\",
    "' or 1=1 --",
    '"] or label >= 0 or class_name in ["',
    "new\nline",
    "tab\tand nul\0",
    "ünï 🦜",
    "",
    "%_",
    "{x}",
    "'); DROP TABLE items; --",
]


def unit(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def some_items(count: int, num_classes: int = 5) -> list[Item]:
    return [
        Item(f"item {n:04}", n % num_classes, f"class {n % num_classes}", f"/pictures/{n}.png") for n in range(count)
    ]


@pytest.fixture(scope="module", params=["lance", "milvus.db"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """New addresses, one after another, all for one kind of store."""
    folder = tmp_path_factory.mktemp("stores")
    return (str(folder / f"{number}-{request.param}") for number in itertools.count())


@pytest.fixture
def uri(place: Iterator[str]) -> str:
    return next(place)


@pytest.fixture
def empty(uri: str) -> Iterator[Store]:
    opened = open_store(uri, fingerprint="abc", dim=DIM, create=True)
    yield opened
    opened.close()


def contents(opened: Store) -> dict[str, tuple[Item, bytes]]:
    found = {}
    for items, vectors in opened.scan(batch_size=7):
        assert vectors.dtype == np.float32
        assert vectors.flags.writeable, "or torch warns"
        assert len(items) <= 7
        for item, vector in zip(items, vectors, strict=True):
            assert item.id not in found
            found[item.id] = (item, vector.tobytes())
    return found


def expected(items: list[Item], vectors: np.ndarray) -> dict[str, tuple[Item, bytes]]:
    return {item.id: (item, vector.tobytes()) for item, vector in zip(items, vectors, strict=True)}


def assert_nearest(found: list[list[Hit]], items: list[Item], vectors: np.ndarray, queries: np.ndarray, k: int) -> None:
    """``found`` is what `nearest` finds among ``items``; items of equal score may stand in for each other."""
    best = nearest(torch.from_numpy(queries), torch.from_numpy(vectors), k)
    row_of = {item.id: row for row, item in enumerate(items)}
    assert len(found) == len(queries)
    for hits, query, scores in zip(found, queries, best.scores.tolist(), strict=True):
        assert [hit.score for hit in hits] == scores
        assert len({hit.item.id for hit in hits}) == len(hits)
        for hit in hits:
            row = row_of[hit.item.id]
            assert hit.item == items[row]
            assert hit.score == pytest.approx(min(1.0, float(query.astype(np.float64) @ vectors[row])), abs=1e-7)


def test_what_is_put_is_there(empty: Store, uri: str) -> None:
    items, vectors = some_items(40), unit(40)
    empty.put(items[:25], vectors[:25])
    empty.put(items[25:], vectors[25:])
    assert empty.count() == 40
    assert contents(empty) == expected(items, vectors)
    assert list(contents(empty)) == list(contents(empty)), "the order of a scan is stable"
    assert empty.classes() == dict(Counter(item.class_name for item in items))
    empty.close()
    again = open_store(uri, fingerprint="abc")
    assert (again.fingerprint, again.dim) == ("abc", DIM)
    assert contents(again) == expected(items, vectors)
    again.close()


def test_putting_again_updates_and_does_not_double(empty: Store) -> None:
    items, vectors = some_items(20), unit(20)
    empty.put(items, vectors)
    changed = [Item(item.id, 9, "another class", "elsewhere") for item in items[5:12]]
    empty.put([*changed, *some_items(23)[20:]], unit(10, seed=1))
    assert contents(empty) == {
        **expected(items, vectors),
        **expected([*changed, *some_items(23)[20:]], unit(10, seed=1)),
    }
    assert empty.search(unit(10, seed=1)[:1], k=1)[0][0].item == changed[0]


def test_search_is_nearest(empty: Store) -> None:
    items, vectors, queries = some_items(300), unit(300), unit(15, seed=1)
    empty.put(items, vectors)
    for k in (1, 10):
        assert_nearest(empty.search(queries, k), items, vectors, queries, k)
        found = [[items.index(hit.item) for hit in hits] for hits in empty.search(queries, k)]
        assert found == nearest(torch.from_numpy(queries), torch.from_numpy(vectors), k).rows.tolist()
    assert [len(hits) for hits in empty.search(queries, 1000)] == [300] * 15
    assert empty.search(queries[:0], 3) == []


def test_search_among_copies(empty: Store) -> None:
    # Half of the store is one vector: which copies are found is open, their scores are not.
    items, vectors = some_items(60), np.concatenate([np.repeat(unit(1), 30, axis=0), unit(30, seed=2)])
    empty.put(items, vectors)
    queries = np.concatenate([vectors[:1], unit(5, seed=3)])
    assert_nearest(empty.search(queries, 8), items, vectors, queries, 8)
    names = [hit.item.id for hit in empty.search(queries[:1], 8)[0]]
    assert names == sorted(names), "equal scores are ordered by id"


def test_search_within_classes(empty: Store) -> None:
    items, vectors, queries = some_items(90), unit(90), unit(4, seed=1)
    empty.put(items, vectors)
    for chosen in (["class 3"], ["class 0", "class 4"]):
        rows = [row for row, item in enumerate(items) if item.class_name in chosen]
        found = empty.search(queries, 6, classes=chosen)
        assert_nearest(found, [items[row] for row in rows], vectors[rows], queries, 6)
    assert empty.search(queries, 6, classes=["no such class"]) == [[]] * 4


def test_zero_vectors_have_similarity_zero(empty: Store) -> None:
    vectors = np.concatenate([unit(3), np.zeros((1, DIM), dtype=np.float32)])
    items = some_items(4)
    empty.put(items, vectors)
    found = {hit.item.id: hit.score for hit in empty.search(vectors[:1], 4)[0]}
    assert found["item 0003"] == 0
    assert {hit.score for hit in empty.search(vectors[3:], 4)[0]} == {0}
    assert_nearest(empty.search(vectors, 4), items, vectors, vectors, 4)


@pytest.mark.parametrize("kind", ["approximate", "flat", "auto"])
def test_an_index_covers_what_comes_later(empty: Store, kind: store.IndexKind) -> None:
    items, vectors, queries = some_items(400), unit(400), unit(8, seed=1)
    empty.put(items[:300], vectors[:300])
    empty.build_index(kind)
    empty.put(items[300:], vectors[300:])
    assert empty.delete([items[0].id]) == 1
    for _ in range(2):
        assert_nearest(empty.search(queries, 10, exact=True), items[1:], vectors[1:], queries, 10)
        assert [hits[0].item for hits in empty.search(vectors[390:], 1)] == items[390:]
        found = empty.search(queries, 5, classes=["class 2"])
        rows = [row for row, item in enumerate(items) if item.class_name == "class 2"]
        assert_nearest(found, [items[row] for row in rows], vectors[rows], queries, 5)
        empty.build_index(kind)
    assert empty.count() == 399
    empty.build_index("flat")
    assert_nearest(empty.search(queries, 10), items[1:], vectors[1:], queries, 10)


def test_only_an_approximate_index_misses_neighbors(tmp_path: Path) -> None:
    # Not for Milvus Lite, which searches so few items in full.
    opened = open_store(str(tmp_path / "store"), fingerprint="abc", dim=DIM, create=True)
    items, vectors, queries = some_items(3000), unit(3000), unit(40, seed=1)
    opened.put(items, vectors)
    assert_nearest(opened.search(queries, 10), items, vectors, queries, 10)
    opened.build_index("approximate")
    every = opened.search(queries, 10, exact=True)
    assert_nearest(every, items, vectors, queries, 10)
    shares = [len(set(some) & set(all_)) / 10 for some, all_ in zip(opened.search(queries, 10), every, strict=True)]
    assert 0.5 < np.mean(shares) < 1


def share_found(opened: Store, queries: np.ndarray) -> float:
    pairs = zip(opened.search(queries, 10), opened.search(queries, 10, exact=True), strict=True)
    return float(np.mean([len(set(some) & set(every)) / len(every) for some, every in pairs]))


def test_as_many_cells_are_searched_as_the_store_of_now_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance, "FRESH", timedelta(0))
    uri = str(tmp_path / "store")
    reader = open_store(uri, fingerprint="abc", dim=DIM, create=True)  # before anything is in it
    writer = open_store(uri, fingerprint="abc")
    items, vectors, queries = some_items(6000), unit(6000), unit(40, seed=1)
    writer.put(items, vectors)
    writer.build_index("approximate")
    assert share_found(reader, queries) == share_found(writer, queries) > 0.6
    writer.delete([item.id for item in items[800:]])
    writer.build_index("approximate")
    assert share_found(reader, queries) > 0.6


def test_an_open_store_sees_what_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance, "FRESH", timedelta(0))
    uri = str(tmp_path / "store")
    reader = open_store(uri, fingerprint="abc", dim=DIM, create=True)
    writer = open_store(uri, fingerprint="abc")
    writer.put(some_items(3), unit(3))
    assert reader.count() == 3
    writer.build_index("approximate")
    assert reader.search(unit(3), 1)[0][0].item == some_items(3)[0]


def test_delete(empty: Store) -> None:
    items, vectors = some_items(30), unit(30)
    empty.put(items, vectors)
    assert empty.delete([items[3].id, "not there", items[7].id]) == 2
    assert empty.delete([items[3].id]) == 0
    assert empty.delete([]) == 0
    kept = [row for row in range(30) if row not in (3, 7)]
    assert contents(empty) == expected([items[row] for row in kept], vectors[kept])
    assert items[3] not in [hit.item for hit in empty.search(vectors[3:4], 30)[0]]


def test_get_and_known(empty: Store) -> None:
    items, vectors = some_items(30), unit(30)
    empty.put(items, vectors)
    wanted = [items[9].id, items[2].id, items[20].id]
    found = empty.get(wanted)
    assert [stored.item for stored in found] == [items[9], items[2], items[20]]
    np.testing.assert_array_equal([stored.vector for stored in found], vectors[[9, 2, 20]])
    assert empty.known([*wanted, "not there"]) == {one: items[int(one[-4:])] for one in wanted}
    assert empty.get([]) == []
    with pytest.raises(ValueError, match="not in the store: 'not there', 'nor this'"):
        empty.get([items[0].id, "not there", "nor this"])


def test_no_name_is_an_expression(empty: Store) -> None:
    items = [Item(name, place, name, name) for place, name in enumerate(NASTY)]
    vectors = unit(len(items))
    empty.put(items, vectors)
    empty.put(items, vectors)
    assert contents(empty) == expected(items, vectors)
    assert empty.classes() == dict.fromkeys(NASTY, 1)
    for place, item in enumerate(items):
        assert [stored.item for stored in empty.get([item.id])] == [item]
        assert [hit.item for hit in empty.search(vectors[:1], 50, classes=[item.class_name])[0]] == [item]
        assert empty.delete([item.id]) == 1
        assert empty.count() == len(items) - place - 1


def test_an_empty_store(empty: Store) -> None:
    assert empty.count() == 0
    assert empty.classes() == {}
    assert list(empty.scan()) == []
    assert empty.search(unit(2), 3) == [[], []]
    empty.put([], unit(0))
    empty.build_index("approximate")
    assert empty.count() == 0


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda vectors: vectors * np.nan, "vector 0 of 'item 0000' holds NaN"),
        (lambda vectors: np.where(np.eye(3, DIM, k=1) > 0, np.inf, vectors), "of 'item 0000' holds NaN or infinite"),
        (lambda vectors: vectors * [[1], [2], [1]], "vector 1 of 'item 0001' has length 2"),
        (lambda vectors: vectors[:, :-1], r"rows of 12 dimensions"),
        (lambda vectors: vectors[:2], "3 items but 2 vectors"),
    ],
)
def test_vectors_that_are_none(empty: Store, spoil, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        empty.put(some_items(3), spoil(unit(3)).astype(np.float32))
    assert empty.count() == 0


def test_wrong_questions(empty: Store) -> None:
    with pytest.raises(ValueError, match="k = 0: ask for at least one"):
        empty.search(unit(1), 0)
    with pytest.raises(ValueError, match="length 3"):
        empty.search(3 * unit(1), 1)
    with pytest.raises(ValueError, match="rows of 12 dimensions"):
        empty.search(unit(1, dim=5), 1)
    with pytest.raises(ValueError, match="item 'x' is given twice"):
        empty.put([Item("x", 0, "a", ""), Item("x", 1, "b", "")], unit(2))


def test_another_run_is_refused(empty: Store, uri: str) -> None:
    empty.close()
    for create in (False, True):
        with pytest.raises(ValueError, match="fingerprint abc, this run has xyz; search with that run, or index"):
            open_store(uri, fingerprint="xyz", dim=DIM, create=create)
    with pytest.raises(ValueError, match="vectors of 12 dimensions, not of 5"):
        open_store(uri, fingerprint="abc", dim=5)


def test_a_store_that_is_not_there(uri: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no store here; create it with softtriple index"):
        open_store(uri, fingerprint="abc")
    assert not Path(uri).exists(), "asking makes nothing"
    with pytest.raises(ValueError, match="a new store needs dim"):
        open_store(uri, fingerprint="abc", create=True)


def test_a_folder_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no store here"):
        open_store(str(tmp_path), fingerprint="abc")


@pytest.mark.parametrize("create", [False, True])
def test_a_file_is_no_store(tmp_path: Path, create: bool, caplog: pytest.LogCaptureFixture) -> None:
    for name, sentence in (("notes.txt", "a store is a folder, and this is a file"), ("notes.db", "no Milvus answers")):
        file = tmp_path / name
        file.write_text("something else")
        with pytest.raises(OSError, match=f"{name}: {sentence}"):
            open_store(str(file), fingerprint="abc", dim=DIM, create=create)
        assert file.read_text() == "something else"
    assert not caplog.records, "a failure is told once"


@pytest.mark.parametrize(
    ("uri", "database"),
    [
        ("folder", "lance"),
        ("s3://bucket/x.db", "lance"),
        ("x.db", "milvus"),
        ("http://host:19530/birds", "milvus"),
        ("https://host", "milvus"),
    ],
)
def test_the_address_decides_between_the_databases(monkeypatch: pytest.MonkeyPatch, uri: str, database: str) -> None:
    def refuse(*_: object) -> None:
        raise FileNotFoundError(database)

    for name, module in {"lance": lance, "milvus": milvus}.items():
        monkeypatch.setattr(module, f"open_{name}", refuse if name == database else None)
    with pytest.raises(FileNotFoundError, match=database):
        open_store(uri, fingerprint="abc")


def test_the_token_of_the_environment_reaches_milvus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def client(uri: str, **given: object) -> None:
        asked.append((uri, given["token"]))
        raise MilvusException(message="not today")

    monkeypatch.setattr(milvus, "MilvusClient", client)
    for token in ("", "user:secret"):
        monkeypatch.setenv("SOFTTRIPLE_MILVUS_TOKEN", token)
        with pytest.raises(OSError, match=r"birds: no Milvus answers here \(not today\)"):
            open_store("http://host:19530/birds", fingerprint="abc")
    assert asked == [("http://host:19530/birds", ""), ("http://host:19530/birds", "user:secret")]


def test_an_address_that_no_store_has() -> None:
    with pytest.raises(OSError, match=r"^ftp://host/path: .*No object store provider"):
        open_store("ftp://host/path", fingerprint="abc")
    with pytest.raises(OSError, match=r"^http://127\.0\.0\.1:1: no Milvus answers here"):
        open_store("http://127.0.0.1:1", fingerprint="abc")


@pytest.mark.parametrize(("module", "uri", "extra"), [("lancedb", "folder", "store"), ("pymilvus", "x.db", "milvus")])
def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch, module: str, uri: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, f"softtriple.search.{'lance' if extra == 'store' else 'milvus'}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'softtriple\[{extra}\]'"):
        open_store(uri, fingerprint="abc", dim=3, create=True)


def test_an_import_error_inside_an_installed_package_stays_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "softtriple.search.lance", raising=False)
    monkeypatch.delattr("softtriple.search.lance", raising=False)
    monkeypatch.setitem(sys.modules, "lancedb.index", None)
    with pytest.raises(ImportError, match=r"lancedb\.index") as caught:
        open_store("folder", fingerprint="abc", dim=3, create=True)
    assert not isinstance(caught.value, store.MissingPackageError)


def test_items_are_found_by_their_content(empty: Store) -> None:
    contents = [hashlib.sha256(bytes([n % 4])).hexdigest() for n in range(8)]
    items = [replace(item, content=content) for item, content in zip(some_items(8), contents, strict=True)]
    empty.put([*items, Item("bare", 0, "a", "")], unit(9))
    assert empty.known([items[2].id]) == {items[2].id: items[2]}
    found = empty.with_content([contents[1], contents[3], "0" * 64, "' or 1=1 --", '"] or label >= 0'])
    assert sorted(item.id for item in found) == [items[n].id for n in (1, 3, 5, 7)]
    assert empty.with_content([]) == []


def test_a_lance_store_without_contents_keeps_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, schema = str(tmp_path / "old"), lance._schema
    with monkeypatch.context() as patch:
        patch.setattr(lance, "_schema", lambda *given: schema(*given).remove(schema(*given).get_field_index("content")))
        open_store(uri, fingerprint="abc", dim=DIM, create=True).put(some_items(5), unit(5))
    opened = open_store(uri, fingerprint="abc")
    opened.put([replace(some_items(6)[5], content="1" * 64)], unit(6)[5:])
    opened.build_index("approximate")
    assert contents(opened) == expected(some_items(6), unit(6))
    assert opened.with_content(["1" * 64]) == []


def test_a_milvus_store_without_contents_keeps_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "old.db")
    with monkeypatch.context() as patch:
        patch.setattr(milvus, "TEXTS", ["id", "class_name", "source"])
        first = open_store(uri, fingerprint="abc", dim=DIM, create=True)
        first.put(some_items(5), unit(5))
        first.close()
    opened = open_store(uri, fingerprint="abc")
    opened.put([replace(some_items(6)[5], content="1" * 64)], unit(6)[5:])
    assert contents(opened) == expected(some_items(6), unit(6))
    assert opened.with_content(["1" * 64]) == []
    opened.close()


WRITER = """
import sys
from tests.search.test_stores import DIM, open_store, put_in_parts

store = open_store(sys.argv[1], fingerprint="abc", dim=DIM, create=True)
print(flush=True)
sys.stdin.readline()
put_in_parts(store)
"""


def put_in_parts(opened: Store) -> None:
    for start in range(0, 80, 10):
        opened.put(some_items(80)[start : start + 10], unit(80)[start : start + 10])


def test_two_processes_that_write_the_same_items_store_them_once(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    command = [sys.executable, "-c", WRITER, uri]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        opened = open_store(uri, fingerprint="abc", dim=DIM, create=True)
        other.stdin.write("go\n")
        other.stdin.flush()
        put_in_parts(opened)
        other.communicate()
        assert other.returncode == 0
    opened.close()
    assert contents(open_store(uri, fingerprint="abc")) == expected(some_items(80), unit(80))


def test_duplicates_are_removed_by_the_next_indexing(tmp_path: Path) -> None:
    opened = open_store(str(tmp_path / "store"), fingerprint="abc", dim=DIM, create=True)
    assert isinstance(opened, lance.LanceStore)
    opened.put(some_items(30), unit(30))
    opened._table.add(opened._table.search().where("label < 2").limit(100).to_arrow())
    assert opened.count() == 42
    opened.build_index()
    assert contents(opened) == expected(some_items(30), unit(30))


def test_the_version_follows_another_writer_and_an_unchanged_store_is_not_asked(tmp_path: Path) -> None:
    mine, other = (open_store(str(tmp_path / "store"), fingerprint="abc", dim=DIM, create=True) for _ in range(2))
    assert isinstance(mine, lance.LanceStore)
    seen = {mine.version()}
    for count in range(1, 6):
        other.put(some_items(count), unit(count))
        seen.add(mine.version())
    assert len(seen) == 6

    os.utime(tmp_path / "store" / "items.lance" / "_versions", (0, 0))
    last, table = mine.version(), mine._table
    mine._table = None
    assert mine.version() == last
    mine._table = table
    other.put(some_items(9), unit(9))
    assert mine.version() not in seen


def test_conflicts_of_writers_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_store(str(tmp_path / "store"), fingerprint="abc", dim=DIM, create=True)
    assert isinstance(opened, lance.LanceStore)
    waits: list[float] = []
    monkeypatch.setattr(lance.time, "sleep", waits.append)
    failures = [RuntimeError("Retryable commit conflict for version 3")] * 2

    def write() -> str:
        if failures:
            raise failures.pop()
        return "written"

    assert opened._write(write) == "written"
    assert len(waits) == 2
    failures = [RuntimeError("conflict")] * lance.ATTEMPTS
    with pytest.raises(UserError, match=r"store: conflict"):
        opened._write(write)
    failures = [RuntimeError("disk on fire")] * 2
    with pytest.raises(UserError, match="disk on fire"):
        opened._write(write)
    assert len(failures) == 1, "not retried"


def test_a_panic_inside_lancedb_names_the_store(empty: Store, uri: str) -> None:
    class PanicException(BaseException):  # as pyo3 raises them: no Exception
        pass

    with pytest.raises(UserError, match=f"{uri}: .*index out of bounds"), lance._named(uri):
        raise PanicException("index out of bounds\nnote: run with RUST_BACKTRACE=1")
    with pytest.raises(KeyboardInterrupt), lance._named(uri):
        raise KeyboardInterrupt


def test_a_damaged_file_names_the_store(tmp_path: Path) -> None:
    uri = str(tmp_path / "store")
    opened = open_store(uri, fingerprint="abc", dim=DIM, create=True)
    opened.put(some_items(30), unit(30))
    (data,) = Path(uri).glob("*.lance/data/*")
    data.write_bytes(data.read_bytes()[:40])
    with pytest.raises(UserError, match=uri):
        list(open_store(uri, fingerprint="abc").scan())


def test_docstrings() -> None:
    assert doctest.testmod(backend).failed == 0
