"""Pictures of items, and of queries with what is nearest to them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from softtriple.data import ImageArray, ImageFiles, Split, Texts, Vectors
from softtriple.metrics.evaluate import Embeddings
from softtriple.report.pictures import SIDE, example_queries, example_rows, picture, telling_rows

LABELS = np.arange(12) % 3


def test_every_kind_of_item_has_a_picture(tmp_path: Path) -> None:
    Image.new("L", (300, 200), 7).save(tmp_path / "wide.png")
    one = np.zeros(1, dtype=np.int64)
    photo = picture(Split(ImageFiles((str(tmp_path / "wide.png"),)), one), 0)
    assert photo.shape == (SIDE, SIDE, 3)
    assert (photo == 7).all()
    grey = picture(Split(ImageArray(np.full((1, 5, 4), 9, dtype=np.uint8)), one), 0)
    assert grey.shape == (5, 4, 3)
    assert picture(Split(Texts(("a word",)), one), 0) == "a word"
    assert picture(Split(Vectors(np.ones((1, 2), dtype=np.float32)), one), 0) == "row 0"


def test_a_long_text_is_shortened() -> None:
    split = Split(Texts(("word " * 100, "x" * 160)), np.array([0, 1]))
    assert picture(split, 0) == "word " * 31 + "word…"
    assert picture(split, 1) == "x" * 160


def test_neighbours_are_the_nearest_other_items() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    split = Split(Texts(tuple(f"item {row}" for row in range(12))), LABELS)
    embeddings = Embeddings(vectors, torch.from_numpy(LABELS), class_names=("a", "b", "c"))
    shown = example_queries(embeddings, split, rows=example_rows(split, 5), num_neighbors=3)
    assert len(shown) == 5
    for query in shown:
        row = int(query.picture.removeprefix("item "))
        similarity = vectors @ vectors[row]
        similarity[row] = -2
        expected = similarity.topk(3)
        assert [neighbor.picture for neighbor in query.neighbors] == [f"item {other}" for other in expected.indices]
        torch.testing.assert_close(torch.tensor([neighbor.score for neighbor in query.neighbors]), expected.values)
        assert [neighbor.same_class for neighbor in query.neighbors] == [
            bool(LABELS[other] == LABELS[row]) for other in expected.indices
        ]


def test_random_queries_depend_on_the_size_alone() -> None:
    splits = [Split(Texts(tuple(f"{name} {row}" for row in range(12))), LABELS) for name in "ab"]
    first, second = (example_rows(split, 4).tolist() for split in splits)
    assert first == second == sorted(set(first))


def test_telling_queries_are_confident_errors_and_narrow_successes() -> None:
    random = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(40, 3, generator=random), dim=1)
    labels = torch.arange(40) % 4
    chosen = telling_rows(Embeddings(vectors, labels), 3)
    similarity = vectors @ vectors.T - 3 * torch.eye(40)
    best, other = similarity.max(dim=1), similarity.masked_fill(labels[:, None] == labels, -2).amax(dim=1)
    right = labels[best.indices] == labels
    keys = {"Most confident errors": -best.values, "Hardest correct": best.values - other}
    for (reason, rows), among in zip(chosen.items(), (~right, right), strict=True):
        ordered = [row for row in keys[reason].argsort().tolist() if among[row]]
        firsts = list({int(labels[row]): row for row in reversed(ordered)}.values())  # the first of each class
        expected = sorted(float(keys[reason][row]) for row in firsts)[:3]
        assert [float(keys[reason][row]) for row in rows] == pytest.approx(expected)  # two may tie
        assert len({int(labels[row]) for row in rows}) == 3
        assert all(among[row] for row in rows)


def test_a_perfect_set_has_no_errors_to_tell() -> None:
    chosen = telling_rows(Embeddings(torch.eye(3).repeat(4, 1), torch.arange(12) % 3), 2)
    assert set(chosen) == {"Hardest correct"}
    assert telling_rows(Embeddings(torch.eye(1), torch.tensor([0])), 2) == {}
