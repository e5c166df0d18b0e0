"""A run as a value: frozen dataclasses, validated by pydantic, read from and written to TOML.

config = read_config("configs/cub/softtriple_64.toml")
config = with_settings(config, ["train.epochs=3", "loss.options.gamma=0.2"])
"""

import copy
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
Flag = Annotated[bool, Field(strict=True)]
# One name may stand without brackets.
Track = Annotated[
    tuple[Literal["tensorboard", "mlflow", "wandb"], ...],
    BeforeValidator(lambda names: (names,) if isinstance(names, str) else names),
]

FORMAT = 1  # of config.toml in a run directory: raise it when an older softtriple would misread what is written

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class DataConfig:
    """What to learn from, and how it is split."""

    # None: use the source's default. A value the source does not support is an error.
    split: str | None = None  # "classes", "instances", or a column of the table that says train or test
    test_share: float | None = None  # of the classes or instances; default one half
    path: str | None = None  # columns of a table; path and text exclude each other
    text: str | None = None
    label: str | None = None
    labels: str | None = None  # .csv file with the columns item and label, such as the gallery writes: corrected labels
    # the paper's crop, the resized crop of the authors' code, or affine for drawings
    augment: Literal["auto", "none", "crop", "resized-crop", "affine"] = "auto"
    cache_gigabytes: Number = 8.0  # for resized images and for cached features, each; 0 turns the caches off
    on_error: Literal["stop", "skip"] = "stop"
    exclude: str | None = None  # a .csv of items to leave out, such as the audit.csv of `softtriple audit`
    workers: Count | Auto = "auto"  # threads that decode and augment images in advance; auto: as many as cores

    @property
    def num_workers(self) -> int | None:
        """Threads that decode images, or None for as many as cores."""
        return None if self.workers == "auto" else self.workers


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ModelConfig:
    """The encoder: a backbone, its pooling, and the width of the embedding."""

    backbone: str = "auto"
    dim: Positive | Auto = "auto"
    dims: tuple[Positive, ...] = ()  # widths that must work by themselves, growing; the last one is the embedding's
    pooling: Literal["auto", "average", "average+max"] = "auto"  # auto: average+max for images with published weights
    layer_norm: Flag | Auto = "auto"  # before the head, without parameters; auto: as for pooling
    input_size: Positive | None = None  # pixels, for backbones that accept any size
    eval_size: Positive | None = None  # pixels in evaluation, if they differ: train at 160, test at 224
    hidden: tuple[Positive, ...] = ()  # layer widths of mlp
    weights: str | None = None  # file or URL, for backbones whose weights are not installed
    freeze_batch_norm: Literal["auto", "off", "statistics", "statistics+affine"] = "auto"
    trainable: str = "auto"  # "head", "last:N", "all", or "lora" for transformers
    head_init: Literal["auto", "random", "pca", "whitened"] = (
        "auto"  # auto: whitened if there are features to start from
    )
    head_power: Number | Auto = "auto"  # of within-class whitening; 0 is PCA, 1 equalises all variances within classes
    head_shrinkage: Number | Auto = "auto"  # of the within-class covariance towards a multiple of the identity
    head_center: Flag | Auto = "auto"  # whether the head subtracts the mean of the features
    head_standardize: Flag | Auto = "auto"  # whether columns are divided by their standard deviation before whitening


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class LossConfig:
    """Which loss, and its own options; an option that the loss does not have is an error."""

    name: str = "softtriple"
    centers_per_class: Positive | Auto = "auto"  # for losses that have centres
    sample_rate: float = 1.0  # share of the classes that a step sees, for very many: softtriple and softmax-norm
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TrainConfig:
    """How long and how fast to train; "auto" depends on what is trained, and is recorded resolved."""

    # A budget for training a network with published weights, which decides what is trained; the decision is recorded
    minutes: Number | None = None
    epochs: Count | Auto = "auto"  # about 460 steps for a head on fixed features, else the paper's 50
    batch_size: Positive | Auto = "auto"  # 128 for a head on fixed features, else the paper's 32
    lr: Number | Auto = "auto"  # head on fixed features 4e-4 (texts 1.6e-3), published weights 1e-4, from scratch 1e-3
    head_lr: Number | None = None  # the linear head; None: same as the backbone
    center_lr: Number = 1e-2
    schedule: Literal["auto", "step", "cosine"] = "auto"  # auto: cosine for a head on fixed features, else step
    milestones: tuple[Count, ...] | Auto = "auto"  # step: epochs after which rates drop tenfold; auto: at 40 % and 80 %
    weight_decay: Number = 0.0
    adam_epsilon: Number = 1e-8
    warm_up_epochs: Count = 0  # epochs in which only the head and the centres learn
    accumulate: Positive = 1  # batches per optimiser step
    views: Positive = 4  # augmented views of each image when features of frozen layers are cached
    hold_out: Number = 0.0  # share of the training classes held out for validation
    # Whether held-out training classes decide where a head on fixed features starts and how far it trains
    choose: Literal["on", "off"] = "on"
    stop_after: Count | Auto = "auto"  # epochs to train, at most all ``epochs`` that the schedule is laid out for
    interpolate: Number | Auto = "auto"  # share of the way from the start of the head to its end; 1 keeps the end
    evaluate_every: Count = 0  # epochs; 0: only at the end
    # auto: bfloat16 on CUDA devices that support it, float16 on others; on a CPU bfloat16 for networks with published
    # weights if it has instructions for it, else float32
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    # torch.compile of what is trained; auto: on CUDA, if more than the head is trained for at least 2000 steps
    compile: Literal["auto", "on", "off"] = "auto"
    seed: Count = 0
    start: str | None = None  # a run directory: its encoder, and its centres of classes with the same name
    checkpoint_minutes: Number = 10.0  # within long epochs; there is always one at the end of an epoch
    track: Track = ()  # where the numbers go besides the run directory


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Config:
    """Everything that decides what a run computes."""

    dataset: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


# What the paper trains with, and no choice by held-out classes.
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
# The two published recipes and the paper's settings for SOP, so that a result can be attributed to one of them.
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


def check_format(path: str | Path, found: Any, known: int) -> None:
    """UserError for a file whose format number is newer than this softtriple reads; old files may have none."""
    if found is not None and type(found) is not int:
        raise UserError(f"{path}: format = {found!r} must be an integer")
    if found is not None and found > known:
        raise UserError(
            f"{path}: written by a newer softtriple (format {found}, this version reads {known}). Update softtriple."
        )


def write_config(config: Config) -> str:
    """The configuration as TOML that `read_config` reads back to an equal value."""
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
    table = copy.deepcopy(dataclasses.asdict(config))
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
        raise UserError(f"{where}: {explain_validation(error, table)}") from None


def explain_validation(error: ValidationError, table: Any) -> str:
    """What is wrong with the first wrong entry of ``table``, in one line."""
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
    wanted = [e["msg"] for e in (first, *others) if _key_in(e["loc"], table) == key]
    expected = " or ".join(dict.fromkeys(text.removeprefix("Input should be ") for text in wanted))
    return f"{'.'.join(key)} = {value!r} must be {expected}"


def _key_in(loc: tuple[int | str, ...], table: Any) -> list[str]:
    """The part of an error's location that names keys of ``table``; what follows names alternatives of a union."""
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
    """A value as TOML writes it; anything else is a string, so that names need no quotes."""
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
