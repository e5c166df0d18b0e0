"""Configurations: strict, typed, the same after writing and reading."""

from pathlib import Path

import pytest

from softtriple.config import PRESETS, Config, read_config, with_preset, with_settings, write_config


def read_back(config: Config, folder: Path) -> Config:
    file = folder / "config.toml"
    file.write_text(write_config(config), encoding="utf-8")
    return read_config(file)


def test_what_is_written_reads_back_equal(tmp_path: Path) -> None:
    config = with_settings(
        Config(dataset='a "quoted" näme\\with:path, 😀 and a\x7f'),
        [
            "train.epochs=3",
            "loss.options.gamma=0.2",
            "model.hidden=[5, 6]",
            "train.head_lr=0.001",
            "train.lr=1e-5",
            "train.checkpoint_minutes=inf",
        ],
    )
    assert read_back(config, tmp_path) == config
    assert read_back(Config(), tmp_path) == Config()


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str, tmp_path: Path) -> None:
    config = with_preset(Config(), name)
    assert config != Config()
    assert read_back(config, tmp_path) == config


def test_values_are_typed() -> None:
    config = with_settings(
        Config(), ["train.lr=1", "train.milestones=[2]", "loss.centers_per_class=4", "model.backbone=conv-small"]
    )
    assert config.train.lr == 1.0
    assert isinstance(config.train.lr, float)
    assert config.train.milestones == (2,)
    assert config.loss.centers_per_class == 4
    assert config.model.backbone == "conv-small"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epoch=3", "there is no setting 'train.epoch'; did you mean 'train.epochs'"),
        ("train.epochs", "expected name=value, such as train.epochs=3"),
        ("training.epochs=3", "there is no group 'training' .*did you mean 'train'"),
        ("train.epochs=few", "train.epochs = 'few' must be .*integer"),
        ("train.epochs=2.5", "train.epochs = 2.5 must be .*integer"),
        ("data.on_error=1", "data.on_error = 1 must be 'stop' or 'skip'"),
        ("train.track=comet", "train.track = 'comet' must be 'tensorboard', 'mlflow' or 'wandb'"),
        ("model.pooling=max", "model.pooling = 'max' must be 'auto', 'average' or 'average.max'"),
        ("train.milestones=[1.5]", "train.milestones = .* must be .*integer"),
        ("loss.centers_per_class=few", "must be .*integer or 'auto'"),
        ("train.hold_out=1.0", "train.hold_out = 1.0 must be less than 1 or 'auto'"),
        ("train.interpolate=1.5", "train.interpolate = 1.5 must be less than or equal to 1 or 'auto'"),
        ("data.test_share=0", "data.test_share = 0 must be greater than 0"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_settings(Config(), [setting])


def test_trackers_are_a_list_or_one_name(tmp_path: Path) -> None:
    assert with_settings(Config(), ["train.track=mlflow"]).train.track == ("mlflow",)
    assert with_settings(Config(), ['train.track=["wandb", "mlflow"]']).train.track == ("wandb", "mlflow")
    file = tmp_path / "old.toml"
    for value, expected in (("true", ("tensorboard",)), ("false", ())):  # as version 0.1 wrote it
        file.write_text(f"[train]\ntensorboard = {value}\n", encoding="utf-8")
        assert read_config(file).train.track == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nepoch = 3\n", "there is no setting 'train.epoch'"),
        ("train = 3\n", "train = 3 must be"),
        ("[train\n", "not valid TOML"),
        ("[train]\nepochs = 'x'\n", "train.epochs = 'x' must be"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        read_config(file)
    assert "mine.toml" in str(caught.value)


def test_unknown_preset() -> None:
    with pytest.raises(ValueError, match="unknown preset 'best'; choose from paper, official, sop"):
        with_preset(Config(), "best")


@pytest.mark.parametrize(
    "setting",
    ["train.batch_size=0", "train.lr=-1e-4", "train.epochs=-1", "train.views=0", "data.cache_gigabytes=nan"],
)
def test_numbers_out_of_range_are_refused(setting: str) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(ValueError, match=rf"--set: {name} = .* must be greater than or equal to"):
        with_settings(Config(), [setting])


def test_a_number_beyond_what_machines_count_is_none() -> None:
    with pytest.raises(ValueError, match="must be less than"):
        with_settings(Config(), [f"train.epochs={10**30}"])
