import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import miniatures

from softtriple.data import ImageFiles, Split, View, batches, cache_directory, in_order, open_cache
from softtriple.data.cache import estimate_bytes
from softtriple.data.images import ImageError, decode_image, resize_short_side


@pytest.fixture
def files(tmp_path) -> ImageFiles:
    sizes = [(40, 30), (30, 50), (64, 64), (33, 47), (20, 30)]
    for number, size in enumerate(sizes):
        miniatures.write_image(tmp_path / f"{number}.png", seed=number, size=size)
    return ImageFiles(tuple(str(tmp_path / f"{number}.png") for number in range(len(sizes))))


def test_it_holds_what_decoding_gives(files):
    said: list[str] = []
    done: list[tuple[int, int]] = []
    cache = open_cache(files, 24, notify=said.append, progress=lambda *at: done.append(at))
    for path in files.paths:
        expected = resize_short_side(decode_image(path), 24)
        np.testing.assert_array_equal(np.asarray(cache.image(path)), np.asarray(expected))
    assert done == [(number, 5) for number in range(1, 6)]
    assert "5 images with a short side of 24" in said[0]


@pytest.mark.parametrize("augment", ["none", "crop", "resized-crop", "affine"])
def test_batches_are_the_same_with_and_without(files, augment):
    split = Split(files, np.arange(5))
    view = View(size=20, resize=24, augment=augment)
    cache = open_cache(files, 24, notify=lambda _: None)
    # A part of the files, in another order: rows of the cache are found by path.
    part = split.take(np.array([3, 1]))
    plain = [inputs for inputs, _ in batches(part, in_order(2, 2), view, seed=3)]
    cached = [inputs for inputs, _ in batches(part, in_order(2, 2), view, seed=3, cache=cache)]
    assert torch.equal(plain[0], cached[0])


def test_the_second_time_it_is_only_opened(files):
    open_cache(files, 24, notify=lambda _: None)
    said: list[str] = []
    open_cache(files, 24, notify=said.append, progress=lambda *_: pytest.fail("read again"))
    assert said[0].startswith("image cache: using ")


def test_a_changed_file_makes_another_cache(files):
    open_cache(files, 24, notify=lambda _: None)
    miniatures.write_image(Path(files.paths[0]), seed=77, size=(40, 30))
    os.utime(files.paths[0], ns=(1, 1))
    cache = open_cache(files, 24, notify=lambda _: None)
    expected = resize_short_side(decode_image(files.paths[0]), 24)
    np.testing.assert_array_equal(np.asarray(cache.image(files.paths[0])), np.asarray(expected))


def test_a_budget_that_is_too_small_is_respected(files):
    said: list[str] = []
    assert open_cache(files, 24, budget=1e3, notify=said.append) is None
    assert "more than the budget" in said[0]
    assert not cache_directory().exists() or not list(cache_directory().glob("images-*"))


def test_the_estimate_is_close(files):
    cache = open_cache(files, 24, notify=lambda _: None)
    assert abs(estimate_bytes(files, 24) - len(cache.pixels)) < 0.1 * len(cache.pixels)


def test_a_bad_image_is_named_and_not_remembered(files):
    content = Path(files.paths[2]).read_bytes()
    stamp = Path(files.paths[2]).stat().st_mtime_ns
    Path(files.paths[2]).write_bytes(bytes(len(content)))
    os.utime(files.paths[2], ns=(stamp, stamp))
    with pytest.raises(ImageError, match=r"2\.png: not a readable image"):
        open_cache(files, 24, notify=lambda _: None)
    assert not list(cache_directory().iterdir())
    # Size and time tell no difference, as where only a permission was missing.
    Path(files.paths[2]).write_bytes(content)
    os.utime(files.paths[2], ns=(stamp, stamp))
    assert open_cache(files, 24, notify=lambda _: None).image(files.paths[2]).size == (24, 24)


@pytest.mark.parametrize("name", ["pixels.bin", "index.npz"])
@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"", lambda content: b"PK\3\4" * 9])
def test_a_damaged_cache_says_how_to_mend_it(files, name, damage):
    open_cache(files, 24, notify=lambda _: None)
    (file,) = cache_directory().glob(f"images-*/{name}")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match="delete this folder and it is made again"):
        open_cache(files, 24, notify=lambda _: None)


def test_a_stranger_is_refused(files):
    cache = open_cache(files, 24, notify=lambda _: None)
    with pytest.raises(ValueError, match="made without it"):
        cache.image("stranger.png")


def test_a_view_of_another_size_is_refused(files):
    cache = open_cache(files, 24, notify=lambda _: None)
    split = Split(files, np.arange(5))
    with pytest.raises(ValueError, match="short side of 24, the view asks for 32"):
        batches(split, in_order(5, 2), View(size=20, resize=32), cache=cache)


def test_images_from_the_cache_do_not_write_to_it(files):
    cache = open_cache(files, 24, notify=lambda _: None)
    image = cache.image(files.paths[0])
    before = np.asarray(image).copy()
    image.paste((1, 2, 3), (0, 0, 5, 5))
    np.testing.assert_array_equal(np.asarray(cache.image(files.paths[0])), before)
