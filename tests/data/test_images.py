import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from softtriple.data.images import (
    AREA,
    ASPECT,
    ImageError,
    View,
    center_crop,
    decode_image,
    random_box,
    random_crop,
    random_resized_crop,
    resize_short_side,
)
from softtriple.data.randomness import stream

RED, WHITE = (255, 0, 0), (255, 255, 255)


def pixel(path, at=(0, 0)):
    image = decode_image(str(path))
    assert image.mode == "RGB"
    return image.getpixel(at)


@pytest.mark.parametrize(
    ("image", "suffix", "expected"),
    [
        (Image.new("RGB", (8, 8), RED), ".png", RED),
        (Image.new("L", (8, 8), 90), ".png", (90, 90, 90)),
        (Image.new("1", (8, 8), 1), ".png", WHITE),
        (Image.new("LA", (8, 8), (90, 255)), ".png", (90, 90, 90)),
        (Image.new("LA", (8, 8), (90, 0)), ".png", WHITE),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 0)), ".png", WHITE),
        (Image.new("RGBA", (8, 8), (255, 0, 0, 255)), ".png", RED),
        (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), ".tif", RED),
        (Image.fromarray(np.full((8, 8), 0x80FF, dtype=np.uint16)), ".png", (0x80, 0x80, 0x80)),
        (Image.fromarray(np.full((8, 8), 0x80FF, dtype=np.uint16)), ".tif", (0x80, 0x80, 0x80)),
        (Image.fromarray(np.full((8, 8), 0x80FF, dtype=np.int32)), ".tif", (0x80, 0x80, 0x80)),
    ],
)
def test_every_mode_becomes_rgb(tmp_path, image, suffix, expected):
    image.save(tmp_path / f"image{suffix}")
    assert pixel(tmp_path / f"image{suffix}") == expected


def test_a_transparent_palette_falls_on_white(tmp_path):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    image.putpixel((5, 5), 0)
    image.save(tmp_path / "palette.png", transparency=0)
    assert pixel(tmp_path / "palette.png") == RED
    assert pixel(tmp_path / "palette.png", at=(5, 5)) == WHITE


def test_an_image_lying_on_its_side_is_set_upright(tmp_path):
    image = Image.new("RGB", (16, 8))
    image.paste(RED, (0, 0, 8, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise: the left becomes the top
    image.save(tmp_path / "turned.png", exif=exif)
    decoded = decode_image(str(tmp_path / "turned.png"))
    assert decoded.size == (8, 16)
    assert decoded.getpixel((4, 2)) == RED
    assert decoded.getpixel((4, 12)) == (0, 0, 0)


def test_of_an_animation_the_first_frame_counts(tmp_path):
    Image.new("RGB", (8, 8), RED).save(
        tmp_path / "a.gif", save_all=True, append_images=[Image.new("RGB", (8, 8), WHITE)]
    )
    assert pixel(tmp_path / "a.gif") == RED


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).integers(0, 256, size=(64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "whole.jpg")
    content = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "empty.png").touch()
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "float.tif")
    Image.new("L", (301, 3)).save(tmp_path / "strip.png")
    reasons = {
        "half.jpg": "truncated",
        "text.jpg": "cannot identify",
        "empty.png": "cannot identify",
        "float.tif": "no defined white",
        "strip.png": "a strip",
        "absent.png": "no such file",
    }
    for name, reason in reasons.items():
        with pytest.raises(ImageError, match=reason) as caught:
            decode_image(str(tmp_path / name))
        assert caught.value.path == str(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bomb_is_refused(tmp_path, monkeypatch):
    Image.new("L", (50, 50)).save(tmp_path / "bomb.png")
    for limit in (2000, 1000):  # one below Pillow's warning only, one below its error
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ImageError, match="limit"):
            decode_image(str(tmp_path / "bomb.png"))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64))
def test_resizing_keeps_the_shape(width, height, side):
    resized = resize_short_side(Image.new("L", (width, height)), side)
    assert min(resized.size) == side
    assert max(resized.size) == int(side * max(width, height) / min(width, height))
    assert (resized.width >= resized.height) == (width >= height) or resized.width == resized.height


def test_the_middle_is_in_the_middle():
    image = Image.fromarray(np.arange(35, dtype=np.uint8).reshape(5, 7))
    assert np.asarray(center_crop(image, 3)).tolist() == [[9, 10, 11], [16, 17, 18], [23, 24, 25]]


def test_random_crops_reach_everywhere_and_mirror():
    columns = Image.fromarray(np.tile(np.arange(6, dtype=np.uint8), (6, 1)))
    seen = {tuple(np.asarray(random_crop(columns, 4, stream("test", i)))[0].tolist()) for i in range(200)}
    straight = {(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5)}
    assert seen == straight | {crop[::-1] for crop in straight}


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 10))
def test_a_random_box_lies_inside(width, height, seed):
    left, top, right, bottom = random_box(width, height, stream("test", seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_boxes_fill_the_allowed_range():
    boxes = np.array([random_box(400, 300, stream("test", i)) for i in range(500)])
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas, aspects = widths * heights / (400 * 300), widths / heights
    # Sides are whole pixels, so the limits hold up to a rounding.
    assert AREA[0] * 0.97 <= areas.min() < 0.12
    assert 0.9 < areas.max() <= AREA[1]
    assert ASPECT[0] * 0.97 <= aspects.min() < 0.8
    assert 1.25 < aspects.max() <= ASPECT[1] * 1.03


def test_a_box_of_a_thin_image_is_the_largest_in_the_middle():
    assert random_box(400, 4, stream("test", 1)) == (197, 0, 202, 4)


def test_a_resized_crop_has_the_size():
    assert random_resized_crop(Image.new("RGB", (50, 30)), 24, stream("test", 0)).size == (24, 24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0, "resize": 8}, "does not fit"),
        ({"size": 9, "resize": 8}, "9 pixels does not fit in a short side of 8"),
        ({"size": 8, "resize": None, "augment": "crop"}, "give resize"),
        ({"size": 8, "resize": 8, "augment": "blur"}, "'blur' is none of none, crop, resized-crop, affine"),
    ],
)
def test_a_view_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        View(**options)
