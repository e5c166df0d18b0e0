"""The arguments of `train`: one configuration from them, and what can be wrong with it before any data are read."""

import os
from pathlib import Path
from typing import Any

from torch import nn

from softtriple import dist
from softtriple.config import Config, setting_names, with_values
from softtriple.data import Benchmark, absolute_spec
from softtriple.errors import UserError, did_you_mean
from softtriple.losses import check_loss
from softtriple.models import check_backbone, check_trainable
from softtriple.models.backbones.module import module_name
from softtriple.models.backbones.timm import check_timm_name
from softtriple.training.auto import CUSTOM, check_compile, check_dims
from softtriple.training.continuing import check_start
from softtriple.training.directory import RunDir
from softtriple.training.loading import check_lists
from softtriple.training.plan import check_budget
from softtriple.training.tracking import check_trackers

Data = str | os.PathLike[str] | Benchmark | tuple[Any, Any]


def configure(
    config: Config,
    data: Data,
    backbone: str | nn.Module | None,
    loss: str | nn.Module | None,
    settings: dict[str, Any],
) -> Config:
    """``config`` with the arguments of `train` applied; a module is recorded by the name of its class."""
    names = setting_names()
    values = {}
    for name, value in settings.items():
        if name not in names:
            raise UserError(f"there is no setting {name!r}; {did_you_mean(name, names)}")
        values[names[name]] = value
    if values.get("train.start") is not None:
        values["train.start"] = str(Path(values["train.start"]).absolute())
    values["dataset"] = absolute_spec(data) if isinstance(data, str) else ""
    for name, given in (("model.backbone", backbone), ("loss.name", loss)):
        if given is not None:
            values[name] = module_name(given) if isinstance(given, nn.Module) else given
    config = with_values(config, values)
    files = {"data.exclude": config.data.exclude, "data.labels": config.data.labels}
    return with_values(
        config, {name: str(Path(file).expanduser().absolute()) for name, file in files.items() if file is not None}
    )


def check(config: Config, directory: RunDir | None, *, resume: bool) -> None:
    """UserError for everything that can be known to be wrong before data are read or weights loaded."""
    if directory is not None and dist.is_main():
        directory.check(resume=resume)
    check_dims(config)
    if not config.loss.name.startswith(CUSTOM):
        centers = None if config.loss.centers_per_class == "auto" else config.loss.centers_per_class
        check_loss(
            config.loss.name, config.loss.options, centers_per_class=centers, sample_rate=config.loss.sample_rate
        )
    if not config.model.backbone.startswith(CUSTOM) and config.model.backbone != "auto":
        check_backbone(config.model.backbone, weights=config.model.weights)
        if config.model.backbone.startswith("timm:"):
            check_timm_name(config.model.backbone)
    if config.model.trainable != "auto":
        check_trainable(config.model.trainable)
    if not resume:
        if config.train.schedule == "cosine" and config.train.milestones not in ("auto", ()):
            given = list(config.train.milestones)
            raise UserError(
                f"train.milestones = {given} has no effect with a cosine schedule; leave it out, or use steps: "
                "--set train.schedule=step"
            )
        check_budget(config)
        check_start(config)
        check_lists(config)
    check_trackers(config.train.track, directory)
    check_compile(config, dist.device())


def check_data(config: Config, data: object) -> None:
    """UserError if ``data`` are neither a source nor values, or for settings that have no effect on values."""
    if isinstance(data, str):
        return
    if not isinstance(data, Benchmark) and not (isinstance(data, tuple) and len(data) == 2):
        raise UserError(
            f"data are a {type(data).__name__}; expected a source such as 'photos/', a Benchmark, or a tuple of items "
            "and labels"
        )
    unused = ["path", "text", "label", *(["split", "test_share"] if isinstance(data, Benchmark) else [])]
    for name in unused:
        if (value := getattr(config.data, name)) is not None:
            raise UserError(f"data.{name} = {value!r} has no effect on a {type(data).__name__}; leave it out")
