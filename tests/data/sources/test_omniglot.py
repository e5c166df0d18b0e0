import json
import zipfile

import numpy as np
import pytest
from PIL import Image
from tests.data import miniatures

from softtriple.data.sources.omniglot import load_omniglot, load_omniglot_alphabets


def test_omniglot_ink_is_bright_and_rows_are_in_order(tmp_path):
    benchmark = load_omniglot(miniatures.omniglot(tmp_path), expected=None)
    assert benchmark.class_names[:3] == ("Greek/character00", "Greek/character01", "Latin/character00")
    assert benchmark.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    pixels = benchmark.train.items.pixels
    assert pixels.shape == (12, 105, 105)
    assert (pixels[0, 15, 52], pixels[0, 0, 0]) == (255, 0)


def test_omniglot_alphabets_keep_the_character(tmp_path):
    benchmark = load_omniglot_alphabets(miniatures.omniglot(tmp_path), expected=None)
    assert benchmark.class_names == ("Greek", "Latin", "Gurmukhi", "Kannada")
    assert benchmark.test.labels.tolist() == [2] * 6 + [3] * 6
    assert benchmark.fine_names[benchmark.test.fine_labels[-1]] == "Kannada/character01"


def test_unpacked_omniglot_is_the_same(tmp_path):
    archives = miniatures.omniglot(tmp_path / "zip")
    for archive in archives.glob("*.zip"):
        zipfile.ZipFile(archive).extractall(tmp_path / "folders")
    one, two = load_omniglot(archives, expected=None), load_omniglot(tmp_path / "folders", expected=None)
    assert one.class_names == two.class_names
    np.testing.assert_array_equal(one.test.items.pixels, two.test.items.pixels)


def test_omniglot_names_characters_that_lack_drawings(tmp_path):
    with pytest.raises(ValueError, match=r"Greek/character00 has 3, .* of 20 drawings"):
        load_omniglot(miniatures.omniglot(tmp_path))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: Image.new("1", (20, 20)).save(file), "0001_01.png is 20×20; expected 105×105"),
        (lambda file: file.write_text("no image"), "0001_01.png is not a readable image"),
        (lambda file: file.unlink(missing_ok=True), "images_background: no drawings"),
    ],
)
def test_a_damaged_drawing_is_named_and_leaves_no_cache(tmp_path, monkeypatch, spoil, message):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path / "cache"))
    for part in ("images_background", "images_evaluation"):
        folder = tmp_path / "o" / part / "Greek" / "character01"
        folder.mkdir(parents=True)
        spoil(folder / "0001_01.png")
    with pytest.raises(ValueError, match=message):
        load_omniglot(tmp_path / "o", expected=None)
    assert not list((tmp_path / "cache").iterdir())


def overwritten(archive: bytes) -> bytes:
    start = archive.index(b"character02/0001.png") + len(b"character02/0001.png")
    return archive[:start] + b"\xff" * 20 + archive[start + 20 :]


@pytest.mark.parametrize("damage", [lambda content: content[:1000], overwritten])
def test_a_damaged_archive_is_named(tmp_path, damage):
    archive = miniatures.omniglot(tmp_path) / "images_background.zip"
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/Greek/character02/0001.png", bytes(range(256)))
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ValueError, match=r"images_background\.zip: not a complete zip archive"):
        load_omniglot(tmp_path, expected=None)


@pytest.mark.parametrize("name", ["images_background.npz", "images_evaluation.npy"])
@pytest.mark.parametrize(
    "damage", [lambda content: b"", lambda content: content[:-9], lambda content: b"x" + content[1:]]
)
def test_a_damaged_cache_is_made_again(tmp_path, monkeypatch, name, damage):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path / "cache"))
    root = miniatures.omniglot(tmp_path)
    expected = load_omniglot(root, expected=None).fingerprint()
    (file,) = (tmp_path / "cache").glob(f"omniglot-*/{name}")
    file.write_bytes(damage(file.read_bytes()))
    benchmark = load_omniglot(root, expected=None)
    assert any(str(file) in note and "damaged" in note for note in benchmark.notes)
    assert benchmark.fingerprint() == expected


def test_a_changed_archive_is_read_again(tmp_path):
    root = miniatures.omniglot(tmp_path)
    assert len(load_omniglot(root, expected=None).train) == 12
    (root / "images_background.zip").write_bytes((root / "images_evaluation.zip").read_bytes())
    names = load_omniglot(root, expected=None).class_names
    assert json.dumps(names).count("Gurmukhi/character00") == 2
