import pytest
from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.data.sources.layout import Counts

TWO_AND_TWO = Counts(train=6, test=6, gallery=0, train_classes=2, test_classes=2)


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
    with pytest.raises(ValueError, match=r"image_class_labels.txt: line 1 has 1 fields; expected 2"):
        load_benchmark(f"cub:{tmp_path}")


def test_a_list_that_is_not_utf_8_is_named(tmp_path):
    root = miniatures.cub(tmp_path)
    (root / "classes.txt").write_bytes(b"1 alb\xe1tross\n")
    with pytest.raises(ValueError, match=r"classes\.txt: not UTF-8 text"):
        load_benchmark(f"cub:{root}")
