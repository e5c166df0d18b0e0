"""Changes of items: what they amount to, what a second server reads, and that undo puts everything back."""

import csv
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from tests.gallery.memory_store import MemoryStore

from softtriple.data.corrections import read_labels
from softtriple.errors import UserError
from softtriple.gallery.changes import Changes
from softtriple.search import Item


@pytest.fixture
def store() -> MemoryStore:
    vectors = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    return MemoryStore([Item(name, 0, "cat", f"/{name}.jpg", "c") for name in "abc"], vectors)


def test_changes_are_logged_and_amount_to_a_table(store: MemoryStore, tmp_path: Path) -> None:
    changes = Changes(store, tmp_path / "s.changes.jsonl")
    assert changes.apply("relabel", ["a", "b", "unknown"], "dog, big") == 2
    assert changes.apply("relabel", ["a"], "cow") == 1
    assert changes.apply("tag", ["c"], "blurred") == changes.apply("tag", ["c"], "blurred") == 1
    assert changes.apply("tag", ["c"], "dark") == changes.apply("untag", ["c"], "blurred") == 1
    assert changes.apply("delete", ["b"]) == 1
    assert changes.apply("delete", ["b"]) == 0, "it is gone"
    assert store.count() == 2
    rows = list(csv.DictReader(StringIO(changes.csv())))
    assert [(row["item"], row["label"], row["before"], row["tags"]) for row in rows] == [
        ("a", "cow", "cat", ""),
        ("b", "", "cat", ""),
        ("c", "cat", "cat", "dark"),
    ]
    assert changes.table.read_text() == changes.csv()
    assert read_labels(changes.table) == {"a": "cow", "b": "", "c": "cat"}
    again = Changes(store, tmp_path / "s.changes.jsonl")
    assert (again.labels, again.tags, again.csv()) == (changes.labels, changes.tags, changes.csv())


def test_undo_goes_back_step_by_step(store: MemoryStore, tmp_path: Path) -> None:
    changes = Changes(store, tmp_path / "log.jsonl")
    before = store.get(["a", "b", "c"])
    assert changes.undo() is False
    changes.apply("relabel", ["a"], "dog")
    changes.apply("delete", ["a", "c"])
    changes.apply("tag", ["b"], "dark")
    changes = Changes(store, tmp_path / "log.jsonl")  # also after a restart
    assert changes.undo()
    assert changes.tags == {}
    assert changes.undo()
    for old, new in zip(before, store.get(["a", "b", "c"]), strict=True):
        assert old.item == new.item
        np.testing.assert_array_equal(old.vector, new.vector)
    assert changes.labels == {"a": "dog"}
    assert changes.undo()
    assert (changes.labels, changes.last, changes.undo()) == ({}, None, False)


def test_a_log_that_is_none(store: MemoryStore, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for line in ("no json", "[]", '{"action": "undo"}', "{}"):
        log.write_text(line + "\n")
        with pytest.raises(UserError, match="line 1"):
            Changes(store, log)
