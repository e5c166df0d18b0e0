import os
import re
from pathlib import Path

import numpy as np
import pytest
from tests.data import miniatures

from softtriple.data import load_benchmark


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("birds:/nowhere", "unknown benchmark 'birds'.*cars196:PATH, cub:PATH.*sop:PATH, digits, glyphs"),
        ("cub:", "cub: needs the folder of the benchmark: cub:PATH"),
        ("nowhere", "nowhere: no such file or folder; data is a folder, a .csv"),
        ("cub:/nowhere", "/nowhere/classes.txt: no such file"),
        ("cars196:/nowhere", "/nowhere is no folder with cars_annos.mat"),
        ("omniglot:/nowhere", "neither images_background.zip nor images_background/"),
    ],
)
def test_a_wrong_spec_says_what_would_be_right(spec, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_benchmark(spec)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(ValueError, match=r"data is a folder, \.csv, \.npz or \.parquet, not \.json"):
        load_benchmark(str(tmp_path / "data.json"))


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="digits has no option split; it has none"):
        load_benchmark("digits", split="instances")


def test_an_option_of_another_source_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no option label; its options are split, test_share, seed, on_error"):
        load_benchmark(str(miniatures.class_folders(tmp_path)), label="kind")


def test_none_counts_as_not_given():
    assert load_benchmark("digits", split=None, seed=None).name == "digits"


def test_digits_are_half_and_half():
    digits = load_benchmark("digits")
    assert set(digits.train.labels) == set(digits.test.labels) == set(range(10))
    assert len(digits.train) + len(digits.test) == 1797
    assert np.abs(np.bincount(digits.train.labels) - np.bincount(digits.test.labels)).max() <= 1
    assert digits.train.items.values.max() == 1.0


# Folders.


def test_folders_by_instances_share_their_classes(tmp_path):
    benchmark = load_benchmark(str(miniatures.class_folders(tmp_path)), split="instances", test_share=0.3)
    assert set(benchmark.train.labels) == set(benchmark.test.labels) == {0, 1, 2, 3}
    assert len(benchmark.test) == 4


def test_given_parts_cannot_be_split_again(tmp_path):
    with pytest.raises(ValueError, match="brings its own split, so split and seed cannot apply"):
        load_benchmark(str(miniatures.train_test_folders(tmp_path)), split="instances", seed=1)


def test_parts_that_share_a_class_share_its_label(tmp_path):
    miniatures.class_folders(tmp_path / "train", classes=3)
    miniatures.class_folders(tmp_path / "test", classes=2, first=2)
    benchmark = load_benchmark(str(tmp_path))
    assert benchmark.class_names == ("class0", "class1", "class2", "class3")
    assert set(benchmark.train.labels) & set(benchmark.test.labels) == {2}
    assert "1 classes in common" in benchmark.notes[1]


def test_other_files_and_hidden_folders_are_left_out(tmp_path):
    miniatures.class_folders(tmp_path)
    (tmp_path / "class0" / "notes.txt").write_text("x")
    (tmp_path / ".thumbnails").mkdir()
    benchmark = load_benchmark(str(tmp_path))
    assert len(benchmark.class_names) == 4
    assert any("1 files that are not images were left out" in note for note in benchmark.notes)


def test_an_empty_class_stops_or_is_skipped(tmp_path):
    miniatures.class_folders(tmp_path)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"1 class folders hold no images \(nothing\)"):
        load_benchmark(str(tmp_path))
    benchmark = load_benchmark(str(tmp_path), on_error="skip")
    assert "nothing" not in benchmark.class_names
    assert any("were left out" in note for note in benchmark.notes)


def test_a_class_folder_with_a_strange_name_stops_or_is_skipped(tmp_path):
    miniatures.class_folders(tmp_path)
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    Path(strange).mkdir()
    with pytest.raises(ValueError, match=r"udcff'.*its name is not UTF-8"):
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


def test_on_error_is_one_of_two_words(tmp_path):
    with pytest.raises(ValueError, match="on_error = 'ignore' is neither 'stop' nor 'skip'"):
        load_benchmark(str(miniatures.class_folders(tmp_path)), on_error="ignore")


# Tables.


def test_other_columns_can_be_named(tmp_path):
    table = miniatures.csv_table(tmp_path, header=("file", "kind"))
    benchmark = load_benchmark(str(table), path="file", label="kind")
    assert len(benchmark.train) == 6
    with pytest.raises(ValueError, match=r"no column path or text; .* the columns are file, kind"):
        load_benchmark(str(table))
    with pytest.raises(ValueError, match="there is no column 'label'; the columns are file, kind"):
        load_benchmark(str(table), path="file")


def test_a_column_called_split_is_used(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,split\na,x,train\nb,y,test\nc,x,test\n")
    benchmark = load_benchmark(str(tmp_path / "t.csv"))
    assert benchmark.train.items.values == ("a",)
    assert benchmark.test.items.values == ("b", "c")
    assert "split by column 'split'" in benchmark.notes


def test_a_named_column_splits(tmp_path):
    (tmp_path / "t.csv").write_text("text,label,fold\na,x,train\nb,y,test\n")
    assert len(load_benchmark(str(tmp_path / "t.csv"), split="fold").test) == 1
    with pytest.raises(ValueError, match="column 'fold', brings its own split, so seed cannot apply"):
        load_benchmark(str(tmp_path / "t.csv"), split="fold", seed=1)


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("text,label\na,x\nb\n", {}, "row 2 has 1 fields, the header 2"),
        ("text,label\na,x\nb,\n", {}, "column 'label' is empty in 1 rows \\(first: row 2\\)"),
        ("text,label\n", {}, "the table has no rows"),
        ("", {}, "no column path or text"),
        ("text,text,label\na,b,x\n", {}, "a column name occurs twice"),
        ("text,path,label\na,b,x\n", {}, "both columns path and text"),
        ("text,label,fold\na,x,train\nb,y,val\n", {"split": "fold"}, "column 'fold' holds 'val'"),
        ("text,label,fold\na,x,train\nb,y,train\n", {"split": "fold"}, "no row has 'test' in column 'fold'"),
        ("text,label\na,x\nb,y\n", {"split": "fold"}, "split = 'fold' is no column, nor"),
        ("text,label\na,x\nb,y\n", {"text": "text", "path": "path"}, "exclude each other"),
        ("text,label\na,x\n ,y\n", {}, "column 'text' is blank in 1 of 2 rows \\(first: row 2\\); give each row a"),
    ],
)
def test_a_table_with_a_fault(tmp_path, content, options, message):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_benchmark(str(tmp_path / "t.csv"), **options)
    assert re.match(".*t.csv", str(caught.value))


def test_a_table_that_is_not_utf8(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"text,label\n\xff\xfe,x\n")
    with pytest.raises(ValueError, match=r"t\.csv: not a table of comma-separated values in UTF-8"):
        load_benchmark(str(tmp_path / "t.csv"))


def test_missing_images_stop_or_are_skipped(tmp_path):
    table = miniatures.csv_table(tmp_path)
    (tmp_path / "class1" / "2.png").unlink()
    with pytest.raises(ValueError, match=r"1 of 12 images are missing \(class1/2.png\); paths in column 'path' count"):
        load_benchmark(str(table))
    benchmark = load_benchmark(str(table), on_error="skip")
    assert len(benchmark.train) == 5
    assert f"left out: {tmp_path / 'class1' / '2.png'}: no such file" in benchmark.notes
    assert any("1 of 12 images are missing" in note for note in benchmark.notes)


def test_blank_texts_can_be_skipped(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,x\n ,x\nb,y\n")
    benchmark = load_benchmark(str(tmp_path / "t.csv"), on_error="skip")
    assert benchmark.train.items.values + benchmark.test.items.values == ("a", "b")
    assert any("column 'text' is blank in 1 of 3 rows, which were left out" in note for note in benchmark.notes)


def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(ValueError, match=r"t\.parquet: not a readable parquet file"):
        load_benchmark(str(tmp_path / "t.parquet"))
