from pathlib import Path

import numpy as np
from PIL import Image

from softtriple.data import ImageArray, ImageFiles, Texts, Vectors
from softtriple.data.inspection import THUMBNAIL, inspect_items, pixel_features


def noise(seed: int, height: int = 64, width: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def test_images(tmp_path: Path) -> None:
    images = {f"{number}.png": noise(number) for number in range(16)}
    images["blank.png"] = Image.new("RGB", (64, 64), "white")
    images["tiny.png"] = noise(20, 20, 40)
    images["strip.png"] = noise(21, 40, 400)
    images["grey.png"] = noise(22).convert("L")
    for name, image in images.items():
        image.save(tmp_path / name)
    (tmp_path / "copy.png").write_bytes((tmp_path / "0.png").read_bytes())
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    names = [*images, "copy.png", "broken.png", "missing.png"]
    seen = inspect_items(ImageFiles(tuple(str(tmp_path / name) for name in names)))
    odd = {names[row]: reason for row, reason in seen.odd.items()}
    assert set(odd) == {"blank.png", "tiny.png", "strip.png", "grey.png"}
    assert "40×20" in odd["tiny.png"]
    assert "L" in odd["grey.png"]
    assert {names[row] for row in seen.unreadable} == {"broken.png", "missing.png"}
    assert seen.digests[names.index("copy.png")] == seen.digests[0]
    assert len(set(seen.digests)) == len(names) - 1
    assert seen.thumbnails is not None
    assert seen.thumbnails.shape == (len(names), THUMBNAIL, THUMBNAIL, 3)


def test_texts_and_vectors() -> None:
    texts = inspect_items(Texts(("book a  table", "book a table", "x", "y " * 400, *["a usual text"] * 9)))
    assert set(texts.odd) == {2, 3}
    assert texts.digests[0] == texts.digests[1] != texts.digests[2]
    values = np.ones((10, 4), np.float32) * np.arange(1, 11, dtype=np.float32)[:, None] / 10 + 1
    values[3], values[4] = 0, 1000
    vectors = inspect_items(Vectors(values))
    assert set(vectors.odd) == {3, 4}
    assert vectors.thumbnails is None


def test_pixels_as_features() -> None:
    pixels = np.zeros((2, 32, 32), np.uint8)
    pixels[1, :16] = 255
    features = pixel_features(ImageArray(pixels), side=4)
    np.testing.assert_array_equal(features[1].reshape(4, 4), [[1] * 4] * 2 + [[0] * 4] * 2)
    assert not features[0].any()
