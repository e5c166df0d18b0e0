import pytest
from tests.data import miniatures

from softtriple.data import load_benchmark
from softtriple.data.sources.cars196 import CARS196
from softtriple.data.sources.cub import CUB
from softtriple.data.sources.inshop import INSHOP
from softtriple.data.sources.layout import Counts
from softtriple.data.sources.sop import SOP

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
    with pytest.raises(ValueError, match=rf"{scheme}:.*incomplete copy: .*published data .*--on-error skip"):
        load_benchmark(f"{scheme}:{make(tmp_path)}")
    benchmark = load_benchmark(f"{scheme}:{tmp_path}", on_error="skip")
    assert benchmark.incomplete
    assert any("not comparable" in note for note in benchmark.notes)


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
    assert "4 of 12 images are missing" in benchmark.notes[1]
    assert "not comparable" in benchmark.notes[1]
    assert benchmark.incomplete
    assert len(benchmark.skipped) == 4


def test_a_complete_copy_is_not_marked(tmp_path):
    benchmark = load_benchmark(f"cub:{miniatures.cub(tmp_path)}", expected=TWO_AND_TWO)
    assert not benchmark.incomplete
    assert not benchmark.skipped
