import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import miniatures

from softtriple.data import (
    ImageArray,
    ImageError,
    ImageFiles,
    ImageList,
    Split,
    Texts,
    Vectors,
    View,
    batches,
    find_unreadable,
    in_order,
    open_cache,
    shuffled,
)

AUGMENTS = ["none", "crop", "resized-crop", "affine"]


@pytest.fixture
def split(tmp_path) -> Split:
    for number in range(10):
        miniatures.write_image(tmp_path / f"{number}.png", seed=number, size=(40, 30))
    paths = tuple(str(tmp_path / f"{number}.png") for number in range(10))
    return Split(ImageFiles(paths), np.arange(10) + 100)


def data_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("softtriple-data")]


def by_label(found) -> dict[int, torch.Tensor]:
    return {int(label): row for inputs, labels in found for row, label in zip(inputs, labels, strict=True)}


@pytest.mark.parametrize("augment", AUGMENTS)
def test_an_image_depends_on_seed_epoch_and_row_only(split, augment):
    view = View(size=20, resize=24, augment=augment)
    one = by_label(batches(split, shuffled(10, 3, 0, 0), view, seed=5, epoch=2, workers=0))
    two = by_label(batches(split, in_order(10, 4), view, seed=5, epoch=2, workers=3))
    assert one.keys() == two.keys() == set(range(100, 110))
    assert all(torch.equal(one[label], two[label]) for label in one)


@pytest.mark.parametrize("augment", AUGMENTS)
def test_epoch_and_seed_change_what_is_random(split, augment):
    view = View(size=20, resize=24, augment=augment)
    first, later, other = (
        torch.cat([inputs for inputs, _ in batches(split, in_order(10, 5), view, seed=seed, epoch=epoch)])
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    )
    assert torch.equal(first, later) == torch.equal(first, other) == (augment == "none")


def test_grey_arrays_become_rgb():
    pixels = np.random.default_rng(0).integers(0, 256, size=(3, 8, 8), dtype=np.uint8)
    split = Split(ImageArray(pixels), np.arange(3))
    ((inputs, labels),) = batches(split, [np.array([2, 0])], View(size=8, resize=8))
    assert inputs.shape == (2, 8, 8, 3)
    assert labels.tolist() == [2, 0]
    for channel in range(3):
        np.testing.assert_array_equal(inputs[..., channel].numpy(), pixels[[2, 0]])


@pytest.mark.parametrize("shape", [(3, 16, 16), (3, 16, 16, 3)])
@pytest.mark.parametrize("augment", AUGMENTS)
def test_arrays_take_every_view(shape, augment):
    split = Split(ImageArray(np.zeros(shape, dtype=np.uint8)), np.arange(3))
    ((inputs, _),) = batches(split, in_order(3, 3), View(size=8, resize=12, augment=augment))
    assert inputs.shape == (3, 8, 8, 3)


def test_vectors_and_texts_pass_through():
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    ((inputs, labels),) = batches(Split(Vectors(values), np.array([5, 6, 7])), [np.array([2, 1])])
    assert inputs.tolist() == [[4, 5], [2, 3]]
    assert labels.tolist() == [7, 6]
    ((texts, _),) = batches(Split(Texts(("a", "b", "c")), np.arange(3)), [np.array([2, 1])])
    assert texts == ["c", "b"]


def test_a_bad_image_stops_by_its_path(split):
    Path(split.items.paths[4]).write_text("no image")
    with pytest.raises(ImageError, match=r"4\.png: not a readable image"):
        list(batches(split, in_order(10, 3), View(size=20, resize=24)))
    assert not data_threads()


def test_closing_joins_the_threads(split):
    found = batches(split, in_order(10, 1), View(size=20, resize=24), workers=2)
    next(found)
    assert data_threads()
    found.close()
    assert not data_threads()


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        (Texts(("a",)), {"view": View(size=8, resize=8)}, "a view is for images, not for Texts"),
        (ImageFiles(("a",)), {}, "images need a view"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(items, options, message):
    with pytest.raises(ValueError, match=message):
        batches(Split(items, np.array([0])), in_order(1, 1), **options)


def test_a_cache_for_other_items_is_refused(split):
    cache = open_cache(split.items, 24, notify=lambda _: None)
    array = Split(ImageArray(np.zeros((1, 24, 24), dtype=np.uint8)), np.array([0]))
    with pytest.raises(ValueError, match="an image cache is for image files, not for ImageArray"):
        batches(array, in_order(1, 1), View(size=24, resize=24), cache=cache)


def test_images_of_different_sizes_take_every_view():
    images = tuple(np.full((size, size + 5, 3), size, dtype=np.uint8) for size in (20, 30, 40))
    split = Split(ImageList(images), np.arange(3))
    for augment in AUGMENTS:
        ((inputs, _),) = batches(split, [np.array([2, 0])], View(size=8, resize=12, augment=augment))
        assert inputs.shape == (2, 8, 8, 3)
        assert [int(image.float().mean()) for image in inputs] == [40, 20]


def test_unreadable_images_are_found(split):
    Path(split.items.paths[4]).write_text("no image")
    Path(split.items.paths[7]).unlink()
    done: list[tuple[int, int]] = []
    unreadable = find_unreadable(split.items, progress=lambda *at: done.append(at))
    assert {row: error.path for row, error in unreadable.items()} == {
        4: split.items.paths[4],
        7: split.items.paths[7],
    }
    assert done[-1] == (10, 10)


def test_the_caller_makes_the_network_input_not_a_worker(split):
    threads = set()

    def prepare(pixels):
        threads.add(threading.current_thread())
        return pixels.float() / 255

    view = View(size=20, resize=24)
    plain = list(batches(split, in_order(10, 4), view, workers=2))
    for (inputs, _), (pixels, _) in zip(
        batches(split, in_order(10, 4), view, workers=2, prepare=prepare), plain, strict=True
    ):
        assert torch.equal(inputs, pixels.float() / 255)
    assert threads == {threading.current_thread()}
    ((texts, _),) = batches(
        Split(Texts(("a", "b")), np.arange(2)), [np.array([1])], prepare=lambda texts: torch.tensor([ord(texts[0])])
    )
    assert texts.tolist() == [ord("b")]
