import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from softtriple.data.images import (
    AREA,
    ASPECT,
    View,
    random_box,
    random_crop,
    random_resized_crop,
)
from softtriple.data.sampling import stream


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
