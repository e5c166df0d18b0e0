from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from softtriple import Run, UserError, train
from softtriple.config import Config
from softtriple.data import Benchmark, Split, Texts, Vectors, make_benchmark
from softtriple.progress import Reporter
from softtriple.training.audit import audit

QUIET = Reporter(quiet=True)


def vectors(classes: int = 6, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), size)
    values = 4 * random.standard_normal((classes, 8))[labels] + random.standard_normal((len(labels), 8))
    return values.astype(np.float32), labels


def test_vectors_with_a_wrong_label_and_a_leak() -> None:
    values, labels = vectors()
    values[70] = values[5]  # a copy of a training item among the test items, with another label
    labels[10] = 2
    found = audit(make_benchmark(values, labels))
    assert found.features == "the vectors themselves"
    assert found.places[0] == ("train", 0)
    assert [one.row for one in found.findings.suspects[:2]] == [10, 70] or found.findings.suspects[0].row in (10, 70)
    assert [group.rows for group in found.findings.duplicates] == [(5, len(labels) - 2)]
    assert found.leak.rows == (len(labels) - 2,)
    assert found.leak.with_copies is not None
    assert found.leak.without_copies is not None
    assert found.leak.without_copies.num_queries == found.leak.with_copies.num_queries - 1


def test_texts() -> None:
    words = {"pay": "send money to account", "play": "music song album artist", "weather": "rain sun wind tomorrow"}
    random = np.random.default_rng(0)
    texts, labels = [], []
    for name, content in words.items():
        for _ in range(15):
            texts.append(" ".join([name, *random.permutation(content.split())[:3]]) + f" {random.integers(100)}")
            labels.append(name)
    labels[3] = "weather"
    split = Split(Texts(tuple(texts)), np.array([["pay", "play", "weather"].index(name) for name in labels]))
    rows = np.arange(len(texts))
    benchmark = Benchmark(
        name="intents", class_names=("pay", "play", "weather"), train=split.take(rows[::2]), test=split.take(rows[1::2])
    )
    found = audit(benchmark)
    worst = found.findings.suspects[0]
    assert found.places[worst.row] == ("test", 1)
    assert benchmark.class_names[worst.suggested] == "pay"


def test_images_that_cannot_be_read_are_findings(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in "abcd":
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(
                tmp_path / name / f"{number}.png"
            )
    (tmp_path / "b" / "broken.png").write_bytes(b"nothing")
    found = audit(Config(dataset=str(tmp_path)), reporter=QUIET)
    assert [found.places[row] for row in found.findings.unreadable] == [("train", 6)]
    assert found.features == "features of efficientnet-lite0"
    assert len(found.items) == 13


def test_drawings_are_compared_by_their_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 20, 20), dtype=np.uint8)
    assert "pixels" in audit(make_benchmark(pixels, np.arange(16) // 4)).features


def test_a_run_is_audited_by_its_backbone(tmp_path: Path) -> None:
    values, labels = vectors()
    np.savez(tmp_path / "v.npz", vectors=values, labels=labels)
    train(str(tmp_path / "v.npz"), out=tmp_path / "run", epochs=1, dim=4, reporter=QUIET)
    by_run, by_data = audit(Run.load(tmp_path / "run")), audit(str(tmp_path / "v.npz"))
    assert by_run.findings == by_data.findings  # a linear encoder takes the vectors as they are
    assert by_run.notes == ()


def test_one_class_cannot_be_audited() -> None:
    split = Split(Vectors(torch.eye(4).numpy()), np.zeros(4, dtype=np.int64))
    empty = split.take(np.arange(0))
    with pytest.raises(UserError, match="at least 2"):
        audit(Benchmark(name="one", class_names=("a",), train=split, test=empty))
