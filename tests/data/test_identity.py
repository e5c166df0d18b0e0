"""Ids of items: paths of files, hashes of everything else, and numbers for copies."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from softtriple.data import ImageArray, ImageFiles, Texts, Vectors
from softtriple.data.identity import absolute_path, item_ids
from softtriple.errors import UserError


def test_files_are_named_by_their_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert item_ids(ImageFiles(("a.png", "/b.png")), Counter()) == [str(tmp_path / "a.png"), "/b.png"]
    with pytest.raises(UserError, match="Unicode"):
        absolute_path("\udcff.png")


def test_copies_are_numbered_across_calls() -> None:
    copies: Counter[str] = Counter()
    (one,) = item_ids(Texts(("one",)), copies)
    assert one.startswith("sha256:")
    assert item_ids(Texts(("one", "two")), copies)[0] == f"{one}#2"


def test_content_decides_for_arrays() -> None:
    for items in (Vectors(np.eye(2, dtype=np.float32)), ImageArray(np.arange(8, dtype=np.uint8).reshape(2, 2, 2))):
        first, second = item_ids(items, Counter())
        assert first != second
        assert item_ids(items.take(np.array([1])), Counter()) == [second]
