"""The runs behind a table or figure: trained once, resumed if interrupted, read when finished."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from matplotlib.figure import Figure

from softtriple.config import Config, with_settings, with_values
from softtriple.data import Benchmark, absolute_spec
from softtriple.errors import UserError, counted, did_you_mean
from softtriple.metrics import Report
from softtriple.models.description import read_description
from softtriple.papers.hdc import train_hdc
from softtriple.papers.recipes import PROTOCOLS, RATES
from softtriple.papers.sheets import Block, Facts, Result, Sheet
from softtriple.progress import Reporter
from softtriple.report.page import describe_trainable
from softtriple.training import Run, train
from softtriple.training.auto import starts_from_weights
from softtriple.training.directory import RunDir, differences

HELD_OUT = 0.25  # share of the training classes that choose a learning rate

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Study:
    """The common settings of all runs of a target."""

    data: str
    out: Path
    reporter: Reporter
    seeds: int = 1
    protocol: str = "paper"
    settings: tuple[str, ...] = ()  # of the user; they override recipe and protocol
    benchmark: Benchmark | None = None  # None: the data are missing, so only finished runs can be read
    lacking: str = ""  # why the data are missing
    advice: str = ""  # what to try if a file or package is missing

    def config(self, recipe: Config, seed: int) -> Config:
        """The configuration of a run of ``recipe``."""
        config = with_settings(with_values(recipe, PROTOCOLS[self.protocol]), self.settings)
        return with_values(config, {"dataset": absolute_spec(self.data), "train.seed": seed})

    def directory(self, row: str, seed: int) -> RunDir:
        """The directory of a run."""
        return RunDir(self.out / row / f"seed-{seed}")


@dataclass(frozen=True)
class Measured(Generic[T]):
    """The values of a row, one per seed, and why seeds are missing, if any are."""

    values: tuple[T, ...] = ()
    lacking: str = ""


def measure(
    study: Study, recipes: Mapping[str, Config], look: Callable[[Config, RunDir, Reporter], T]
) -> dict[str, Measured[T]]:
    """The result of ``look`` for every row and seed, or the reason why a row cannot be run.

    A finished run with other settings is not used. All rows use the same data and backbone, so if a file or package is
    missing for one row, the others are not tried.
    """
    measured, lacking = {}, study.lacking
    for row, recipe in recipes.items():
        values: list[T] = []
        reason = ""
        for seed in range(study.seeds):
            directory = study.directory(row, seed)
            finished = directory.report_file.exists()
            if lacking and not finished:
                reason = lacking
                break
            study.reporter.note(f"\n{row}, seed {seed}")
            try:
                config = with_chosen_rate(study, row, study.config(recipe, seed))
                if finished and (changed := departures(config, directory.read_config())):
                    raise UserError(f"{directory.path}: this run has {'; '.join(changed)}. Choose another --out.")
                values.append(look(config, directory, study.reporter))
            except (FileNotFoundError, ImportError) as error:
                lacking = reason = f"{error}{study.advice}"
            except (UserError, OSError, FloatingPointError) as error:
                reason = str(error)
            if reason:
                study.reporter.note(f"{row} skipped: {reason}")
                break
        measured[row] = Measured(tuple(values), reason)
    return measured


def with_chosen_rate(study: Study, row: str, config: Config) -> Config:
    """``config`` with the learning rate of the protocol that retrieves held-out training classes best.

    The candidates are runs of their own, beside those of the row. HDC keeps its rate: its heads start at random.
    """
    rates = RATES.get(study.protocol, ())
    given = any(setting.partition("=")[0].strip() == "train.lr" for setting in study.settings)
    if not rates or given or config.loss.name == "hdc":
        return config
    scores = {}
    for rate in rates:
        directory = RunDir(study.out / row / f"rate-{rate:g}")
        trial = with_values(config, {"train.lr": rate, "train.hold_out": HELD_OUT, "train.seed": 0})
        report = validation_of(trial, directory, study.reporter)
        scores[rate] = report.recall[1] + report.map_at_r
    return with_values(config, {"train.lr": max(scores, key=lambda rate: scores[rate])})


def validation_of(config: Config, directory: RunDir, reporter: Reporter) -> Report:
    """The report of a run on held-out training classes; the run is trained first if it is not finished."""
    if directory.report_file.exists():
        return directory.read_report(directory.validation_file)
    validation = run_of(config, directory, reporter).validation
    assert validation is not None
    return validation


def select(rows: Mapping[str, T], wanted: Sequence[str] | None) -> dict[str, T]:
    """The rows that ``wanted`` names, in the order of the table; all of them if it is empty.

    ``softtriple`` names every row of that loss, such as ``softtriple_64``.
    """
    if not wanted:
        return dict(rows)
    losses = {name: name.partition("_")[0] for name in rows}
    for name in wanted:
        if name not in rows and name not in losses.values():
            raise UserError(f"--rows {name}: there is no such row; {did_you_mean(name, rows)}")
    return {name: row for name, row in rows.items() if name in wanted or losses[name] in wanted}


def report_of(config: Config, directory: RunDir, reporter: Reporter) -> Report:
    """The report of a run, which is trained first if it is not finished."""
    if directory.report_file.exists():
        return directory.read_report(directory.report_file)
    if config.loss.name == "hdc":
        return train_hdc(config, directory, reporter).report
    return run_of(config, directory, reporter).report


def run_of(config: Config, directory: RunDir, reporter: Reporter) -> Run:
    """A finished run: loaded, or trained first."""
    if directory.report_file.exists():
        return Run.load(directory.path, reporter=reporter)
    return train(config.dataset, out=directory.path, config=config, resume=directory.path.exists(), reporter=reporter)


def departures(recipe: Config, used: Config) -> list[str]:
    """The settings of ``used`` that differ from ``recipe``, in which "auto" matches any value."""

    def written(value: Any) -> str:
        return "the default" if value is None else json.dumps(value, ensure_ascii=False)

    return [
        f"{name} = {written(have)}, not {written(want)}"
        for name, want, have in differences(recipe, used)
        if want != "auto"
    ]


def nothing_ran(measured: Mapping[str, Measured[Any]]) -> str:
    """Why nothing was measured; empty if at least one row was."""
    return "" if any(row.values for row in measured.values()) else next(iter(measured.values())).lacking


def lacking_notes(measured: Mapping[str, Measured[Any]]) -> list[str]:
    """A sentence for each reason why rows were not run, or not with every seed."""
    reasons: dict[str, list[str]] = {}
    for name, row in measured.items():
        if row.lacking:
            reasons.setdefault(row.lacking, []).append(name)
    return [f"Not run, or not with every seed: {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def make_result(
    study: Study,
    measured: Mapping[str, Measured[Any]],
    *,
    title: str,
    columns: Sequence[str],
    blocks: Sequence[Block],
    notes: Sequence[str],
    numbers: dict[str, Any],
    figure: Figure | None = None,
    data: str = "",
    more_facts: Facts = (),
) -> Result:
    """The result of a target, with the settings of its runs and notes on missing rows."""
    sheet = Sheet(
        title=title,
        facts=(*facts(study, measured, data), *more_facts),
        columns=tuple(columns),
        blocks=tuple(blocks),
        notes=(*notes, *lacking_notes(measured)),
    )
    return Result(sheet, numbers, figure, lacking=nothing_ran(measured))


def facts(study: Study, measured: Mapping[str, Measured[Any]], data: str = "") -> Facts:
    """The settings of the first finished row; the rows differ only in their loss."""
    notes = () if study.benchmark is None else study.benchmark.notes
    described = ("Data", data or "; ".join(notes) or study.data)
    changed = (("Changed", ", ".join(study.settings)),) if study.settings else ()
    finished = [study.directory(row, 0) for row, measurement in measured.items() if measurement.values]
    if not finished:
        return (described, *changed)
    config, preprocess = finished[0].read_config(), read_description(finished[0].encoder / "encoder.json").preprocess
    model, training = config.model, config.train
    augmented = (
        () if preprocess is None else (("Input", f"{preprocess.size} pixels, augmentation: {config.data.augment}"),)
    )
    trained = describe_trainable(model.trainable)
    if model.trainable != "all":
        trained += f", on cached features of {counted(training.views, 'view')} per item"
    seeds = "seed 0" if study.seeds == 1 else f"seeds 0 to {study.seeds - 1}"
    lowered = decay(training.schedule, training.milestones)
    # Each method may have chosen its own.
    chosen = sorted({directory.read_config().train.lr for directory in finished})
    rates = f"learning rate {' or '.join(f'{rate:g}' for rate in chosen)}, of centres {training.center_lr:g}, {lowered}"
    return (
        described,
        ("Backbone", model.backbone),
        ("Weights", _weights(config)),
        *augmented,
        ("Trained", trained),
        ("Training", f"epochs: {training.epochs}, batch size {training.batch_size}, {rates}, {seeds}"),
        *changed,
    )


def decay(schedule: str, milestones: Sequence[int] | str) -> str:
    """When the learning rates are lowered, in words.

    Example:
        >>> decay("step", (20, 40)), decay("step", ()), decay("cosine", ())
        ('divided by 10 after epochs 20 and 40', 'constant', 'cosine schedule')
    """
    if schedule == "cosine":
        return "cosine schedule"
    if not milestones:
        return "constant"
    *others, last = map(str, milestones)
    return (
        f"divided by 10 after epochs {', '.join(others)} and {last}" if others else f"divided by 10 after epoch {last}"
    )


def _weights(config: Config) -> str:
    if config.model.weights is not None:
        return Path(config.model.weights).name
    return "ImageNet" if starts_from_weights(config.model.backbone) else "none, trained from scratch"
