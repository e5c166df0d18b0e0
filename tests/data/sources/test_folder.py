import os
from pathlib import Path

import pytest
from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.errors import UserError


def test_folders_by_instances_share_their_classes(tmp_path):
    benchmark = load_benchmark(str(miniatures.class_folders(tmp_path)), split="instances", test_share=0.3)
    assert set(benchmark.train.labels) == set(benchmark.test.labels) == {0, 1, 2, 3}
    assert len(benchmark.test) == 4


def test_given_parts_cannot_be_split_again(tmp_path):
    with pytest.raises(ValueError, match="\\(train/ and test/\\) already defines the split; remove split and seed"):
        load_benchmark(str(miniatures.train_test_folders(tmp_path)), split="instances", seed=1)


def test_parts_that_share_a_class_share_its_label(tmp_path):
    miniatures.class_folders(tmp_path / "train", classes=3)
    miniatures.class_folders(tmp_path / "test", classes=2, first=2)
    benchmark = load_benchmark(str(tmp_path))
    assert benchmark.class_names == ("class0", "class1", "class2", "class3")
    assert set(benchmark.train.labels) & set(benchmark.test.labels) == {2}
    assert "1 class in common" in benchmark.notes[1]


def test_other_files_and_hidden_folders_are_left_out(tmp_path):
    miniatures.class_folders(tmp_path)
    (tmp_path / "class0" / "notes.txt").write_text("x")
    (tmp_path / ".thumbnails").mkdir()
    benchmark = load_benchmark(str(tmp_path))
    assert len(benchmark.class_names) == 4
    assert benchmark.skipped == (f"{tmp_path / 'class0' / 'notes.txt'}: not an image",)
    assert f"left out: {tmp_path / 'class0' / 'notes.txt'}: not an image" in benchmark.notes


def test_an_empty_class_stops_or_is_skipped(tmp_path):
    miniatures.class_folders(tmp_path)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"no images in 1 class folder \(nothing\)\. .*--on-error skip"):
        load_benchmark(str(tmp_path))
    benchmark = load_benchmark(str(tmp_path), on_error="skip")
    assert "nothing" not in benchmark.class_names
    assert benchmark.skipped == (f"{tmp_path / 'nothing'}: a class folder without images",)


def test_a_class_folder_with_a_strange_name_stops_or_is_skipped(tmp_path):
    miniatures.class_folders(tmp_path)
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    Path(strange).mkdir()
    with pytest.raises(ValueError, match=r"udcff'.*its name is not valid UTF-8"):
        load_benchmark(str(tmp_path))
    benchmark = load_benchmark(str(tmp_path), on_error="skip")
    assert len(benchmark.class_names) == 4
    assert "left out" in benchmark.notes[-1]


def test_links_in_a_circle_are_no_classes(tmp_path):
    miniatures.class_folders(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    assert len(load_benchmark(str(tmp_path)).class_names) == 4


def test_a_folder_of_plain_images_is_no_data(tmp_path):
    miniatures.write_image(tmp_path / "a.png")
    with pytest.raises(ValueError, match="no class folders"):
        load_benchmark(str(tmp_path))


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_folder_is_the_test_set(tmp_path, name):
    miniatures.class_folders(tmp_path / "train", classes=3)
    miniatures.class_folders(tmp_path / name, classes=2, first=3)
    benchmark = load_benchmark(str(tmp_path))
    assert (len(benchmark.train), len(benchmark.test)) == (9, 6)
    assert f"train/ and {name}/" in benchmark.notes[1]


def test_a_validation_folder_beside_a_test_folder_is_named(tmp_path):
    miniatures.train_test_folders(tmp_path)
    miniatures.class_folders(tmp_path / "val", classes=1)
    benchmark = load_benchmark(str(tmp_path))
    assert (len(benchmark.train), len(benchmark.test)) == (9, 6)
    assert benchmark.skipped == (f"{tmp_path / 'val'}: not used, test/ is the test set",)


def test_images_outside_the_class_folders_are_named(tmp_path):
    miniatures.class_folders(tmp_path)
    miniatures.write_image(tmp_path / "loose.png")
    (tmp_path / "class0" / "more").mkdir()
    skipped = load_benchmark(str(tmp_path)).skipped
    assert skipped == (
        f"{tmp_path / 'loose.png'}: not in a class folder",
        f"{tmp_path / 'class0' / 'more'}: not an image",
    )


def test_a_broken_link_stops_or_is_skipped(tmp_path):
    miniatures.class_folders(tmp_path)
    (tmp_path / "class0" / "lost.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"lost\.png'.*--on-error skip"):
        load_benchmark(str(tmp_path))
    benchmark = load_benchmark(str(tmp_path), on_error="skip")
    assert len(benchmark.train) == 6
    assert "lost.png" in benchmark.skipped[0]


def test_a_format_without_its_plugin_stops_or_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr("softtriple.data.images.FORMATS", ("JPEG", "PNG"))
    miniatures.class_folders(tmp_path)
    (tmp_path / "class0" / "phone.HEIC").write_bytes(b"x")
    with pytest.raises(UserError, match=r"phone\.HEIC: .*pip install pillow-heif.*--on-error skip"):
        load_benchmark(str(tmp_path))
    (skipped,) = load_benchmark(str(tmp_path), on_error="skip").skipped
    assert "phone.HEIC" in skipped


# Without a split: to index and embed.


def test_one_class_folder_can_be_loaded_without_a_split(tmp_path):
    miniatures.class_folders(tmp_path, classes=1)
    with pytest.raises(UserError, match=r"Only 1 class found.*needs at least 2"):
        load_benchmark(str(tmp_path))
    benchmark = load_benchmark(str(tmp_path), split="none")
    assert benchmark.class_names == ("class0",)
    assert (len(benchmark.train), len(benchmark.test)) == (0, 3)


def test_images_without_class_folders_belong_to_their_folder(tmp_path):
    miniatures.class_folders(tmp_path, classes=1)
    benchmark = load_benchmark(str(tmp_path / "class0"), split="none")
    assert benchmark.class_names == ("class0",)
    assert len(benchmark.test) == 3
    with pytest.raises(UserError, match="no class folders"):
        load_benchmark(str(tmp_path / "class0"))


def test_a_single_image_can_be_loaded_without_a_split(tmp_path):
    miniatures.class_folders(tmp_path, classes=1)
    file = str(tmp_path / "class0" / "1.png")
    benchmark = load_benchmark(file, split="none")
    assert benchmark.test.items.paths == (file,)
    assert benchmark.class_names == ("class0",)
    with pytest.raises(UserError, match="a single image cannot be trained on"):
        load_benchmark(file)


def test_a_folder_without_images_is_an_error_without_a_split_too(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match="no images"):
        load_benchmark(str(tmp_path), split="none")
