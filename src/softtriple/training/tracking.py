"""Experiment trackers: TensorBoard, MLflow, Weights & Biases.

TensorBoard writes to the run directory, MLflow to MLFLOW_TRACKING_URI, and Weights & Biases to the account of `wandb
login` or, with WANDB_MODE=offline, to the run directory.
"""

import dataclasses
import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from softtriple import dist
from softtriple.config import Config, write_config
from softtriple.errors import UserError, first_line
from softtriple.files import write_text
from softtriple.metrics import Report, format_table
from softtriple.metrics.report import metric_rows
from softtriple.progress import Reporter
from softtriple.training.directory import RunDir

PROJECT = "softtriple"  # project of Weights & Biases and experiment of MLflow, unless their variables name another


@runtime_checkable
class Tracker(Protocol):
    """Logs one run."""

    id: str | None  # identifies the run when it is resumed

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Record metrics after ``epoch`` epochs."""

    def finish(self, report: Report | None) -> None:
        """Attach the report and close; ``report`` is None if the run did not finish."""


class TensorBoard:
    """Event files in the folder ``tensorboard`` of the run."""

    def __init__(self, config: Config, directory: RunDir | None, id: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        assert directory is not None
        self.id: str | None = None
        self._writer: Any = SummaryWriter(str(directory.path / "tensorboard"))
        self._writer.add_text("config", f"```\n{write_config(config)}```")

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Add scalars and flush them to disk."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, epoch)
        self._writer.flush()

    def finish(self, report: Report | None) -> None:
        """Add the report as text."""
        if report is not None:
            self._writer.add_text("report", f"```\n{format_table(report)}\n```")
        self._writer.close()


class MLflow:
    """A run of MLflow, in the experiment MLFLOW_EXPERIMENT_NAME of the store MLFLOW_TRACKING_URI."""

    def __init__(self, config: Config, directory: RunDir | None, id: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.environment_variables import MLFLOW_EXPERIMENT_NAME
        from mlflow.exceptions import MlflowException

        try:
            self._client: Any = MlflowClient()
            if id is None:
                name = MLFLOW_EXPERIMENT_NAME.get() or PROJECT
                known = self._client.get_experiment_by_name(name)
                experiment = self._client.create_experiment(name) if known is None else known.experiment_id
                id = self._client.create_run(experiment, run_name=_run_name(directory)).info.run_id
                self._client.log_batch(id, params=[Param(name, str(value)) for name, value in _flat(config)])
            else:
                self._client.update_run(id, status="RUNNING")
        except MlflowException as error:
            raise UserError(f"MLflow: {first_line(error)}") from error
        self.id: str | None = id

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Record metrics; MLflow does not allow @ in their names."""
        for name, value in metrics.items():
            self._client.log_metric(self.id, name.replace("@", "_at_"), value, step=epoch)

    def finish(self, report: Report | None) -> None:
        """Attach report.json and end the run."""
        if report is not None:
            self._client.log_text(self.id, report.to_json(), "report.json")
        self._client.set_terminated(self.id, "FAILED" if report is None else "FINISHED")


class WandB:
    """A run of Weights & Biases, in the project WANDB_PROJECT."""

    def __init__(self, config: Config, directory: RunDir | None, id: str | None) -> None:
        import wandb

        try:
            self._run: Any = wandb.init(
                project=wandb.setup().settings.project or PROJECT,
                name=_run_name(directory),
                dir=None if directory is None else str(directory.path),
                config=dataclasses.asdict(config),
                id=id,
                resume="allow",
                settings=wandb.Settings(console="off"),
            )
        except wandb.Error as error:
            raise UserError(f"Weights & Biases: {error}") from error
        self.id: str | None = self._run.id

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        """Record metrics."""
        self._run.log(dict(metrics), step=epoch)

    def finish(self, report: Report | None) -> None:
        """Attach report.json as an artifact and end the run."""
        import wandb

        if report is not None:
            artifact = wandb.Artifact(f"report-{self.id}", type="report")
            with artifact.new_file("report.json") as file:
                file.write(report.to_json())
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=int(report is None))


# By name: the tracker, the module it needs, and the extra that installs it.
TRACKERS: dict[str, tuple[Callable[[Config, RunDir | None, str | None], Tracker], str, str]] = {
    "tensorboard": (TensorBoard, "torch.utils.tensorboard", "tensorboard"),
    "mlflow": (MLflow, "mlflow", "tracking"),
    "wandb": (WandB, "wandb", "tracking"),
}


def check_trackers(names: Sequence[str], directory: RunDir | None) -> None:
    """UserError for a tracker that cannot be used: a package, the run directory or a login is missing."""
    for name in names:
        _, module, extra = TRACKERS[name]
        try:
            importlib.import_module(module)
        except ImportError:
            raise UserError(f"train.track = [{name!r}] needs a package: pip install 'softtriple[{extra}]'") from None
    if "tensorboard" in names and directory is None:
        raise UserError("train.track = ['tensorboard'] writes to the run directory: pass out=")
    if "wandb" in names and dist.is_main():
        import wandb

        if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False):
            raise UserError("Weights & Biases has no API key. Log in with: wandb login, or set WANDB_MODE=offline")


class Tracking:
    """All trackers of a run as one; a tracker that fails during training is dropped with a note."""

    def __init__(self, trackers: dict[str, Tracker], reporter: Reporter) -> None:
        self._trackers, self._reporter, self._epoch = trackers, reporter, 0

    def log(self, entry: Mapping[str, Any]) -> None:
        """Record an entry of the log."""
        self._epoch = entry["epoch"]
        metrics = {name: value for name, value in entry.items() if isinstance(value, int | float) and name != "epoch"}
        metrics |= {f"rate/{part}": rate for part, rate in entry.get("rates", {}).items()}
        self._each(lambda tracker: tracker.log(metrics, self._epoch))

    def finish(self, report: Report | None) -> None:
        """Record the metrics of the report, attach it and close; a second call has no effect."""
        if report is not None:
            final = {f"report/{name}": value for _, name, value in metric_rows(report)}
            self._each(lambda tracker: tracker.log(final, self._epoch))
        self._each(lambda tracker: tracker.finish(report))
        self._trackers.clear()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # trackers raise many types, and none is worth losing the run
                self._reporter.note(f"{name} failed ({first_line(error)}); continuing without it")
                del self._trackers[name]


@contextmanager
def tracking(config: Config, directory: RunDir | None, reporter: Reporter) -> Iterator[Tracking]:
    """The trackers of the configuration, on the first rank; closed at the end, also after an error."""
    trackers: dict[str, Tracker] = {}
    tracked = Tracking(trackers, reporter)
    ids = {} if directory is None else _read_ids(directory)
    try:
        for name in config.train.track if dist.is_main() else ():
            trackers[name] = TRACKERS[name][0](config, directory, ids.get(name))
        if directory is not None and trackers:
            ids = {name: tracker.id for name, tracker in trackers.items() if tracker.id is not None}
            write_text(directory.tracking_file, json.dumps(ids) + "\n")
        yield tracked
    finally:
        tracked.finish(None)


def _read_ids(directory: RunDir) -> dict[str, str]:
    if not directory.tracking_file.is_file():
        return {}
    try:
        ids: dict[str, str] = json.loads(directory.tracking_file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{directory.tracking_file}: not JSON ({error})") from None
    return ids


def _run_name(directory: RunDir | None) -> str | None:
    return None if directory is None else directory.path.name


def _flat(config: Config) -> Iterator[tuple[str, Any]]:
    for group, values in dataclasses.asdict(config).items():
        if isinstance(values, dict):
            yield from ((f"{group}.{name}", value) for name, value in values.items())
        else:
            yield group, values
