import os
from io import BytesIO

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.data.miniatures import tiff

from softtriple.data.images import (
    AREA,
    ASPECT,
    FORMATS,
    MAX_SHIFT,
    ImageError,
    View,
    affine_draws,
    apply_affine,
    center_crop,
    decode_image,
    missing_plugin,
    random_box,
    random_crop,
    random_resized_crop,
    resize_short_side,
    to_rgb,
)
from softtriple.data.sampling import stream

RED, WHITE = (255, 0, 0), (255, 255, 255)


# Decoding.


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
        "text.jpg": "none of BMP",
        "empty.png": "none of BMP",
        "float.tif": "no defined white",
        "strip.png": "301×3 pixels: the long side is more than 100 times",
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


def test_an_opened_image_is_read_as_its_file_is(tmp_path):
    image = Image.new("RGBA", (16, 8), (255, 0, 0, 100))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "image.png", exif=exif)
    expected = decode_image(str(tmp_path / "image.png"))
    with Image.open(tmp_path / "image.png") as opened:
        assert np.array_equal(to_rgb(opened, "image"), expected)
    with pytest.raises(ImageError, match="image 3: floating-point"):
        to_rgb(Image.fromarray(np.zeros((4, 4), dtype=np.float32)), "image 3")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX")
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "device.png", "folder.png"):
        with pytest.raises(ImageError, match="not a regular file"):
            decode_image(str(tmp_path / name))


def test_a_name_cannot_write_to_the_terminal(tmp_path):
    error = ImageError("one\ntwo\x1b[31m.png", "no such file")
    assert str(error) == r"'one\ntwo\x1b[31m.png': no such file"


def test_a_name_that_is_not_utf_8_is_refused(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    Image.new("RGB", (4, 4)).save(path)
    with pytest.raises(ImageError, match="not valid UTF-8"):
        decode_image(path)


def test_no_other_program_is_started(tmp_path):
    file = tmp_path / "really.jpg"
    file.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    with pytest.raises(ImageError, match="none of BMP"):  # Pillow would start Ghostscript for it
        decode_image(str(file))


def decode_bytes(content: bytes) -> Image.Image:
    with Image.open(BytesIO(content), formats=FORMATS) as image:
        return to_rgb(image, "upload")


@pytest.mark.parametrize("big", [False, True])
def test_tiles_and_strips_of_a_usual_size_are_decoded(big):
    assert decode_bytes(tiff(tile=(256, 256), big=big)).size == (8, 8)
    assert decode_bytes(tiff(rows_per_strip=8, big=big)).size == (8, 8)
    assert decode_bytes(tiff(rows_per_strip=0xFFFFFFFF, big=big)).size == (8, 8)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tile": (16_384, 8_192)}, "tiles or strips of 16384×8192 pixels"),
        ({"rows_per_strip": 100_000_000}, "tiles or strips of 8×100000000 pixels"),
        ({"tile": (16_384, 8_192), "kind": 17}, "neither a SHORT nor a LONG"),  # a type that Pillow skips
    ],
)
def test_a_tile_far_larger_than_the_image_is_not_decoded(monkeypatch, tmp_path, options, reason, big):
    content = tiff(**options, big=big)
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("decoded"))
    with pytest.raises(ImageError, match=reason):
        decode_bytes(content)
    (tmp_path / "bomb.tif").write_bytes(content)
    with pytest.raises(ImageError, match=rf"bomb\.tif: .*{reason}"):
        decode_image(str(tmp_path / "bomb.tif"))


def test_a_tiff_that_was_decoded_before_is_not_read_again(tmp_path):
    Image.new("RGB", (8, 8), RED).save(tmp_path / "a.tif", compression="tiff_lzw")
    with Image.open(tmp_path / "a.tif") as image:
        image.load()
    assert to_rgb(image, "a").getpixel((0, 0)) == RED


def test_avif_is_read_where_pillow_can(tmp_path):
    if "AVIF" not in FORMATS:
        pytest.skip("this Pillow has no AVIF")
    Image.new("RGB", (16, 16), RED).save(tmp_path / "a.avif")
    assert np.allclose(pixel(tmp_path / "a.avif"), RED, atol=8)


def test_a_missing_plugin_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("softtriple.data.images.FORMATS", ("JPEG", "PNG"))
    (tmp_path / "a.HEIC").write_bytes(b"....ftypheic")
    assert "pip install pillow-heif" in missing_plugin("a.HEIC")
    assert missing_plugin("a.jpg") is None
    with pytest.raises(ImageError, match=r"a\.HEIC: .*pip install pillow-heif"):
        decode_image(str(tmp_path / "a.HEIC"))


# Views and crops.


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
        ({"size": 8, "resize": None, "augment": "crop"}, "needs a value for resize"),
        (
            {"size": 8, "resize": 8, "augment": "blur"},
            "unknown augment 'blur'; choose from none, crop, resized-crop, affine",
        ),
        ({"size": 8, "resize": 8, "augment": "afine"}, "did you mean 'affine'"),
    ],
)
def test_a_view_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        View(**options)


# The random affine.


def dot(size: int = 25) -> torch.Tensor:
    pixels = torch.zeros(1, size, size, 1, dtype=torch.uint8)
    pixels[0, size // 2, size // 2] = 255
    return pixels


def place(pixels: torch.Tensor) -> tuple[float, float]:
    """Centre of the ink, (down, right)."""
    weights = pixels[0, :, :, 0].double()
    along = torch.arange(len(weights), dtype=torch.float64)
    return float((weights.sum(1) @ along) / weights.sum()), float((weights.sum(0) @ along) / weights.sum())


def test_no_affine_is_the_identity():
    pixels = torch.randint(0, 256, (3, 8, 8, 3), dtype=torch.uint8)
    assert torch.equal(apply_affine(pixels, torch.zeros(3, 4)), pixels)


def test_the_middle_stays_when_turned_and_zoomed():
    assert place(apply_affine(dot(), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))) == (12.0, 12.0)
    assert place(apply_affine(dot(), torch.tensor([[0.0, 1.0, 0.0, 0.0]]))) == (12.0, 12.0)


def test_a_shift_moves_by_a_share_of_the_side():
    down, right = place(apply_affine(dot(), torch.tensor([[0.0, 0.0, 1.0, 0.0]])))
    assert down == 12.0
    assert abs(abs(right - 12.0) - MAX_SHIFT * 25) < 0.01


def test_outside_the_border_repeats():
    white = torch.full((1, 8, 8, 1), 255, dtype=torch.uint8)
    assert torch.equal(apply_affine(white, torch.ones(1, 4)), white)


def test_an_image_moves_alike_in_any_company():
    pixels = torch.randint(0, 256, (5, 9, 9, 1), dtype=torch.uint8)
    draws = torch.from_numpy(affine_draws(5, stream("test", 0)))
    together = apply_affine(pixels, draws)
    alone = torch.cat([apply_affine(pixels[i : i + 1], draws[i : i + 1]) for i in range(5)])
    assert torch.equal(together, alone)


def test_draws_of_a_row_do_not_depend_on_the_rows_after_it():
    np.testing.assert_array_equal(affine_draws(9, stream("test", 0))[:4], affine_draws(4, stream("test", 0)))
