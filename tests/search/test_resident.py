"""Search from memory: the answers of an exact search of the store, and what others write."""

import subprocess
import sys
import threading

import numpy as np
import pytest
from tests.gallery.memory_store import MemoryStore
from tests.search.test_stores import DIM, NASTY, some_items, unit

from softtriple.errors import UserError
from softtriple.search import Item, Store, open_store, products, resident
from softtriple.search.resident import BUDGET_VARIABLE, ResidentStore, serving


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "store")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search looks whether the store has changed."""
    module = sys.modules["softtriple.search.resident"]
    monkeypatch.setattr(module, "FRESH", 0.0)
    monkeypatch.setattr(module, "REST", 0)


def filled(uri: str, count: int = 200) -> Store:
    """A store with copies of vectors, so that there are ties, in an order that is not that of the ids."""
    items, vectors = some_items(count), unit(count)
    vectors[count // 2 :] = vectors[: count - count // 2]
    order = np.random.default_rng(0).permutation(count)
    store = open_store(uri, fingerprint="abc", dim=DIM, create=True)
    store.put([items[row] for row in order], vectors[order])
    return store


@pytest.mark.parametrize("classes", [(), ("class 1",), ("class 3", "class 0"), ("no such class",)])
@pytest.mark.parametrize("k", [2, 10, 300])
def test_answers_are_those_of_an_exact_search_of_the_store(uri: str, classes, k) -> None:
    store = filled(uri)
    queries = np.concatenate([unit(20, seed=3), unit(200)[:5], np.zeros((1, DIM), dtype=np.float32)])
    in_memory = resident(store)
    assert isinstance(in_memory, ResidentStore)
    expected = store.search(queries, k, classes=classes, exact=True)
    for hits, others in zip(in_memory.search(queries, k, classes=classes), expected, strict=True):
        assert [hit.score for hit in hits] == [hit.score for hit in others]
        # Where ties do not fit into k, the database decides; memory goes by id.
        last = hits[-1].score if hits else 0
        assert [hit for hit in hits if hit.score > last] == [hit for hit in others if hit.score > last]
        assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.item.id))


def test_filtered_search_is_exact_in_small_parts(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = resident(filled(uri))
    queries = unit(6, seed=5)
    whole = in_memory.search(queries, 7, classes=["class 1", "class 2"])
    monkeypatch.setattr(sys.modules["softtriple.search.resident"], "SCRATCH", 4 * DIM * 9)
    assert in_memory.search(queries, 7, classes=["class 1", "class 2"]) == whole


def test_everything_else_is_as_in_the_store(uri: str) -> None:
    store = filled(uri, 30)
    store.put([Item(name, 3, name, name, name) for name in NASTY], unit(len(NASTY), seed=2))
    in_memory = resident(store)
    assert (in_memory.count(), in_memory.classes()) == (store.count(), store.classes())
    ids = ["item 0003", *NASTY, "item 0029"]
    assert in_memory.known([*ids, "missing"]) == store.known([*ids, "missing"])
    for ours, theirs in zip(in_memory.get(ids), store.get(ids), strict=True):
        assert ours.item == theirs.item
        assert np.array_equal(ours.vector, theirs.vector)
    with pytest.raises(UserError, match="not in the store: 'missing'"):
        in_memory.get(["item 0003", "missing"])
    with pytest.raises(UserError, match="k = 0"):
        in_memory.search(unit(1), 0)
    with pytest.raises(UserError, match="length"):
        in_memory.search(2 * unit(1), 3)
    assert in_memory.search(unit(3)[:0], 3) == []


WRITER = """
import sys
from tests.search.test_stores import some_items, unit
from softtriple.search import Item, open_store
store = open_store(sys.argv[1], fingerprint="abc")
store.put([Item("item 0000", 9, "moved", "")], unit(1, seed=9))
store.delete(["item 0001"])
store.put([Item("item 9999", 1, "new", "")], unit(1, seed=10))
"""


def test_what_another_process_writes_is_noticed(uri: str) -> None:
    in_memory = resident(filled(uri, 40))
    in_memory.search(unit(1), 1)
    subprocess.run([sys.executable, "-c", WRITER, uri], check=True)
    (changed,), (new,) = (in_memory.search(unit(1, seed=seed), 1)[0] for seed in (9, 10))
    assert (changed.item.class_name, new.item.id) == ("moved", "item 9999")
    assert [changed.score, new.score] == pytest.approx([1, 1])
    assert in_memory.known(["item 0001"]) == {}
    assert in_memory.count() == 40


def test_own_writes_are_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["softtriple.search.resident"], "FRESH", 3600.0)
    in_memory = ResidentStore(MemoryStore(some_items(5), unit(5)))
    in_memory.put([Item("later", 0, "late", "")], unit(1, seed=4))
    assert in_memory.search(unit(1, seed=4), 1)[0][0].item.id == "later"
    assert in_memory.delete(["later"]) == 1
    assert in_memory.known(["later"]) == {}


def test_while_one_thread_reads_others_are_answered() -> None:
    class Slow(MemoryStore):
        reading, go_on = threading.Event(), threading.Event()
        slow = False

        def scan(self, batch_size: int = 7):
            if self.slow:
                self.reading.set()
                assert self.go_on.wait(60)
            return super().scan(batch_size)

    store = Slow(some_items(5), unit(5))
    in_memory = ResidentStore(store)
    store.slow = True
    store.put([Item("later", 0, "late", "")], unit(1, seed=4))
    reader = threading.Thread(target=in_memory.count)
    reader.start()
    assert store.reading.wait(60)
    assert in_memory.count() == 5, "from before"
    store.go_on.set()
    reader.join()
    assert in_memory.count() == 6


def test_the_budget_decides_and_is_explained(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(uri)
    assert serving(store).in_memory
    for budget in ("0", "0.000001"):
        monkeypatch.setenv(BUDGET_VARIABLE, budget)
        assert not serving(store).in_memory
        assert BUDGET_VARIABLE in serving(store).reason
        assert resident(store) is store
    monkeypatch.setenv(BUDGET_VARIABLE, "0.0001")
    assert serving(store).in_memory
    for wrong in ("two", "-1", "inf", "nan"):
        monkeypatch.setenv(BUDGET_VARIABLE, wrong)
        with pytest.raises(UserError, match=BUDGET_VARIABLE):
            serving(store)


def test_a_database_that_cannot_tell_changes_is_not_copied() -> None:
    class Server(MemoryStore):
        def version(self) -> None:
            return None

    store = Server(some_items(5), unit(5))
    assert resident(store) is store


def test_an_empty_store(uri: str) -> None:
    store = resident(open_store(uri, fingerprint="abc", dim=DIM, create=True))
    assert store.search(unit(2), 3) == [[], []]
    assert (store.count(), store.classes()) == (0, {})


def test_batches_have_the_answers_of_single_queries(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = resident(filled(uri, 900))
    monkeypatch.setattr(products, "COLUMNS", 16)  # so that rows of products are searched part by part
    queries = unit(20, seed=6)
    assert in_memory.search(queries, 5) == [in_memory.search(query[None], 5)[0] for query in queries]
