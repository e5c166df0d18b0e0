"""What Encoder.embed takes."""

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from softtriple.data import ImageFiles, Split, View, batches, in_order
from softtriple.models import Encoder
from softtriple.models import encoder as encoder_module


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder.from_backbone("conv-small", dim=4, width=8, input_size=20).eval()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("pictures")
    files = []
    for number, shape in enumerate([(40, 30, 3), (20, 50, 3), (33, 33, 4), (25, 28), (20, 20, 3)]):
        files.append(folder / f"{number}.png")
        Image.fromarray(random.integers(0, 256, shape, dtype=np.uint8)).save(files[-1])
    return files


def test_paths_give_the_vectors_of_evaluation(encoder: Encoder, pictures: list[Path]) -> None:
    items = ImageFiles(tuple(map(str, pictures)))
    split, view = Split(items, np.zeros(len(items), dtype=np.int64)), View(size=20, resize=20)
    ((pixels, _),) = batches(split, in_order(len(split), 64), view)
    with torch.no_grad():
        expected = encoder(encoder.prepare(pixels)).numpy()
    found = encoder.embed(pictures)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_one_image_in_every_form_is_the_same_row(encoder: Encoder, pictures: list[Path]) -> None:
    path = pictures[0]
    image = Image.open(path)
    array = np.asarray(image)
    forms: list[Any] = [str(path), [str(path)], image, [image], array, [array], array[None], torch.tensor(array)]
    forms += [[torch.tensor(array)], (path,), np.stack([array])]
    expected = encoder.embed(path)
    assert expected.shape == (1, 4)
    for form in forms:
        assert np.array_equal(encoder.embed(form), expected)


def test_one_image_with_its_channels_first_is_not_three_grey_ones(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match=r"height×width×3, got 3×20×30; use permute\(1, 2, 0\)"):
        encoder.embed(torch.zeros(3, 20, 30, dtype=torch.uint8))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_no_numbers_are_refused(value: float) -> None:
    vectors = np.ones((3, 2))
    vectors[1, 0] = value
    with pytest.raises(ValueError, match="vector 1 holds NaN or infinite numbers"):
        Encoder.from_backbone("linear", dim=2, in_features=2).eval().embed(vectors)


def test_grey_is_grey(encoder: Encoder, pictures: list[Path]) -> None:
    grey = np.asarray(Image.open(pictures[3]))
    assert grey.ndim == 2
    assert np.array_equal(encoder.embed(grey), encoder.embed(pictures[3]))
    assert np.array_equal(encoder.embed([grey, grey]), encoder.embed([pictures[3]] * 2))


def test_the_size_of_batches_changes_nothing(encoder: Encoder, pictures: list[Path]) -> None:
    np.testing.assert_allclose(encoder.embed(pictures, batch_size=2), encoder.embed(pictures), atol=1e-6)


def test_the_mode_comes_back(encoder: Encoder, pictures: list[Path]) -> None:
    expected = encoder.eval().embed(pictures)
    encoder.train()
    assert np.array_equal(encoder.embed(pictures), expected)  # running statistics, not those of the batch
    assert encoder.training
    with pytest.raises(ValueError, match="no such file"):
        encoder.embed("nowhere.png")
    assert encoder.training
    encoder.eval()


def test_vectors_in_every_form() -> None:
    encoder = Encoder.from_backbone("mlp", dim=4, in_features=3, hidden=(8,))
    rows = np.random.default_rng(0).standard_normal((5, 3))
    with torch.no_grad():
        expected = encoder(torch.tensor(rows, dtype=torch.float32)).numpy()
    for form in (rows, rows.astype(np.float32), torch.tensor(rows), rows.tolist(), np.asfortranarray(rows)):
        np.testing.assert_allclose(encoder.embed(form, batch_size=2), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.embed(rows[0]), expected[:1], atol=1e-6)


def test_texts_in_every_form() -> None:
    encoder = Encoder.from_backbone("text", dim=4, buckets=64, width=8)
    expected = encoder.embed(["one text", "two"])
    assert expected.shape == (2, 4)
    np.testing.assert_allclose(encoder.embed("one text"), expected[:1], atol=1e-6)
    np.testing.assert_allclose(encoder.embed(np.array(["one text", "two"])), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.embed(("one text", "two"), batch_size=1), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["conv-small", "linear", "text"])
def test_nothing_gives_no_rows(name: str) -> None:
    options = {"in_features": 3} if name == "linear" else {}
    found = Encoder.from_backbone(name, dim=4, **options).embed([])
    assert found.shape == (0, 4)
    assert found.dtype == np.float32


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "items", "message"),
    [
        ("conv-small", np.zeros((4, 4, 3)), "image 0: expected uint8 of height×width×3 .*, got float64 of 4×4×3"),
        ("conv-small", torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "image 0: expected uint8 .*, got uint8 of 3×8×8"),
        ("conv-small", [Image.new("RGB", (8, 8)), 7], "image 1: expected a path, a Pillow image or an array, got int"),
        ("conv-small", ["here.png"], "here.png: no such file"),
        ("linear", [[1.0, 2.0]], "expected rows of 3 numbers, got float64 of shape 1×2"),
        ("linear", "a text", "expected rows of 3 numbers"),
        ("text", ["a", None], "text 1: expected a string, got NoneType"),
        ("text", [Path("a")], "text 0: expected a string, got PosixPath"),
    ],
)
def test_wrong_items_are_named(name: str, items: Any, message: str) -> None:
    options = {"in_features": 3} if name == "linear" else {}
    with pytest.raises(ValueError, match=message):
        Encoder.from_backbone(name, dim=4, **options).embed(items)


def test_the_example_in_the_docstring() -> None:
    found = doctest.testmod(encoder_module)
    assert found.attempted > 0
    assert found.failed == 0


def test_a_batch_of_nothing(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="batch_size = 0 must be at least 1"):
        encoder.embed([], batch_size=0)
