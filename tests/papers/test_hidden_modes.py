"""Hidden modes: what the numbers mean, and the target on glyphs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_mutual_info_score

from softtriple.data.sources import glyphs
from softtriple.papers.hidden_modes import ami_in_class, purity
from softtriple.papers.reproduce import reproduce
from softtriple.progress import Reporter


def test_groups_that_are_the_modes_score_one_and_random_ones_nothing() -> None:
    random = np.random.default_rng(0)
    labels = torch.arange(4).repeat_interleave(300)
    fine = 3 * labels + torch.from_numpy(random.integers(3, size=1200))
    assert purity(fine, fine) == 1.0
    assert ami_in_class(labels, fine, fine) == pytest.approx(1.0)
    assert purity(fine, labels) < 0.5
    assert ami_in_class(labels, fine, labels) == pytest.approx(0.0)
    for groups_per_class in (2, 20):  # chance, whatever the number of groups
        chance = groups_per_class * labels + torch.from_numpy(random.integers(groups_per_class, size=1200))
        assert ami_in_class(labels, fine, chance) == pytest.approx(0.0, abs=0.03)


def test_agreement_in_class_is_the_mean_over_classes_with_modes() -> None:
    random = np.random.default_rng(1)
    sizes = [10, 30, 20]
    labels = np.repeat([0, 1, 2], sizes)
    fine = np.concatenate([random.integers(2, size=10), 2 + random.integers(3, size=30), np.full(20, 9)])
    groups = 10 * labels + random.integers(3, size=60)
    expected = sum(
        size * adjusted_mutual_info_score(fine[labels == label], groups[labels == label])
        for label, size in ((0, 10), (1, 30))  # class 2 hides nothing
    )
    assert ami_in_class(*map(torch.from_numpy, (labels, fine, groups))) == pytest.approx(expected / 40)


def test_on_glyphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glyphs, "SCRIPTS", {"Armenian": glyphs.SCRIPTS["Armenian"]})  # 38 of 519 classes
    settings = ["train.epochs=1", "train.batch_size=256", "model.input_size=16", "model.dim=16"]
    rows = ["hidden-modes_k1", "hidden-modes_k5"]
    made = reproduce("hidden-modes", "glyphs", tmp_path, rows=rows, settings=settings, reporter=Reporter(quiet=True))
    one, five = made.numbers["k1"], made.numbers["k5"]
    # With one centre per class, every class is one group.
    assert one["ami_in_class"]["mean"] == pytest.approx(0.0)
    assert five["ami_in_class"]["mean"] != 0.0
    assert five["purity"]["mean"] > one["purity"]["mean"]
    assert one["fine_recall"]["interval"][0] < one["fine_recall"]["mean"] < one["fine_recall"]["interval"][1]
    kept = json.loads((tmp_path / "hidden-modes_k5/seed-0/hidden-modes.json").read_text())
    assert kept["purity"] == five["purity"]["mean"]
    assert 1.5 < kept["modes_per_class"] <= 2.5
    assert {file.suffix for file in made.files} == {".md", ".html", ".svg", ".png"}

    weights = [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))]
    again = reproduce("hidden-modes", "glyphs", tmp_path, rows=rows, settings=settings, reporter=Reporter(quiet=True))
    assert again.numbers == made.numbers
    assert [file.stat().st_mtime_ns for file in sorted(tmp_path.rglob("model.safetensors"))] == weights
