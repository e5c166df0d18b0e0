from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data import miniatures

from softtriple.data import (
    ImageArray,
    ImageFiles,
    ImageList,
    Texts,
    Vectors,
    View,
    batches,
    in_order,
    make_benchmark,
)
from softtriple.errors import UserError

LABELS = ["a", "a", "b", "b"]
PIXELS = np.random.default_rng(0).integers(0, 256, size=(4, 8, 8, 3), dtype=np.uint8)


@pytest.fixture
def files(tmp_path) -> list[Path]:
    for number in range(4):
        miniatures.write_image(tmp_path / f"{number}.png", seed=number)
    return [tmp_path / f"{number}.png" for number in range(4)]


def everything(items, labels=LABELS, **options):
    return make_benchmark(items, labels, split="none", **options).test


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, list], ids=["array", "tensor", "list"])
def test_vectors(convert):
    values = np.arange(8, dtype=np.float64).reshape(4, 2)
    items = everything(convert(values)).items
    assert isinstance(items, Vectors)
    assert items.values.dtype == np.float32
    np.testing.assert_array_equal(items.values, values)


def test_vectors_as_lists_of_numbers():
    assert everything([[1, 2], [3, 4], [5, 6], [7, 8]]).items.values.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


@pytest.mark.parametrize("pixels", [PIXELS, PIXELS[..., 0]], ids=["rgb", "grey"])
@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["array", "tensor"])
def test_images_of_one_size(pixels, convert):
    items = everything(convert(pixels)).items
    assert isinstance(items, ImageArray)
    np.testing.assert_array_equal(items.pixels, pixels)


def test_one_channel_counts_as_grey():
    np.testing.assert_array_equal(everything(PIXELS[..., :1]).items.pixels, PIXELS[..., 0])


@pytest.mark.parametrize("convert", [Image.fromarray, np.asarray, torch.tensor], ids=["Pillow", "array", "tensor"])
def test_a_list_of_images(convert):
    same = everything([convert(image) for image in PIXELS])
    assert isinstance(same.items, ImageArray)
    np.testing.assert_array_equal(same.items.pixels, PIXELS)
    sizes = everything([convert(image[: 5 + row]) for row, image in enumerate(PIXELS)])
    assert isinstance(sizes.items, ImageList)
    ((inputs, _),) = batches(sizes, in_order(4, 4), View(size=4, resize=6))
    assert inputs.shape == (4, 4, 4, 3)


def test_grey_and_colour_may_be_mixed_in_a_list():
    items = everything([PIXELS[0], PIXELS[1, ..., 0], PIXELS[2], PIXELS[3]]).items
    np.testing.assert_array_equal(items.pixels[1], np.repeat(PIXELS[1, ..., :1], 3, axis=-1))


@pytest.mark.parametrize("convert", [str, Path])
def test_paths_become_absolute_image_files(files, convert, monkeypatch):
    monkeypatch.chdir(files[0].parent)
    items = everything([convert(file.name) for file in files]).items
    assert items == ImageFiles(tuple(str(file) for file in files))


def test_texts():
    texts = ["hello", "x" * 5000, "null \0", "d"]
    assert everything(texts).items == Texts(tuple(texts))
    assert everything(np.array(["a", "b", "c", "d"])).items == Texts(("a", "b", "c", "d"))


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor])
def test_integer_labels(convert):
    benchmark = make_benchmark(np.eye(4), convert([10, 9, 10, 9]))
    assert benchmark.class_names == ("9", "10")
    assert benchmark.train.labels.tolist() == [0, 0]


def test_string_labels_and_options():
    benchmark = make_benchmark(np.eye(4), LABELS, name="mine", split="instances", seed=3)
    assert benchmark.name == "mine"
    assert benchmark.class_names == ("a", "b")
    assert sorted(benchmark.train.labels) == sorted(benchmark.test.labels) == [0, 1]
    assert "seed 3" in benchmark.notes[1]


@pytest.mark.parametrize(
    ("items", "labels", "message"),
    [
        (np.eye(4), LABELS[:3], "4 items but 3 labels"),
        (np.eye(4), ["a"] * 4, "Only 1 class found"),
        (np.array([[1.0], [np.nan], [np.inf], [2.0]]), LABELS, "vector 1 contains NaN or infinity .2 of 4"),
        ([[1.0], [1.0, 2.0]], LABELS[:2], "vector 1 has 2 numbers, vector 0 has 1"),
        (PIXELS.astype(np.float32), LABELS, "images of float32 and shape 4×8×8×3; expected uint8"),
        (PIXELS.transpose(0, 3, 1, 2), LABELS, "shape 4×3×8×8; .*permute"),
        ([PIXELS[0], PIXELS[1].astype(float)], LABELS[:2], "row 1: expected uint8 .*, got float64 of 8×8×3"),
        (["a", "b", 3, "c"], LABELS, "row 0 is a string and row 2 a int"),
        ([1, 2, 3, 4], LABELS, "row 0 is a int; expected paths, texts, images or vectors"),
        (["1.png", "2.png"], LABELS[:2], "row 0: no such file: 1.png"),
        ([Path("absent")], LABELS[:1], "row 0: no such file: absent"),
        ("folder", LABELS, "'folder'; expected a list"),
        ([], [], "no items"),
        (np.eye(4), [0.5, 1.0, 2.0, 3.0], "label 0 is 0.5; expected only integers or only strings"),
        (np.eye(4), ["a", "a", None, "b"], "label 2 is None"),
        (np.eye(4), ["a", 1, "b", 2], "label 1 is 1; expected only"),
        (np.eye(4), np.eye(4, dtype=int), "labels have shape 4×4"),
    ],
)
def test_what_cannot_be_used_is_named(items, labels, message):
    with pytest.raises(UserError, match=message):
        make_benchmark(items, labels)


def test_files_and_texts_are_not_mixed(files):
    with pytest.raises(UserError, match=r"row 0 \('.*0\.png'\) is an existing file, row 1 \('hello'\) is not"):
        make_benchmark([str(files[0]), "hello"], [0, 1])
