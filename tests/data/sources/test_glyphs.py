import numpy as np
import pytest
from matplotlib.ft2font import FT2Font
from PIL import ImageFont

from softtriple.data import load_benchmark
from softtriple.data.sources import glyphs


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    """A cache for the whole session: the glyphs are drawn once."""
    folder = tmp_path_factory.getbasetemp() / "glyphs"
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(folder))
    return folder


@pytest.fixture
def benchmark(cache):
    return load_benchmark("glyphs")


@pytest.fixture
def one_script(monkeypatch):
    """Georgian alone: half of the fonts lack its capitals."""
    monkeypatch.setattr(glyphs, "SCRIPTS", {"Georgian": glyphs.SCRIPTS["Georgian"]})


def characters(benchmark, name: str) -> set[str]:
    label = benchmark.class_names.index(name)
    return {
        benchmark.fine_names[fine]
        for split in (benchmark.train, benchmark.test)
        for fine in split.fine_labels[split.labels == label]
    }


def test_there_are_hundreds_of_classes_and_thousands_of_images(benchmark):
    assert len(benchmark.class_names) > 400
    assert 5_000 < len(benchmark.train) < 10_000
    assert abs(len(benchmark.train) - len(benchmark.test)) < 0.1 * len(benchmark.train)
    assert benchmark.train.items.pixels.shape[1:] == (32, 32)


def test_a_class_is_a_letter_in_both_cases(benchmark):
    assert characters(benchmark, "a") == {"A", "a"}
    assert characters(benchmark, "ж") == {"Ж", "ж"}
    for name in benchmark.class_names:
        assert {character.lower() for character in characters(benchmark, name)} == {name}


def test_lookalikes_of_an_earlier_class_are_gone(benchmark):
    assert characters(benchmark, "α") == {"α"}  # Α looks like A
    assert "а" not in benchmark.class_names  # Cyrillic: А and а both look like Latin letters
    assert "ο" not in benchmark.class_names  # Greek omicron


def test_both_halves_have_every_script(benchmark):
    for ranges in glyphs.SCRIPTS.values():
        for split in (benchmark.train, benchmark.test):
            names = [benchmark.class_names[label] for label in np.unique(split.labels)]
            assert sum(any(ord(name) in codes for codes in ranges) for name in names) >= 10


def test_every_glyph_has_ink_and_no_two_are_equal(benchmark):
    pixels = np.concatenate([benchmark.train.items.pixels, benchmark.test.items.pixels])
    assert pixels.reshape(len(pixels), -1).max(axis=1).min() > 60
    assert len(np.unique(pixels.reshape(len(pixels), -1), axis=0)) == len(pixels)


def test_no_font_shows_its_box_for_missing_characters(one_script):
    folder = glyphs._font_folder()
    known = [frozenset(FT2Font(str(folder / font)).get_charmap()) for font in glyphs.FONTS]
    fonts = [ImageFont.truetype(str(folder / font), glyphs._EM) for font in glyphs.FONTS]
    letters, drawings = glyphs._choose(known, fonts)
    assert len(letters) > 30
    for i, font in enumerate(fonts):
        box = np.asarray(glyphs._draw("\U0001fae8", font))
        drawn = [np.asarray(by_font[i]) for by_font in drawings.values() if i in by_font]
        assert not any(np.array_equal(drawing, box) for drawing in drawn)
    assert any(len(by_font) < len(fonts) for by_font in drawings.values())


def test_drawing_again_gives_the_same_bytes(one_script):
    one, two = (glyphs._draw_all(glyphs._font_folder()) for _ in range(2))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


def test_a_damaged_cache_is_drawn_again(one_script, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path))
    file = tmp_path / f"glyphs-{glyphs._key(glyphs._font_folder())}.npz"
    file.write_bytes(b"PK\3\4 and no more")
    benchmark = load_benchmark("glyphs")
    assert len(benchmark.train) > 100
    assert any(str(file) in note and "damaged" in note for note in benchmark.notes)
    again = load_benchmark("glyphs")
    assert len(again.notes) == 1
    np.testing.assert_array_equal(again.train.items.pixels, benchmark.train.items.pixels)


def test_the_cache_is_used_and_keyed_by_the_fonts(benchmark, cache, monkeypatch):
    monkeypatch.setattr(glyphs, "_draw_all", lambda folder: pytest.fail("drawn again"))
    again = load_benchmark("glyphs")
    np.testing.assert_array_equal(again.train.items.pixels, benchmark.train.items.pixels)
    key = glyphs._key(glyphs._font_folder())
    assert (cache / f"glyphs-{key}.npz").is_file()
    monkeypatch.setattr(glyphs, "FONTS", glyphs.FONTS[1:])
    assert glyphs._key(glyphs._font_folder()) != key
