"""A run as a value: frozen dataclasses, validated by pydantic, read from and written to TOML.

config = read_config("configs/cub/softtriple_64.toml")
config = with_settings(config, ["train.epochs=3", "loss.options.gamma=0.2"])
"""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from softtriple.errors import UserError, did_you_mean

Auto = Literal["auto"]
Count = Annotated[int, Field(strict=True, ge=0, lt=2**63)]
Positive = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
Number = Annotated[float, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]
# A single name needs no brackets.
Track = Annotated[
    tuple[Literal["tensorboard", "mlflow", "wandb"], ...],
    BeforeValidator(lambda names: (names,) if isinstance(names, str) else names),
]

FORMAT = 1  # of config.toml in a run directory; increase it when older versions would misread the file

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DataConfig:
    """The data: how to read them and how to split them."""

    # None: use the source's default. A value the source does not support is an error.
    split: str | None = None  # "classes", "instances", or a column of the table with "train" and "test"
    test_share: Annotated[Share, Field(gt=0, lt=1)] | None = None  # of the classes or instances; default one half
    path: str | None = None  # column names of a table: either path or text, and label
    text: str | None = None
    label: str | None = None
    labels: str | None = None  # .csv of corrected labels with columns item and label, as written by the gallery
    # crop: the paper's; resized-crop: that of the authors' code; affine: for drawings
    augment: Literal["auto", "none", "crop", "resized-crop", "affine"] = "auto"
    cache_gigabytes: Number = 8.0  # limit of the image cache, and of the feature cache; 0 turns both off
    on_error: Literal["stop", "skip"] = "stop"
    exclude: str | None = None  # .csv of items to leave out, such as audit.csv of `softtriple audit`
    workers: Count | Auto = "auto"  # threads that decode and crop images; auto: one per core

    @property
    def num_workers(self) -> int | None:
        """Threads that decode images; None is one per core."""
        return None if self.workers == "auto" else self.workers


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ModelConfig:
    """The encoder: backbone, pooling and head."""

    backbone: str = "auto"
    dim: Positive | Auto = "auto"
    dims: tuple[Positive, ...] = ()  # prefixes of the embedding to train (Matryoshka), ascending; the last is its width
    pooling: Literal["auto", "average", "average+max"] = "auto"  # auto: average+max for images with published weights
    layer_norm: Flag | Auto = "auto"  # before the head, without parameters; auto: as for pooling
    input_size: Positive | None = None  # pixels, for backbones that accept any size
    eval_size: Positive | None = None  # pixels in evaluation, if different: train at 160, test at 224
    hidden: tuple[Positive, ...] = ()  # widths of the hidden layers of mlp
    weights: str | None = None  # file or URL of pretrained weights, if they are not installed
    freeze_batch_norm: Literal["auto", "off", "statistics", "statistics+affine"] = "auto"
    trainable: str = "auto"  # "head", "last:N", "all", or "lora" for transformers
    head_init: Literal["auto", "random", "pca", "whitened"] = "auto"  # auto: whitened if the features are of use
    head_power: Share | Auto = "auto"  # strength of within-class whitening, from 0 (PCA) to 1 (full)
    head_shrinkage: Share | Auto = "auto"  # shrinkage of the within-class covariance towards the identity
    head_center: Share | Flag | Auto = "auto"  # share of the mean of the features that is subtracted; true: all of it
    head_standardize: Flag | Auto = "auto"  # divide features by their standard deviation before whitening


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class LossConfig:
    """The loss and its options; an option that the loss does not have is an error."""

    name: str = "softtriple"
    centers_per_class: Positive | Auto = "auto"  # for losses with centres
    sample_rate: float = 1.0  # share of the classes used in each step: softtriple and softmax-norm, for many classes
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TrainConfig:
    """The optimisation; "auto" depends on what is trained, and the run records the value it chose."""

    # Time budget for a pretrained network; decides how many of its stages are trained
    minutes: Number | None = None
    # About 460 steps for a head on fixed features, 6 epochs for pretrained layers, else the paper's 50
    epochs: Count | Auto = "auto"
    batch_size: Positive | Auto = "auto"  # 128 for a head on fixed features, else the paper's 32
    lr: Number | Auto = "auto"  # 4e-4 for a head on fixed features (1.6e-3 for texts), else 1e-4; from scratch 1e-3
    head_lr: Number | Auto = "auto"  # of the linear head; auto: 4e-4 on top of trained pretrained layers, else as lr
    center_lr: Number = 1e-2
    # auto: step for networks trained from scratch or if there are milestones, else cosine
    schedule: Literal["auto", "step", "cosine"] = "auto"
    milestones: tuple[Count, ...] | Auto = "auto"  # step: epochs after which rates are divided by 10; auto: 40 %, 80 %
    weight_decay: Number = 0.0
    adam_epsilon: Number = 1e-8
    warm_up_epochs: Count = 0  # first train only the head and the centres
    accumulate: Positive = 1  # batches per optimiser step
    views: Positive = 4  # augmented views of each image in the feature cache
    # Share of the training classes held out for validation; auto: an eighth while pretrained layers are trained, else 0
    hold_out: Annotated[Share, Field(lt=1)] | Auto = "auto"
    # Choose the start of a head on fixed features, and when to stop, on held-out training classes
    choose: Literal["on", "off"] = "on"
    stop_after: Count | Auto = "auto"  # epochs to train, at most ``epochs``, which the schedule is planned for
    # Final weights: 0 the initial ones, 1 the trained ones, or a mixture. auto: chosen on held-out training classes for
    # a head on fixed features and for pretrained layers, else 1
    interpolate: Share | Auto = "auto"
    evaluate_every: Count = 0  # epochs between evaluations; 0: only at the end
    # auto: on CUDA bfloat16, or float16 where that is not supported; on a CPU float32, or bfloat16 for pretrained
    # networks if the CPU has instructions for it
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # torch.compile; auto: on CUDA, if more than the head is trained for at least 2000 steps
    compile: Literal["auto", "on", "off"] = "auto"
    seed: Count = 0
    start: str | None = None  # run directory to take the encoder from, and the centres of classes with the same name
    checkpoint_minutes: Number = 10.0  # between checkpoints in long epochs; every epoch ends with one
    track: Track = ()  # also log metrics to these services


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Config:
    """Everything that determines what a run computes."""

    dataset: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


# The training settings of the paper, without choices on held-out classes.
PAPER: dict[str, Any] = {
    "model.pooling": "average",
    "model.layer_norm": False,
    "model.head_init": "random",
    "train.epochs": 50,
    "train.batch_size": 32,
    "train.schedule": "step",
    "train.milestones": (20, 40),
    "train.choose": "off",
}
# The paper's recipe, that of the authors' code, and the paper's settings for SOP.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {**PAPER, "data.augment": "crop"},
    "official": {
        **PAPER,
        "data.augment": "resized-crop",
        "train.adam_epsilon": 0.01,
        "train.weight_decay": 1e-4,
        "train.milestones": (19, 39),
        "loss.options.smoothing": 1e-5,
    },
    "sop": {
        "loss.centers_per_class": 2,
        "loss.options.tau": 0.0,
        "train.center_lr": 0.1,
        "model.freeze_batch_norm": "off",
    },
}


def read_config(path: str | Path) -> Config:
    """The configuration in a TOML file."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    check_format(path, table.pop("format", None), FORMAT)
    if isinstance(table.get("train"), dict) and table["train"].pop("tensorboard", False):  # a setting of version 0.1
        table["train"].setdefault("track", ["tensorboard"])
    return _build(table, str(path))


def check_format(path: str | Path, number: Any, supported: int) -> None:
    """UserError for a file whose format number is newer than ``supported``; old files may have none."""
    if number is not None and type(number) is not int:
        raise UserError(f"{path}: format = {number!r} must be an integer")
    if number is not None and number > supported:
        raise UserError(
            f"{path}: written by a newer softtriple (format {number}, this version reads {supported})."
            " Update softtriple."
        )


def write_config(config: Config) -> str:
    """The configuration as TOML; `read_config` gives back an equal value."""
    return tomli_w.dumps(_without_none(dataclasses.asdict(config)))


def with_preset(config: Config, name: str) -> Config:
    """The configuration with the settings of a published recipe."""
    if name not in PRESETS:
        raise UserError(f"unknown preset {name!r}; {did_you_mean(name, PRESETS)}")
    return with_values(config, PRESETS[name])


def with_settings(config: Config, settings: Iterable[str]) -> Config:
    """The configuration with single values changed: ``["train.epochs=3", "loss.options.gamma=0.2"]``."""
    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: expected name=value, such as train.epochs=3")
        values[name.strip()] = _parse(text.strip())
    return with_values(config, values, where="--set")


def with_values(config: Config, values: Mapping[str, Any], where: str = "settings") -> Config:
    """The configuration with values changed by dotted name: ``{"train.epochs": 3}``."""
    table = dataclasses.asdict(config)
    for name, value in values.items():
        *groups, key = name.split(".")
        place = table
        for group in groups:
            if not isinstance(place.get(group), dict):
                raise UserError(f"{where}: there is no group {group!r} in {name}; {did_you_mean(group, place)}")
            place = place[group]
        if key not in place and groups != ["loss", "options"]:
            known = [".".join([*groups, other]) for other in place]
            raise UserError(f"{where}: there is no setting {name!r}; {did_you_mean(name, known)}")
        place[key] = value
    return _build(table, where)


def setting_names() -> dict[str, str]:
    """The dotted name of every setting by its last part: ``{"epochs": "train.epochs", ...}``."""
    groups = {"data": DataConfig, "model": ModelConfig, "loss": LossConfig, "train": TrainConfig}
    return {entry.name: f"{group}.{entry.name}" for group, kind in groups.items() for entry in dataclasses.fields(kind)}


def _build(table: Mapping[str, Any], where: str) -> Config:
    try:
        return TypeAdapter(Config).validate_python(table)
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error, table)}") from None


def _explain(error: ValidationError, table: Any) -> str:
    """The first problem that pydantic found in ``table``, in one line."""
    first, *others = error.errors()
    key = _key_in(first["loc"], table)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        known = _known_keys(key[:-1])
        return f"there is no setting {'.'.join(key)!r}" + (f"; {did_you_mean(key[-1], known)}" if known else "")
    if first["type"] in ("missing", "missing_argument"):
        return f"{'.'.join(map(str, first['loc']))!r} is missing"
    value = table
    for part in key:
        value = value[part] if isinstance(value, Mapping) else value
    # A value that fits no alternative of a union has an error for each of them.
    messages = [e["msg"] for e in (first, *others) if _key_in(e["loc"], table) == key]
    expected = " or ".join(dict.fromkeys(message.removeprefix("Input should be ") for message in messages))
    return f"{'.'.join(key)} = {value!r} must be {expected}"


def _key_in(loc: tuple[int | str, ...], table: Any) -> list[str]:
    """The part of an error's location that consists of keys of ``table``; the rest names alternatives of a union."""
    key: list[str] = []
    for part in loc:
        if not isinstance(table, Mapping) or part not in table:
            break
        key.append(str(part))
        table = table[part]
    return key or [str(part) for part in loc[:1]]


def _known_keys(groups: list[str]) -> list[str]:
    kind: Any = Config
    for group in groups:
        kind = next((entry.type for entry in dataclasses.fields(kind) if entry.name == group), None)
        if not dataclasses.is_dataclass(kind):
            return []
    return [entry.name for entry in dataclasses.fields(kind)]


def _parse(text: str) -> Any:
    """``text`` as a TOML value, or as a string if it is not one, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _without_none(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in table.items()
        if value is not None
    }
