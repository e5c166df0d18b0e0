"""A run as a value: frozen dataclasses, read from TOML with strict keys, written back resolved.

config = read_config("configs/cub/softtriple_64.toml")
config = with_settings(config, ["train.epochs=3", "loss.options.gamma=0.2"])
"""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Auto = Literal["auto"]

FORMAT = 1  # of the configuration in a run directory: raise it when an older softtriple would misread what is written


def _at_least(group: str, least: int, **values: int | float) -> None:
    for name, value in values.items():
        if not value >= least:  # also where it is no number at all
            raise ValueError(f"{group}.{name} = {value} must be at least {least}")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to learn from, and how it is divided."""

    # None: as the source has it by itself. Not every source has each of these, and one that is given is insisted on.
    split: str | None = None  # "classes", "instances", or a column of the table that says train or test
    test_share: float | None = None  # of the classes or instances, by itself a half
    path: str | None = None  # columns of a table, by themselves of these names; path and text exclude each other
    text: str | None = None
    label: str | None = None
    # the paper's crop, the resized crop of the authors' code, or affine for drawings
    augment: Literal["auto", "none", "crop", "resized-crop", "affine"] = "auto"
    cache_gigabytes: float = 8.0  # for resized images and trunk outputs, each; 0 turns the caches off
    on_error: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        _at_least("data", 0, cache_gigabytes=self.cache_gigabytes)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder: a backbone, how it is pooled, and the width of the embedding."""

    backbone: str = "auto"
    dim: int | Auto = "auto"  # 64; 63 for losses with three heads
    pooling: Literal["average", "average+max"] = "average"
    layer_norm: bool = False
    input_size: int | None = None  # pixels, for networks that take any
    hidden: tuple[int, ...] = ()  # layers of mlp
    weights: str | None = None  # a file or address for networks whose weights are not at hand
    freeze_batch_norm: Literal["auto", "off", "statistics", "statistics+affine"] = "auto"
    trainable: str = "auto"  # "head", "last:N", "all"
    head_init: Literal["auto", "random", "pca"] = "auto"  # auto: pca where published weights give features


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Which loss, and its own options; an option that the loss does not have is an error."""

    name: str = "softtriple"
    centers_per_class: int | Auto = "auto"  # for losses that have centres
    sample_rate: float = 1.0  # share of the classes that a step looks at, for very many: softtriple and softmax-norm
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long and how fast to train; the defaults are the paper's."""

    epochs: int = 50
    batch_size: int = 32
    lr: float | Auto = "auto"  # backbone: 1e-4 from published weights (the paper) or linear, else 1e-3
    head_lr: float | None = None  # the linear head; None: as the backbone
    center_lr: float = 1e-2
    milestones: tuple[int, ...] = (20, 40)  # epochs after which all rates are divided by ten
    weight_decay: float = 0.0
    adam_epsilon: float = 1e-8
    warm_up_epochs: int = 0  # epochs in which only the head and the centres learn
    accumulate: int = 1  # batches that make one step of the optimiser
    views: int = 4  # augmented views of each image when the outputs of a frozen trunk are kept
    hold_out: float = 0.0  # share of the training classes kept back to choose by
    evaluate_every: int = 0  # epochs; 0: only at the end
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # auto: float16 on CUDA, else float32
    seed: int = 0
    checkpoint_minutes: float = 10.0  # within long epochs; there is always one at the end of each
    tensorboard: bool = False

    def __post_init__(self) -> None:
        _at_least("train", 1, batch_size=self.batch_size, accumulate=self.accumulate, views=self.views)
        rates = {"lr": self.lr, "head_lr": self.head_lr, "center_lr": self.center_lr, "hold_out": self.hold_out}
        _at_least("train", 0, **{name: rate for name, rate in rates.items() if isinstance(rate, float)})
        _at_least("train", 0, epochs=self.epochs, warm_up_epochs=self.warm_up_epochs, seed=self.seed)
        _at_least("train", 0, weight_decay=self.weight_decay, adam_epsilon=self.adam_epsilon)
        _at_least("train", 0, evaluate_every=self.evaluate_every, checkpoint_minutes=self.checkpoint_minutes)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides what a run computes."""

    dataset: str = ""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    train: TrainConfig = TrainConfig()


# What the two published recipes say, so that a result can be attributed to one of them.
PRESETS: dict[str, list[str]] = {
    "paper": ["data.augment=crop", "model.head_init=random"],
    "official": [
        "data.augment=resized-crop",
        "model.head_init=random",
        "train.adam_epsilon=0.01",
        "train.weight_decay=1e-4",
        "train.milestones=[19, 39]",
        "loss.options.smoothing=1e-5",
    ],
    "sop": [
        "loss.centers_per_class=2",
        "loss.options.tau=0.0",
        "train.center_lr=0.1",
        "model.freeze_batch_norm=off",
    ],
}


def read_config(path: str | Path) -> Config:
    """The configuration in a TOML file."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from None
    refuse_newer(path, table.pop("format", None), FORMAT)
    _drop_old_defaults(table.get("data"))
    config = build_checked(Config, table, where=str(path))
    assert isinstance(config, Config)
    return config


def refuse_newer(path: str | Path, found: Any, known: int) -> None:
    """Refuse a file whose format number is that of a newer softtriple; files without a number are older."""
    if found is not None and type(found) is not int:
        raise ValueError(f"{path}: format = {found!r} is not a whole number")
    if found is not None and found > known:
        raise ValueError(f"{path}: written by a newer softtriple (format {found}, this one reads {known}): update it")


def write_config(config: Config) -> str:
    """The configuration as TOML that ``read_config`` reads back to an equal value."""
    lines: list[str] = []
    _write_table(dataclasses.asdict(config), "", lines)
    return "\n".join(lines).strip() + "\n"


def as_toml(value: Any) -> str:
    """A text, a number, a truth value or a list of them as TOML reads it."""
    if isinstance(value, float):
        return repr(value)  # also inf, for which JSON has another word
    # JSON writes the rest the same way, but need not escape one letter that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def with_preset(config: Config, name: str) -> Config:
    """The configuration changed by a published recipe."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose from {', '.join(PRESETS)}")
    return with_settings(config, PRESETS[name])


def with_settings(config: Config, settings: Iterable[str]) -> Config:
    """The configuration with single values changed: ``["train.epochs=3", "loss.options.gamma=0.2"]``."""
    table = dataclasses.asdict(config)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set {setting}: write it as name=value, such as train.epochs=3")
        *groups, key = name.strip().split(".")
        place = table
        for group in groups:
            if not isinstance(place.get(group), dict):
                raise ValueError(f"--set {setting}: there is no group {group!r}; {_known(place)}")
            place = place[group]
        if key not in place and groups != ["loss", "options"]:
            raise ValueError(f"--set {setting}: there is no {name!r}; {_known(place)}")
        place[key] = _parse(text.strip())
    rebuilt = build_checked(Config, table, where="--set")
    assert isinstance(rebuilt, Config)
    return rebuilt


def _drop_old_defaults(data: Any) -> None:
    """Forget what runs used to write without being told; only they name both columns, which exclude each other."""
    if isinstance(data, dict) and {"path", "text"} <= data.keys():
        for key, value in {
            "split": "classes",
            "test_share": 0.5,
            "path": "path",
            "text": "text",
            "label": "label",
        }.items():
            if data.get(key) == value:
                del data[key]


def _parse(text: str) -> Any:
    """A value as TOML has it; anything else is a string, so that names need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _known(table: Mapping[str, Any]) -> str:
    return f"choose from {', '.join(table)}" if table else "it has no names"


def build_checked(kind: type, table: Mapping[str, Any], where: str, prefix: str = "") -> Any:
    """The dataclass ``kind`` from a table as TOML or JSON give it, or ValueError that names ``where`` and the key."""
    hints = typing.get_type_hints(kind)
    unknown = [key for key in table if key not in hints]
    if unknown:
        raise ValueError(f"{where}: there is no {prefix + unknown[0]!r}; {_known(hints)}")
    values = {key: _checked(hints[key], value, where, prefix + key) for key, value in table.items()}
    for entry in dataclasses.fields(kind):
        if entry.name not in values and entry.default is entry.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where}: {prefix + entry.name!r} is missing")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _checked(kind: Any, value: Any, where: str, key: str) -> Any:
    """``value`` as the annotation ``kind`` wants it, or ValueError that says what it wants."""
    if value is None and type(None) in typing.get_args(kind):
        return None
    for option in _options(kind):
        if dataclasses.is_dataclass(option) and isinstance(option, type) and isinstance(value, Mapping):
            return build_checked(option, value, where, prefix=f"{key}.")
        converted = _convert(option, value)
        if converted is not None:
            return converted
    wanted = " or ".join(_describe(option) for option in _options(kind))
    raise ValueError(f"{where}: {key} = {value!r} is not {wanted}")


def _options(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return [option for option in typing.get_args(kind) if option is not type(None)]
    return [kind]


def _convert(kind: Any, value: Any) -> Any:
    """``value`` as ``kind``, or None if it is not one; no value here is None itself."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return value if value in typing.get_args(kind) else None
    if origin is tuple:
        inner = typing.get_args(kind)[0]
        if isinstance(value, list | tuple) and all(type(item) is inner for item in value):
            return tuple(value)
        return None
    if origin is not None:  # Mapping[str, Any]
        return dict(value) if isinstance(value, Mapping) else None
    if type(value) is int and kind in (int, float) and not -(2**63) <= value < 2**63:  # as TOML has it, and torch
        return None
    if kind is float and type(value) is int:
        return float(value)
    return value if type(value) is kind else None


def _describe(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    origin = typing.get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, typing.get_args(kind)))
    if origin is tuple:
        return "a list, each " + names[typing.get_args(kind)[0]]
    return names.get(kind, "a table")


def _write_table(table: Mapping[str, Any], name: str, lines: list[str]) -> None:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping) and value is not None}
    groups = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if name and (plain or not groups):
        lines.append(f"\n[{name}]")
    lines.extend(f"{key} = {as_toml(value)}" for key, value in plain.items())
    for key, value in groups.items():
        _write_table(value, f"{name}.{key}" if name else key, lines)
