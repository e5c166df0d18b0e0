import json
import zipfile

import numpy as np
import pytest
from PIL import Image
from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.data.sources.omniglot import load_omniglot, load_omniglot_alphabets
from softtriple.data.sources.published import CARS196, CUB, INSHOP, SOP, Counts

TWO_AND_TWO = Counts(train=6, test=6, gallery=0, train_classes=2, test_classes=2)


def test_the_published_counts_add_up():
    assert CUB.train + CUB.test == 11_788
    assert CARS196.train + CARS196.test == 16_185
    assert SOP.train + SOP.test == 120_053
    assert INSHOP.train + INSHOP.test + INSHOP.gallery == 52_712
    assert SOP.train_classes + SOP.test_classes == 22_634


@pytest.mark.parametrize(
    ("scheme", "make"),
    [
        ("cub", miniatures.cub),
        ("cars196", miniatures.cars_mat),
        ("cars196", miniatures.cars_folders),
        ("sop", miniatures.sop),
        ("inshop", miniatures.inshop),
        ("omniglot", miniatures.omniglot),
        ("omniglot-alphabets", miniatures.omniglot),
    ],
)
def test_a_smaller_set_is_never_silent(scheme, make, tmp_path):
    with pytest.raises(ValueError, match=rf"{scheme}:.*incomplete copy: .*published are .* to test on"):
        load_benchmark(f"{scheme}:{make(tmp_path)}")


def test_missing_images_are_named_and_counted(tmp_path):
    miniatures.cub(tmp_path)
    for file in sorted((tmp_path / "images").glob("*/bird_0.jpg")):
        file.unlink()
    with pytest.raises(ValueError, match=r"4 of 12 images are missing: .*Bird_0/bird_0.jpg, .*Bird_2/bird_0.jpg, …"):
        load_benchmark(f"cub:{tmp_path}", expected=TWO_AND_TWO)
    benchmark = load_benchmark(f"cub:{tmp_path}", expected=TWO_AND_TWO, on_error="skip")
    assert (len(benchmark.train), len(benchmark.test)) == (4, 4)
    listed = [note for note in benchmark.notes if note.startswith("left out: ")]
    assert len(listed) == 4
    assert listed[3] == f"left out: {tmp_path}/images/004.Bird_3/bird_0.jpg: no such file"
    assert "4 of 12 images are missing" in benchmark.notes[-1]
    assert "not comparable" in benchmark.notes[-1]


def test_cub_trains_on_the_first_half(tmp_path):
    benchmark = load_benchmark(f"cub:{miniatures.cub(tmp_path)}", expected=TWO_AND_TWO)
    assert benchmark.class_names == ("001.Bird_0", "002.Bird_1", "003.Bird_2", "004.Bird_3")
    assert benchmark.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert all("/images/00" in path for path in benchmark.train.items.paths)
    assert benchmark.recall_at == (1, 2, 4, 8)


def test_cub_lists_that_disagree(tmp_path):
    miniatures.cub(tmp_path)
    (tmp_path / "image_class_labels.txt").write_text("1 1\n")
    with pytest.raises(ValueError, match=r"lists 12 images, image_class_labels.txt 1"):
        load_benchmark(f"cub:{tmp_path}")
    (tmp_path / "image_class_labels.txt").write_text("1\n")
    with pytest.raises(ValueError, match=r"image_class_labels.txt: line 1 has 1 fields, not 2"):
        load_benchmark(f"cub:{tmp_path}")


def test_both_forms_of_cars_give_the_same_halves(tmp_path):
    by_list = load_benchmark(f"cars196:{miniatures.cars_mat(tmp_path / 'a')}", expected=TWO_AND_TWO)
    by_folder = load_benchmark(f"cars196:{miniatures.cars_folders(tmp_path / 'b')}", expected=TWO_AND_TWO)
    assert by_list.class_names == ("Car 0", "Car 1", "Car 2", "Car 3")
    assert np.bincount(by_list.train.labels).tolist() == np.bincount(by_folder.train.labels).tolist() == [3, 3]
    assert np.bincount(by_list.test.labels).tolist() == np.bincount(by_folder.test.labels).tolist() == [0, 0, 3, 3]


def test_sop_follows_its_lists(tmp_path):
    benchmark = load_benchmark(f"sop:{miniatures.sop(tmp_path)}", expected=Counts(6, 4, 0, 3, 2))
    assert benchmark.class_names == ("chair/100", "chair/200", "chair/300", "chair/400", "chair/500")
    assert benchmark.test.labels.tolist() == [3, 3, 4, 4]
    assert benchmark.recall_at == (1, 10, 100, 1000)


def test_inshop_queries_search_a_gallery(tmp_path):
    benchmark = load_benchmark(f"inshop:{miniatures.inshop(tmp_path)}", expected=Counts(6, 2, 4, 3, 2))
    assert benchmark.test.labels.tolist() == [3, 4]
    assert benchmark.gallery.labels.tolist() == [3, 3, 4, 4]
    assert "queries 2 images of 2 classes, gallery 4 images" in benchmark.notes[0]


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
        (lambda file: Image.new("1", (20, 20)).save(file), "0001_01.png is 20×20, a drawing is 105×105"),
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
    with pytest.raises(ValueError, match=r"images_background\.zip: not a whole zip archive"):
        load_omniglot(tmp_path, expected=None)


@pytest.mark.parametrize("name", ["images_background.json", "images_evaluation.npy"])
def test_a_damaged_cache_says_how_to_mend_it(tmp_path, monkeypatch, name):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path / "cache"))
    root = miniatures.omniglot(tmp_path)
    load_omniglot(root, expected=None)
    (file,) = (tmp_path / "cache").glob(f"omniglot-*/{name}")
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"omniglot-.*: damaged .*; delete this folder and it is made again"):
        load_omniglot(root, expected=None)


def test_a_list_that_is_not_utf_8_is_named(tmp_path):
    root = miniatures.cub(tmp_path)
    (root / "classes.txt").write_bytes(b"1 alb\xe1tross\n")
    with pytest.raises(ValueError, match=r"classes\.txt: not a text in UTF-8"):
        load_benchmark(f"cub:{root}")


@pytest.mark.parametrize("damage", [lambda content: content[:200], lambda content: b"MATLAB", lambda content: b""])
def test_damaged_annotations_are_named(tmp_path, damage):
    root = miniatures.cars_mat(tmp_path)
    file = root / "cars_annos.mat"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"cars_annos\.mat: annotations and class_names cannot be read"):
        load_benchmark(f"cars196:{root}")


def test_a_changed_archive_is_read_again(tmp_path):
    root = miniatures.omniglot(tmp_path)
    assert len(load_omniglot(root, expected=None).train) == 12
    (root / "images_background.zip").write_bytes((root / "images_evaluation.zip").read_bytes())
    names = load_omniglot(root, expected=None).class_names
    assert json.dumps(names).count("Gurmukhi/character00") == 2
