"""Files of embeddings: complete or absent, and continued after an interruption without doing anything twice."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.models.small_encoder import small

from softtriple.data import Benchmark, ImageFiles, Split, Vectors, read_vectors
from softtriple.errors import UserError
from softtriple.models import Encoder, features
from softtriple.models.features import Feeds
from softtriple.progress import Reporter
from softtriple.training import embedding
from softtriple.training.embedding import check_vector_file, write_embeddings

QUIET = Reporter(quiet=True)


class Killed(BaseException):
    """Ends the process from outside, as far as the code can tell."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (embedding, features):
        monkeypatch.setattr(module, "EMBEDDING_BATCH", 4)
    monkeypatch.setattr(embedding, "BLOCK", 8)


@pytest.fixture
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder.from_backbone("linear", dim=3, in_features=5)


def of_vectors(train: int = 30, test: int = 13, seed: int = 0) -> Benchmark:
    values = np.random.default_rng(seed).standard_normal((train + test, 5)).astype(np.float32)
    labels = np.arange(train + test) % 2
    splits = [Split(Vectors(values[part]), labels[part]) for part in (slice(train), slice(train, None))]
    return Benchmark(name="made by hand", class_names=("a", "b"), train=splits[0], test=splits[1])


def write(encoder: Encoder, benchmark: Benchmark, out: Path, half: torch.dtype | None = None) -> np.ndarray:
    count = write_embeddings(encoder, Feeds(encoder, reporter=QUIET), benchmark, out, QUIET, half=half)
    content = read_vectors(out)
    assert len(content.vectors) == count
    return content.vectors


def count_batches(monkeypatch: pytest.MonkeyPatch, encoder: Encoder, most: int | None = None) -> list[int]:
    """The lengths of the batches that ``encoder`` runs on from now on; ``Killed`` after ``most`` of them."""
    lengths: list[int] = []
    run = type(encoder).features

    def counting(self: Encoder, x: torch.Tensor, first: int = 0) -> torch.Tensor:
        if len(lengths) == most:
            raise Killed
        lengths.append(len(x))
        return run(self, x, first)

    monkeypatch.setattr(type(encoder), "features", counting)
    return lengths


def test_all_splits_are_written_in_order(encoder: Encoder, tmp_path: Path) -> None:
    benchmark = of_vectors()
    written = write(encoder, benchmark, tmp_path / "new" / "out.npz")
    items = [split.items for split in (benchmark.train, benchmark.test)]
    expected = np.concatenate([encoder.embed(one.values) for one in items if isinstance(one, Vectors)])
    np.testing.assert_allclose(written, expected, rtol=1e-5, atol=1e-6)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["out.npz"]


# Two batches make a block; the first split ends with the eighth batch.
@pytest.mark.parametrize(("batches", "left"), [(0, 43), (1, 43), (5, 27), (8, 13), (9, 13), (11, 5)])
def test_an_interrupted_file_is_continued(
    batches: int, left: int, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark, out = of_vectors(), tmp_path / "out.npz"
    expected = write(encoder, benchmark, tmp_path / "whole.npz")
    with monkeypatch.context() as patch:
        count_batches(patch, encoder, most=batches)
        with pytest.raises(Killed):
            write(encoder, benchmark, out)
    assert not out.exists()
    rest = count_batches(monkeypatch, encoder)
    np.testing.assert_array_equal(write(encoder, benchmark, out), expected)
    assert sum(rest) == left
    assert not (tmp_path / "out.npz.partial").exists()


@pytest.mark.parametrize("change", ["items", "encoder", "precision"])
def test_a_change_starts_over(change: str, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, out, half = of_vectors(), tmp_path / "out.parquet", None
    with monkeypatch.context() as patch:
        count_batches(patch, encoder, most=6)
        with pytest.raises(Killed):
            write(encoder, benchmark, out)
    if change == "items":
        benchmark = of_vectors(seed=1)
    elif change == "encoder":
        encoder.set_head(torch.ones(3, 5), torch.arange(3.0))
    else:
        half = torch.bfloat16
    rest = count_batches(monkeypatch, encoder)
    continued = write(encoder, benchmark, out, half)
    assert sum(rest) == 43
    np.testing.assert_array_equal(continued, write(encoder, benchmark, tmp_path / "anew.npz", half))
    assert not (tmp_path / "out.parquet.partial").exists()


def test_a_changed_image_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, paths = small(), tuple(str(tmp_path / f"{number}.png") for number in range(20))
    for number, path in enumerate(paths):
        Image.new("L", (32, 32), number).save(path)
    benchmark = Benchmark(
        name="files",
        class_names=("a",),
        train=Split(ImageFiles(()), np.empty(0, dtype=np.int64)),
        test=Split(ImageFiles(paths), np.zeros(20, dtype=np.int64)),
    )
    with monkeypatch.context() as patch:
        count_batches(patch, encoder, most=3)
        with pytest.raises(Killed):
            write(encoder, benchmark, tmp_path / "out.npz")
    Image.new("RGB", (40, 32)).save(paths[0])
    rest = count_batches(monkeypatch, encoder)
    write(encoder, benchmark, tmp_path / "out.npz")
    assert sum(rest) == 20
    assert read_vectors(tmp_path / "out.npz").paths == paths


def test_a_damaged_block_is_embedded_again(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark, out = of_vectors(), tmp_path / "out.npz"
    with monkeypatch.context() as patch:
        count_batches(patch, encoder, most=6)
        with pytest.raises(Killed):
            write(encoder, benchmark, out)
    blocks = sorted((tmp_path / "out.npz.partial").iterdir())
    assert len(blocks) == 3
    blocks[1].write_bytes(blocks[1].read_bytes()[:-9])
    rest = count_batches(monkeypatch, encoder)
    continued = write(encoder, benchmark, out)
    assert sum(rest) == 43 - 16
    np.testing.assert_array_equal(continued, write(encoder, benchmark, tmp_path / "anew.npz"))


def test_files_of_others_are_left_alone(encoder: Encoder, tmp_path: Path) -> None:
    mine = tmp_path / "out.npz.partial" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    write(encoder, of_vectors(), tmp_path / "out.npz")
    assert mine.read_text() == "mine"
    assert list(mine.parent.iterdir()) == [mine]


def test_bfloat16_stays_near_float32_and_at_unit_length(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = Encoder.from_backbone("mlp", dim=3, in_features=5, hidden=(16,))
    full, half = (write(encoder, of_vectors(), tmp_path / "out.npz", kind) for kind in (None, torch.bfloat16))
    assert 1e-5 < np.abs(full - half).max() < 0.05
    np.testing.assert_allclose(np.linalg.norm(half, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("name", ["out.csv", "out"])
def test_only_formats_for_vectors_are_written(name: str) -> None:
    with pytest.raises(UserError, match=r"\.npz or \.parquet"):
        check_vector_file(Path(name))
