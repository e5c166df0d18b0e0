import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from softtriple.data import View
from softtriple.errors import UserError
from softtriple.models import Preprocess
from softtriple.models.preprocess import IMAGENET

CAFFE = Preprocess(size=4, resize=5, channels="bgr", peak=255.0, mean=(104.0, 117.0, 128.0), std=(1.0, 2.0, 4.0))
GRAY = Preprocess(size=4, resize=4, channels="gray", peak=1.0, mean=(0.5,), std=(0.5,))


def random_images(count: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=generator)


def test_one_pixel_by_hand() -> None:
    red, green, blue = 10, 20, 30
    pixel = torch.tensor([[[[red, green, blue]]]], dtype=torch.uint8)
    assert CAFFE(pixel).flatten().tolist() == [30 - 104, (20 - 117) / 2, (10 - 128) / 4]
    rgb = dataclasses.replace(CAFFE, channels="rgb", peak=1.0, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    torch.testing.assert_close(rgb(pixel).flatten(), torch.tensor([10.0, 20.0, 30.0]) / 255)


def test_gray_is_pillows() -> None:
    images = random_images(1, 9)
    ours = (GRAY(images)[0, 0] * 0.5 + 0.5) * 255
    pillows = np.asarray(Image.fromarray(images[0].numpy()).convert("L"))
    assert np.abs(ours.numpy() - pillows).max() <= 0.51  # Pillow rounds


def test_the_evaluation_view_resizes_and_crops_the_centre() -> None:
    assert CAFFE.eval_view == View(size=4, resize=5, augment="none")


def test_memory_order_is_that_of_the_images() -> None:
    assert CAFFE(random_images(2, 4)).is_contiguous(memory_format=torch.channels_last)


def test_survives_json() -> None:
    fields = json.loads(json.dumps(dataclasses.asdict(CAFFE)))
    fields |= {"mean": tuple(fields["mean"]), "std": tuple(fields["std"])}
    assert Preprocess(**fields) == CAFFE


@pytest.mark.usefixtures("unchecked")
def test_unknown_channels_are_named() -> None:
    with pytest.raises(ValueError, match="'cmyk' must be rgb, bgr or gray"):
        dataclasses.replace(CAFFE, channels="cmyk")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 6}, "size = 6 and resize = 5 must satisfy 1 ≤ size ≤ resize"),
        ({"mean": (1.0,)}, "need 3 numbers for bgr"),
    ],
)
def test_mistakes_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CAFFE, **change)


def test_the_evaluation_size_may_differ() -> None:
    preprocess = dataclasses.replace(IMAGENET, size=160, resize=182, eval_size=224)
    assert (preprocess.eval_view.size, preprocess.eval_view.resize) == (224, round(224 * 182 / 160))
    assert (IMAGENET.eval_view.size, IMAGENET.eval_view.resize) == (224, 256)


@pytest.mark.parametrize("size", [0, -3, 10**6])
def test_an_impossible_evaluation_size(size: int) -> None:
    with pytest.raises(UserError, match=f"eval_size = {size}"):
        dataclasses.replace(IMAGENET, eval_size=size)
