"""Feeds for a single pass: they use the caches there are, and make none."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.models.small_encoder import small

from softtriple.data import ImageFiles, Split
from softtriple.models.features import Feeds, embed_batches, embed_feed
from softtriple.progress import Reporter

QUIET = Reporter(quiet=True)


@pytest.fixture
def split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Split:
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path / "cache"))
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        noise = np.random.default_rng(number).integers(0, 256, (40, 50), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    return Split(ImageFiles(tuple(map(str, paths))), np.zeros(6, dtype=np.int64))


@pytest.mark.parametrize("frozen", [0, 2])
def test_a_single_pass_makes_no_cache(split: Split, frozen: int, tmp_path: Path) -> None:
    encoder = small()
    feeds = Feeds(encoder, reporter=QUIET, frozen=frozen, cache_bytes=1e9)
    once = embed_feed(encoder, feeds.single_pass(split))
    assert not (tmp_path / "cache").exists()
    paths = split.items.paths  # type: ignore[union-attr]
    np.testing.assert_allclose(once.numpy(), encoder.embed(paths), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("frozen", [0, 2])
def test_a_single_pass_uses_what_is_cached(split: Split, frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = small()
    feeds = Feeds(encoder, reporter=QUIET, frozen=frozen, cache_bytes=1e9)
    expected = embed_feed(encoder, feeds.evaluation(split))
    monkeypatch.setattr("softtriple.data.loader.decode_image", lambda path: pytest.fail("decodes a cached image"))
    feed = feeds.single_pass(split)
    assert feed.first == frozen
    torch.testing.assert_close(embed_feed(encoder, feed), expected, rtol=0, atol=0)


def test_batches_of_rows_are_embedded_without_a_gradient(split: Split) -> None:
    encoder = small()
    feed = Feeds(encoder, reporter=QUIET).single_pass(split)
    rows = [np.array([4, 1]), np.array([0, 5])]
    embedded = list(embed_batches(encoder, feed, rows))
    whole = embed_feed(encoder, feed)
    assert torch.is_grad_enabled()
    for one, batch in zip(embedded, rows, strict=True):
        assert not one.requires_grad
        torch.testing.assert_close(one, whole[batch])
