import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps

from softtriple.data import ImageList
from softtriple.data.inspection import inspect_items
from softtriple.metrics.duplicates import DuplicateGroup, Pair, close_pairs, exact_pairs, find_duplicates, group_pairs


def scene(seed: int) -> Image.Image:
    """A smooth random picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((160, 120), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(1))


def encoded(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer).convert("RGB")


COPIES = {
    "re-encoded": encoded,
    "resized": lambda image: image.resize((80, 60)),
    "cropped": lambda image: image.crop((6, 2, 158, 116)),
    "mirrored": ImageOps.mirror,
    "cropped and mirrored": lambda image: ImageOps.mirror(image.crop((2, 4, 154, 118))),
}


@pytest.mark.parametrize("kind", COPIES)
def test_copies_of_pictures_are_found(kind: str) -> None:
    pictures = [scene(seed) for seed in range(20)]
    pictures += [COPIES[kind](pictures[row]) for row in (3, 11)]
    seen = inspect_items(ImageList(tuple(np.asarray(picture) for picture in pictures)))
    groups = find_duplicates(seen.digests, torch.eye(22), seen.thumbnails)
    assert {group.rows for group in groups} == {(3, 20), (11, 21)}
    assert {group.how for group in groups} == {"picture"}


def test_exact_copies() -> None:
    assert exact_pairs([b"a", b"b", b"a", b"c", b"a"]) == [Pair(0, 2, "exact", 1.0), Pair(0, 4, "exact", 1.0)]


def test_close_vectors() -> None:
    vectors = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    vectors = torch.cat([vectors, vectors[5:6] + 1e-3, vectors[9:10]])
    assert [(pair.first, pair.second) for pair in close_pairs(vectors)] == [(5, 200), (9, 201)]


def test_pairs_that_share_a_row_form_a_group() -> None:
    pairs = [Pair(4, 7, "picture", 0.95), Pair(1, 4, "exact", 1.0), Pair(2, 3, "exact", 1.0)]
    assert group_pairs(pairs, 9) == [DuplicateGroup((2, 3), "exact", 1.0), DuplicateGroup((1, 4, 7), "picture", 0.95)]
    assert group_pairs([], 9) == []
