"""What "auto" comes to, for each kind of data and by the clock."""

import numpy as np
import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, ImageArray, ImageFiles, Items, Split, Texts, Vectors, View
from softtriple.models import Encoder
from softtriple.models.features import Reading
from softtriple.progress import Reporter
from softtriple.training import auto as choices
from softtriple.training.auto import choose_trainable, resolve

QUIET = Reporter(quiet=True)
DATA = {
    "vectors": Vectors(np.zeros((10, 3), dtype=np.float32)),
    "texts": Texts(("word",) * 10),
    "drawings": ImageArray(np.zeros((10, 32, 32), dtype=np.uint8)),
    "photographs": ImageFiles(("photo.jpg",) * 10),
}


def benchmark(items: Items) -> Benchmark:
    split = Split(items, np.repeat(np.arange(2), 5))
    return Benchmark(name="made by hand", class_names=("a", "b"), train=split, test=split)


@pytest.mark.parametrize(
    ("kind", "settings", "chosen"),
    [
        ("vectors", [], ["linear", 64, "none", "off", 1e-4, "all", 2]),
        ("vectors", ["model.hidden=[5]"], ["mlp", 64, "none", "off", 1e-3, "all", 2]),
        ("texts", [], ["text", 64, "none", "off", 1e-3, "all", 2]),
        ("drawings", [], ["conv-small", 64, "affine", "off", 1e-3, "all", 2]),
        ("photographs", [], ["efficientnet-lite0", 64, "crop", "statistics", 1e-4, "auto", 2]),
    ],
)
def test_the_data_decide(kind: str, settings: list[str], chosen: list[object]) -> None:
    config = resolve(with_settings(Config(), settings), benchmark(DATA[kind]), QUIET)
    model = config.model
    decided = [model.backbone, model.dim, config.data.augment, model.freeze_batch_norm, config.train.lr]
    assert [*decided, model.trainable, config.loss.centers_per_class] == chosen
    assert resolve(config, benchmark(DATA[kind]), QUIET) == config


def test_what_was_chosen_is_kept() -> None:
    settings = ["model.backbone=conv-small", "model.dim=5", "data.augment=none", "train.lr=0.5", "model.trainable=head"]
    config = with_settings(Config(), [*settings, "model.freeze_batch_norm=statistics", "loss.centers_per_class=3"])
    assert resolve(config, benchmark(DATA["drawings"]), QUIET) == config


@pytest.mark.parametrize(("patience", "trainable"), [(0, "head"), (3600, "all")])
def test_the_clock_decides_what_is_trained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], patience: int, trainable: str
) -> None:
    monkeypatch.setattr(choices, "PATIENCE_SECONDS", patience)
    monkeypatch.setattr(choices, "_seconds", lambda function: 2.0)
    encoder = Encoder.from_backbone("conv-small", dim=4)
    arguments = (encoder, benchmark(DATA["drawings"]).train, Reading(View(size=32, resize=32)), torch.device("cpu"))
    config = choose_trainable(with_settings(Config(), ["train.epochs=60"]), *arguments, Reporter())
    assert config.model.trainable == trainable
    # Ten items in two seconds: 60 epochs of them, or 4 views.
    assert "all layers: about 2 min here; head on cached features: about 8 s" in capsys.readouterr().err
    assert choose_trainable(config, *arguments, Reporter()) == config
