"""What "auto" comes to, for each kind of data."""

import numpy as np
import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, ImageArray, ImageFiles, Items, Split, Texts, Vectors
from softtriple.errors import UserError
from softtriple.progress import Reporter
from softtriple.training import auto as choices
from softtriple.training.auto import (
    Precision,
    check_compile,
    check_dims,
    embedding_type,
    resolve,
    resolve_compile,
    resolve_dim,
    resolve_hold_out,
    resolve_precision,
    resolve_training,
    trains_head_only,
)

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
        ("vectors", [], ["linear", "none", "average", False, "off", "all"]),
        ("vectors", ["model.hidden=[5]"], ["mlp", "none", "average", False, "off", "all"]),
        ("texts", [], ["text", "none", "average", False, "off", "head"]),
        ("drawings", [], ["conv-small", "affine", "average", False, "off", "all"]),
        ("photographs", [], ["efficientnet-lite0", "auto", "average+max", True, "statistics", "auto"]),
    ],
)
def test_the_data_decide(kind: str, settings: list[str], chosen: list[object]) -> None:
    config = resolve(with_settings(Config(), settings), benchmark(DATA[kind]), QUIET)
    model = config.model
    decided = [model.backbone, config.data.augment, model.pooling, model.layer_norm, model.freeze_batch_norm]
    assert [*decided, model.trainable] == chosen
    assert resolve(config, benchmark(DATA[kind]), QUIET) == config


@pytest.mark.parametrize(
    ("backbone", "features", "items", "dim", "head_init"),
    [
        ("linear", 40, 1000, 40, "whitened"),
        ("linear", 2000, 1024, 512, "whitened"),
        ("linear", 2000, 1023, 2000, "whitened"),  # too few items for principal components
        ("linear", 20000, 1023, 2048, "whitened"),
        ("linear", 40, 11, 40, "whitened"),
        ("text", 768, 6000, 256, "whitened"),
        ("st:somewhere", 384, 6000, 128, "whitened"),
        ("st:somewhere", 2048, 100, 512, "whitened"),
        ("efficientnet-lite0", 2560, 6000, 512, "whitened"),
        ("conv-small", 512, 1000, 64, "random"),
        ("mlp", 512, 1000, 64, "random"),
    ],
)
def test_the_features_decide_the_width_and_the_start(
    backbone: str, features: int, items: int, dim: int, head_init: str
) -> None:
    config = resolve_dim(with_settings(Config(), [f"model.backbone={backbone}"]), features, items)
    assert (config.model.dim, config.model.head_init) == (dim, head_init)
    assert resolve_dim(config, features, items) == config


def test_a_width_above_that_of_the_features_starts_at_random() -> None:
    config = with_settings(Config(), ["model.backbone=linear", "model.dim=41"])
    assert resolve_dim(config, 40, 1000).model.head_init == "random"


HEAD = ["model.trainable=head", "model.head_init=whitened"]


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        (["model.backbone=efficientnet-lite0", *HEAD], [128, 10, "cosine", (), 4e-4, 10]),
        (["model.backbone=text", *HEAD], [128, 10, "cosine", (), 1.6e-3, 3]),
        (["model.backbone=linear", "model.head_init=whitened"], [128, 10, "cosine", (), 4e-4, 10]),
        (["model.backbone=linear", "model.head_init=random"], [32, 50, "step", (20, 40), 1e-3, 10]),
        (["model.backbone=conv-small", "model.head_init=random"], [32, 50, "step", (20, 40), 1e-3, 10]),
        (["model.backbone=efficientnet-lite0", "model.trainable=all"], [32, 6, "cosine", (), 1e-4, 10]),
        (
            ["model.backbone=efficientnet-lite0", "model.trainable=all", "train.choose=off"],
            [32, 50, "step", (20, 40), 1e-4, 10],
        ),
        (["model.backbone=conv-small", "train.epochs=10"], [32, 10, "step", (4, 8), 1e-3, 10]),
        (["model.backbone=text", *HEAD, "train.milestones=[3]"], [128, 10, "step", (3,), 1.6e-3, 3]),
    ],
)
def test_what_is_trained_decides_the_budget(settings: list[str], chosen: list[object]) -> None:
    config = resolve_training(with_settings(Config(), settings), np.full(100, 60), QUIET)
    train = config.train
    decided = [train.batch_size, train.epochs, train.schedule, train.milestones, train.lr]
    assert [*decided, config.loss.centers_per_class] == chosen
    assert resolve_training(config, np.full(100, 60), QUIET) == config


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (HEAD, {"gamma": 0.5}),
        ([*HEAD, "loss.options.gamma=0.2", "loss.options.tau=0"], {"gamma": 0.2, "tau": 0}),
        ([*HEAD, "loss.centers_per_class=10"], {}),  # the paper's gamma, as with any number that is given
        ([*HEAD, "loss.name=hard-triple"], {}),
        (["model.trainable=all"], {}),
        ([*HEAD, "model.backbone=text"], {}),
    ],
)
def test_a_head_chooses_softly_among_its_centres(settings: list[str], options: dict[str, float]) -> None:
    config = with_settings(Config(), ["model.backbone=efficientnet-lite0", *settings])
    assert resolve_training(config, np.full(100, 60), QUIET).loss.options == options


@pytest.mark.parametrize(
    ("backbone", "trainable", "choose", "chosen"),
    [
        ("efficientnet-lite0", "all", "on", ["resized-crop", 4e-4, 0.5]),  # without classes to hold out
        ("efficientnet-lite0", "last:2", "on", ["resized-crop", 4e-4, 0.5]),
        ("efficientnet-lite0", "head", "on", ["crop", 4e-4, "auto"]),
        ("efficientnet-lite0", "all", "off", ["crop", 1e-4, "auto"]),  # the paper's protocol
        ("module:Net", "all", "on", ["crop", 1e-4, "auto"]),  # nobody knows whether it starts from weights
    ],
)
def test_published_weights_are_changed_with_care(
    backbone: str, trainable: str, choose: str, chosen: list[object]
) -> None:
    settings = [f"model.backbone={backbone}", f"model.trainable={trainable}", f"train.choose={choose}"]
    config = with_settings(Config(), [*settings, "model.head_init=whitened", "train.hold_out=0.0"])
    config = resolve_training(config, np.full(100, 60), QUIET)
    assert [config.data.augment, config.train.head_lr, config.train.interpolate] == chosen


@pytest.mark.parametrize(
    ("items", "batch_size", "epochs"),
    # 460 steps, but 10 to 100 epochs
    [(100, "auto", 100), (1280, "auto", 46), (1281, "auto", 42), (10**5, "auto", 10), (1280, "64", 23)],
)
def test_a_head_is_trained_for_about_as_many_steps_on_any_data(items: int, batch_size: str, epochs: int) -> None:
    size = [] if batch_size == "auto" else [f"train.batch_size={batch_size}"]
    settings = ["model.backbone=linear", "model.head_init=whitened", *size]
    config = resolve_training(with_settings(Config(), settings), np.array([items // 2, items - items // 2]), QUIET)
    assert config.train.epochs == epochs


@pytest.mark.parametrize(
    ("backbone", "trainable", "head_init", "expected"),
    [
        ("linear", "all", "whitened", True),
        ("linear", "all", "random", False),
        ("efficientnet-lite0", "head", "pca", True),
        ("efficientnet-lite0", "head", "random", False),
        ("efficientnet-lite0", "last:1", "whitened", False),
        ("mlp", "all", "random", False),
    ],
)
def test_heads_on_fixed_features(backbone: str, trainable: str, head_init: str, expected: bool) -> None:
    settings = [f"model.backbone={backbone}", f"model.trainable={trainable}", f"model.head_init={head_init}"]
    assert trains_head_only(with_settings(Config(), settings)) is expected


def test_a_loss_without_centres_is_given_none() -> None:
    config = with_settings(Config(), ["model.backbone=conv-small", "loss.name=semi-hard"])
    assert resolve_training(config, np.full(10, 60), QUIET).loss.centers_per_class == "auto"


def test_vectors_are_not_augmented(capsys: pytest.CaptureFixture[str]) -> None:
    config = with_settings(Config(), ["data.augment=crop"])
    assert resolve(config, benchmark(DATA["vectors"]), Reporter()).data.augment == "none"
    assert "data.augment" in capsys.readouterr().err


def test_what_was_chosen_is_kept() -> None:
    settings = ["model.backbone=conv-small", "model.dim=5", "data.augment=none", "train.lr=0.5", "model.trainable=head"]
    settings += ["model.freeze_batch_norm=statistics", "model.pooling=average+max", "model.layer_norm=true"]
    settings += ["model.head_init=pca", "train.batch_size=7", "train.epochs=3", "train.schedule=step"]
    settings += ["train.head_lr=0.1"]
    config = with_settings(Config(), [*settings, "train.milestones=[1]", "loss.centers_per_class=3"])
    assert resolve(config, benchmark(DATA["drawings"]), QUIET) == config
    assert resolve_dim(config, 512, 10) == config
    assert resolve_training(config, np.full(2, 5), QUIET) == config


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ([], 256),
        (["model.input_size=160"], 160),
        (["model.eval_size=224"], None),
        (["train.choose=off"], None),
        (["model.trainable=all"], None),  # only evaluation sees the larger images
    ],
)
def test_photographs_are_larger_than_the_network_was_trained_on(settings: list[str], size: int | None) -> None:
    config = with_settings(Config(), settings)
    assert resolve(config, benchmark(DATA["photographs"]), QUIET).model.input_size == size


@pytest.mark.parametrize(
    ("classes", "settings", "share"),
    [
        (100, ["model.trainable=all"], 0.125),
        (20, ["model.trainable=last:1"], 0.25),  # five classes, fewer say little
        (19, ["model.trainable=all"], 0.0),
        (100, HEAD, 0.0),
        (100, ["model.trainable=all", "train.choose=off"], 0.0),
        (100, ["model.trainable=all", "train.interpolate=0.5"], 0.0),
        (100, ["model.trainable=all", "train.hold_out=0.5"], 0.5),
    ],
)
def test_classes_are_held_out_while_published_weights_change(classes: int, settings: list[str], share: float) -> None:
    config = with_settings(Config(), ["model.backbone=efficientnet-lite0", *settings])
    assert resolve_hold_out(config, classes).train.hold_out == share


@pytest.mark.parametrize(
    ("settings", "instructions", "precision"),
    [
        (["model.backbone=efficientnet-lite0", "model.trainable=all"], ["avx512_bf16"], "bfloat16"),
        (["model.backbone=efficientnet-lite0", "model.trainable=last:2"], ["amx_bf16"], "bfloat16"),
        (["model.backbone=efficientnet-lite0", "model.trainable=all"], ["avx512_f"], "float32"),
        (["model.backbone=efficientnet-lite0", *HEAD], ["avx512_bf16"], "float32"),
        (["model.backbone=conv-small", "model.trainable=all"], ["avx512_bf16"], "float32"),
        (["model.backbone=conv-small", "train.precision=bfloat16"], [], "bfloat16"),
    ],
)
def test_the_processor_decides_the_precision(
    settings: list[str], instructions: list[str], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True))
    config = resolve_precision(with_settings(Config(), settings), torch.device("cpu"), QUIET)
    assert config.train.precision == precision
    assert resolve_precision(config, torch.device("cpu"), QUIET) == config


@pytest.mark.parametrize(
    ("backbone", "precision", "instructions", "expected"),
    [
        ("efficientnet-lite0", "auto", ["avx512_bf16"], torch.bfloat16),
        ("hf:facebook/dinov2-small", "auto", ["amx_bf16"], torch.bfloat16),
        ("efficientnet-lite0", "auto", ["avx512_f"], None),
        ("conv-small", "auto", ["avx512_bf16"], None),
        ("efficientnet-lite0", "float32", ["avx512_bf16"], None),
        ("conv-small", "bfloat16", [], torch.bfloat16),
    ],
)
def test_the_processor_decides_the_precision_of_embedding(
    backbone: str,
    precision: Precision,
    instructions: list[str],
    expected: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True))
    assert embedding_type(backbone, precision, torch.device("cpu"), QUIET) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.dims=[64]"], "at least two widths that grow"),
        (["model.dims=[64, 64]"], "at least two widths that grow"),
        (["model.dims=[128, 64]"], "at least two widths that grow"),
        (["model.dims=[64, 128]", "model.dim=64"], "make it 128"),
        (["model.dims=[64, 128]", "loss.name=proxy-anchor"], "not proxy-anchor"),
        (["model.dims=[64, 128]", "loss.name=softmax-norm"], "not softmax-norm"),
        (["model.dims=[64, 128]", "loss.name=module:Mine"], "not module:Mine"),
        (["loss.options.prefixes=[64]"], "--dims"),
    ],
)
def test_widths_that_cannot_be_trained_together(settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_dims(with_settings(Config(), settings))


def test_the_last_width_is_that_of_the_embedding() -> None:
    config = with_settings(Config(), ["model.dims=[16, 32]", "model.backbone=linear"])
    check_dims(config)
    assert resolve_dim(config, 100, 5000).model.dim == 32
    check_dims(with_settings(config, ["model.dim=32"]))


@pytest.mark.parametrize(
    ("settings", "device", "compiled"),
    [
        (["model.trainable=all"], "cuda", "on"),
        (["model.trainable=last:2"], "cuda", "on"),
        (["model.trainable=all", "train.epochs=9"], "cuda", "off"),  # 1800 steps
        (["model.trainable=head"], "cuda", "off"),
        (["model.trainable=all"], "cpu", "off"),
        (["model.trainable=all", "train.compile=on"], "cpu", "on"),
        (["model.trainable=all", "train.compile=off"], "cuda", "off"),
    ],
)
def test_device_and_steps_decide_about_compiling(
    settings: list[str], device: str, compiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "missing_for_compile", lambda device: None)
    config = with_settings(Config(), ["train.epochs=10", "train.batch_size=32", *settings])
    resolved = resolve_compile(config, 6400, torch.device(device), QUIET)
    assert resolved.train.compile == compiled
    assert resolve_compile(resolved, 6400, torch.device(device), QUIET) == resolved
    monkeypatch.setattr(choices, "missing_for_compile", lambda device: "a compiler")
    if "train.compile=on" not in settings:
        assert resolve_compile(config, 6400, torch.device(device), QUIET).train.compile == "off"


def test_compiling_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = with_settings(Config(), ["train.compile=on"])
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"no-such-compiler.*--set train\.compile=off"):
        check_compile(config, torch.device("cpu"))
    check_compile(Config(), torch.device("cpu"))
    monkeypatch.setattr("shutil.which", lambda name: name)
    check_compile(config, torch.device("cpu"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="Triton"):
        check_compile(config, torch.device("cuda"))
