import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data import miniatures

from softtriple.data import ImageFiles, Split, View, batches, cache_directory, in_order, open_cache
from softtriple.data.cache import (
    DamagedCacheError,
    cached,
    estimate_bytes,
    list_cache,
    map_rows,
    mark_used,
    prune_cache,
    read_arrays,
    write_rows,
)
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


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES = [lambda content: content[:-1], lambda content: b"", lambda content: b"PK\3\4" * 9, flip]


@pytest.mark.parametrize("name", ["pixels.bin", "index.npz"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again(files, name, damage):
    open_cache(files, 24, notify=lambda _: None)
    (file,) = cache_directory().glob(f"images-*/{name}")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    said: list[str] = []
    cache = open_cache(files, 24, notify=said.append)
    assert any("damaged" in line and "made again" in line and str(file.parent) in line for line in said)
    for path in files.paths:
        expected = resize_short_side(decode_image(path), 24)
        np.testing.assert_array_equal(np.asarray(cache.image(path)), np.asarray(expected))
    open_cache(files, 24, notify=lambda _: None, progress=lambda *_: pytest.fail("read again"))


def test_a_stranger_is_refused(files):
    cache = open_cache(files, 24, notify=lambda _: None)
    with pytest.raises(ValueError, match=r"stranger\.png: not in this image cache"):
        cache.image("stranger.png")


def test_a_view_of_another_size_is_refused(files):
    cache = open_cache(files, 24, notify=lambda _: None)
    split = Split(files, np.arange(5))
    with pytest.raises(ValueError, match="short side of 24, the view needs 32"):
        batches(split, in_order(5, 2), View(size=20, resize=32), cache=cache)


def test_images_from_the_cache_do_not_write_to_it(files):
    cache = open_cache(files, 24, notify=lambda _: None)
    image = cache.image(files.paths[0])
    before = np.asarray(image).copy()
    image.paste((1, 2, 3), (0, 0, 5, 5))
    np.testing.assert_array_equal(np.asarray(cache.image(files.paths[0])), before)


# Rows with a checksum.

ROWS = np.arange(60, dtype=np.float16).reshape(5, 4, 3)


def test_rows_are_read_as_they_were_written(tmp_path):
    write_rows(tmp_path / "rows.npy", 5, [ROWS[:2], ROWS[2:4], ROWS[4:]])
    rows = map_rows(tmp_path / "rows.npy")
    assert isinstance(rows, np.memmap)
    assert rows.dtype == ROWS.dtype
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy"), ROWS, "numpy alone reads them too")


@pytest.mark.parametrize("position", range(0, 4 + 128 + 120, 7))
def test_no_flipped_bit_goes_unnoticed(tmp_path, position):
    path = tmp_path / "rows.npy"
    write_rows(path, 5, [ROWS])
    content = bytearray(path.read_bytes())
    assert len(content) == 4 + 128 + 120
    content[position] ^= 16
    path.write_bytes(content)
    with pytest.raises(DamagedCacheError, match=r"rows\.npy: damaged"):
        map_rows(path)


@pytest.mark.parametrize("damage", [*DAMAGES, lambda content: bytes(4)])
def test_damaged_rows_are_written_again(tmp_path, damage):
    path, said = tmp_path / "rows.npy", []
    write_rows(path, 5, [ROWS])
    path.write_bytes(damage(path.read_bytes()))
    rows = cached(path, lambda temporary: write_rows(temporary, 5, [ROWS]), map_rows, notify=said.append)
    np.testing.assert_array_equal(rows, ROWS)
    assert len(said) == 1
    assert str(path) in said[0]
    again = cached(path, lambda temporary: pytest.fail("written again"), map_rows, notify=pytest.fail)
    np.testing.assert_array_equal(again, ROWS)


def test_what_fails_to_be_made_leaves_nothing(tmp_path):
    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        cached(tmp_path / "rows.npy", fail, map_rows, notify=pytest.fail)
    assert not list(tmp_path.iterdir())


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=1)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    for read in (lambda: read_arrays(tmp_path / "a.npz", "x"), lambda: map_rows(tmp_path / "a.npz")):
        with pytest.raises(PermissionError):
            read()


# The cache directory.


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", "/own")
    assert cache_directory() == Path("/own")
    monkeypatch.delenv("SOFTTRIPLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/softtriple")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/own")
    assert cache_directory() == Path("/own/.cache/softtriple")


def test_what_was_not_used_for_long_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path))
    names = [f"{kind}-{'0a' * 8}" for kind in ("images", "trunk")]
    used, unused = (tmp_path / name for name in names)
    foreign = [tmp_path / name for name in ("notes", "images-of-mine", f"{names[0]}.txt")]
    for folder in (used, unused, *foreign):
        folder.mkdir()
        (folder / "file").write_bytes(b"12345")
        os.utime(folder, (0, 0))
    (tmp_path / f"glyphs-{'f' * 16}.npz").write_bytes(b"123")
    mark_used(used)
    assert {(kept.kind, kept.bytes) for kept in list_cache()} == {("trunk", 5), ("images", 5), ("glyphs", 3)}
    assert list_cache()[0].path == unused
    assert [kept.path for kept in prune_cache(days=30.0)] == [unused]
    assert not unused.exists()
    assert all(path.exists() for path in (used, *foreign))
    assert not prune_cache(days=30.0)
