"""The runs behind a table or a figure: each is trained once, read when it is finished, continued if it was stopped."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from softtriple.config import Config, as_toml, with_settings
from softtriple.metrics import Report
from softtriple.models import Encoder, Preprocess
from softtriple.papers.recipes import under_protocol
from softtriple.progress import Reporter
from softtriple.training.auto import starts_from_weights
from softtriple.training.directory import RunDir
from softtriple.training.train import train

T = TypeVar("T")
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Study:
    """What the runs of a target have in common."""

    data: str
    out: Path
    reporter: Reporter
    seeds: int = 1
    protocol: str = "full"  # what it changes of a recipe, the settings of the user change again
    settings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what the data say of themselves
    lacking: str = ""  # why nothing can be trained here; finished runs are read all the same
    advice: str = ""  # what else to try where something is lacking

    def config(self, recipe: Config, seed: int) -> Config:
        """``recipe`` as it is run here."""
        own = [f"dataset={as_toml(self.data)}", f"train.seed={seed}"]
        return with_settings(under_protocol(recipe, self.protocol), [*self.settings, *own])

    def run_dir(self, row: str, seed: int) -> RunDir:
        """Where a row is run."""
        return RunDir(self.out / row / f"seed-{seed}")


@dataclass(frozen=True)
class Measured(Generic[T]):
    """What was measured of a row, once for each seed; and why not more, if something was in the way."""

    values: tuple[T, ...] = ()
    lacking: str = ""


def measure(
    study: Study, recipes: Mapping[str, Config], look: Callable[[Config, RunDir, Reporter], T]
) -> dict[str, Measured[T]]:
    """What ``look`` finds for every row and seed; a row that cannot be run says why, and the others are run.

    The rows of a study share data and backbone, so a file or package that one of them lacks is not asked for again.
    """
    found, lacking = {}, study.lacking
    for row, recipe in recipes.items():
        values: list[T] = []
        reason = ""
        for seed in range(study.seeds):
            run = study.run_dir(row, seed)
            if lacking and not run.report_file.exists():
                reason = lacking
                break
            study.reporter.note(f"\n{row}, seed {seed}")
            try:
                values.append(look(study.config(recipe, seed), run, study.reporter))
            except (FileNotFoundError, ImportError) as error:
                lacking = reason = f"{error}{study.advice}"
            except (ValueError, OSError, FloatingPointError) as error:
                reason = str(error)
            if reason:
                study.reporter.note(f"{row} is left out: {reason}")
                break
        found[row] = Measured(tuple(values), reason)
    return found


def select(recipes: Mapping[str, T], wanted: Sequence[str] | None) -> dict[str, T]:
    """The rows that ``wanted`` names, in their order in the table; all of them if it names none.

    ``softtriple`` names every row of that loss, whatever follows its name: ``softtriple_64``.
    """
    if not wanted:
        return dict(recipes)
    short = {name: name.partition("_")[0] for name in recipes}
    for name in wanted:
        if name not in recipes and name not in short.values():
            raise ValueError(f"--rows {name}: there is no such row; choose from {', '.join(recipes)}")
    return {name: value for name, value in recipes.items() if name in wanted or short[name] in wanted}


def report_of(config: Config, run: RunDir, reporter: Reporter) -> Report:
    """The report of a run, which is trained first if it has none."""
    if not run.report_file.exists():
        return train(config, run, reporter, resume=True).report
    check_settings(config, run)
    try:
        return Report.from_json(run.report_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{run.report_file}: {error}") from error


def check_settings(config: Config, run: RunDir) -> None:
    """ValueError where a finished run was made with other settings than those of ``config``."""
    if changed := differences(config, run.read_config()):
        raise ValueError(f"{run.path}: the run there has {'; '.join(changed)}; choose another --out, or remove it")


def differences(asked: Config, found: Config) -> list[str]:
    """Settings of ``found`` that are not as ``asked`` for; what was left to choose may be anything."""
    pairs = zip(_leaves(dataclasses.asdict(asked)), _leaves(dataclasses.asdict(found)), strict=True)
    return [
        f"{name} = {_written(have)}, not {_written(want)}"
        for (name, want), (_, have) in pairs
        if want not in ("auto", have)
    ]


def nothing_ran(measured: Mapping[str, Measured[Any]]) -> str:
    """Why no row at all was measured; empty if one was."""
    return "" if any(found.values for found in measured.values()) else next(iter(measured.values())).lacking


def lacking_notes(measured: Mapping[str, Measured[Any]]) -> list[str]:
    """A sentence for each reason why rows were not run, or not with every seed."""
    reasons: dict[str, list[str]] = {}
    for name, found in measured.items():
        if found.lacking:
            reasons.setdefault(found.lacking, []).append(name)
    return [f"Not run, or not with every seed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def facts(study: Study, measured: Mapping[str, Measured[Any]]) -> Facts:
    """What was run, for the head of a table: from the first row that was, because rows differ in their loss only."""
    finished = [study.run_dir(row, 0) for row, found in measured.items() if found.values]
    data = "; ".join(study.notes) or study.data
    changed = (("Changed", ", ".join(study.settings)),) if study.settings else ()
    if not finished:
        return (("Data", data), *changed)
    config, preprocess = finished[0].read_config(), Encoder.load(finished[0].path).preprocess
    model, training = config.model, config.train
    if not isinstance(preprocess, Preprocess):
        pixels = "vectors" if preprocess is None else "texts"
    else:
        pixels = f"{preprocess.size} pixels, augmented by {config.data.augment} in training"
    seeds = "seed 0" if study.seeds == 1 else f"seeds 0 to {study.seeds - 1}"
    rates = f"rate {training.lr:g}, of centres {training.center_lr:g}, a tenth after {listed(training.milestones)}"
    return (
        ("Data", data),
        ("Backbone", model.backbone),
        ("Weights", _weights(config)),
        ("Input", pixels),
        ("Trained", _trained(config)),
        ("Training", f"epochs: {training.epochs}, batch {training.batch_size}, {rates}, {seeds}"),
        *changed,
    )


def _weights(config: Config) -> str:
    if config.model.weights is not None:
        return Path(config.model.weights).name
    return "ImageNet" if starts_from_weights(config.model.backbone) else "none, trained from scratch"


def _trained(config: Config) -> str:
    if config.model.trainable == "all":
        return "all layers"
    return f"{config.model.trainable}, on cached outputs of the frozen layers, {config.train.views} views of each item"


def listed(milestones: Sequence[int]) -> str:
    """Epochs in words."""
    if not milestones:
        return "no epoch"
    *others, last = map(str, milestones)
    return f"epochs {', '.join(others)} and {last}" if others else f"epoch {last}"


def _leaves(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in table.items():
        # The options of a loss are compared as a whole: two losses do not have the same ones.
        if isinstance(value, Mapping) and key != "options":
            leaves += _leaves(value, f"{prefix}{key}.")
        else:
            leaves.append((prefix + key, value))
    return leaves


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
