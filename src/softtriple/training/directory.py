"""A run directory: the files that training writes, and the rule that none of them is lost."""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from softtriple.config import FORMAT, Config, read_config, with_values, write_config
from softtriple.data import Benchmark
from softtriple.data.corrections import absolute_list
from softtriple.errors import UserError
from softtriple.files import append_line, atomic_write, remove_partial, write_text
from softtriple.losses import Loss
from softtriple.metrics import Calibration, Report
from softtriple.models import Encoder
from softtriple.models.weights import check_fit, read_shapes, read_tensors, write_tensors
from softtriple.training.checkpoint import Position


class _Entry:
    """A file or folder of a run directory, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, directory: "RunDir", owner: type["RunDir"]) -> Path:
        return directory.path / self._name


@dataclass(frozen=True)
class RunDir:
    """The files of one run."""

    path: Path

    config_file = _Entry("config.toml")  # the resolved configuration
    log_file = _Entry("log.jsonl")  # a JSON object per line
    checkpoints = _Entry("checkpoints")  # the two newest states, each written completely or not at all
    encoder = _Entry("encoder")  # everything that inference needs
    centers_file = _Entry("centers.safetensors")  # the parameters of the loss, if it has any
    added_file = _Entry("added.safetensors")  # the centres of classes added after training
    report_file = _Entry("report.json")  # the evaluation on the test classes
    validation_file = _Entry("validation.json")  # the evaluation on held-out training classes
    baseline_file = _Entry("baseline.json")  # the evaluations of untrained embeddings
    prefixes_file = _Entry("prefixes.json")  # the evaluations of truncated embeddings
    trials_file = _Entry("trials.json")  # the gains on held-out training classes that decided how long to train
    calibration_file = _Entry("calibration.json")  # the threshold for "none of these", and probabilities of scores
    calibration_figure = _Entry("calibration.svg")
    page_file = _Entry("report.html")
    card_file = _Entry("README.md")  # the model card
    data_file = _Entry("data.json")  # name and fingerprint of the data
    skipped_file = _Entry("skipped.txt")  # items that were left out of the data, with the reason
    exclude_file = _Entry("exclude.csv")  # copies of the lists that the run started with: the originals may change
    labels_file = _Entry("labels.csv")
    tracking_file = _Entry("tracking.json")  # ids of the run in MLflow and Weights & Biases
    _lock_file = _Entry(".lock")

    @property
    def _written_at_start(self) -> tuple[Path, ...]:
        lists = (self.exclude_file, self.labels_file, self.skipped_file)
        return self.config_file, self.data_file, *lists, self.baseline_file, self.trials_file, self.tracking_file

    def read_config(self) -> Config:
        """The configuration the run was made with."""
        if not self.config_file.is_file():
            raise UserError(f"{self.path} is not a run directory: config.toml is missing")
        return read_config(self.config_file)

    @contextmanager
    def opened(self, *, resume: bool) -> Iterator[None]:
        """Lock the directory for this process, to start a run or, with ``resume``, to continue one.

        A directory in which training stopped before the first checkpoint counts as new.
        """
        self.check(resume=resume)
        try:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:  # for example a read-only file system
                raise UserError(f"{self.path}: cannot be created ({error.strerror}). Choose another --out.") from error
            with filelock.FileLock(self._lock_file, timeout=0):
                remove_partial(self.path)
                if not resume:
                    self.check(resume=False)  # again: the previous owner of the lock may have written a checkpoint
                    for file in self._written_at_start:
                        file.unlink(missing_ok=True)
                self.checkpoints.mkdir(exist_ok=True)
                yield
        except filelock.Timeout:
            raise UserError(f"{self.path}: another process is training in this directory") from None

    def check(self, *, resume: bool) -> None:
        """UserError unless the folder is writable, and new or, with ``resume``, that of a run.

        An empty folder is both: a run may have been stopped before it wrote anything.
        """
        parent = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not parent.is_dir():
            raise UserError(f"{parent} is a file, not a folder. Choose another --out.")
        if resume and parent != self.path:
            raise UserError(f"{self.path} does not exist: there is no run to continue. Leave out --resume to start it.")
        entries = set(self.path.iterdir()) if parent == self.path else set()
        if resume and entries and not entries & {self._lock_file, self.config_file}:
            raise UserError(f"{self.path} is not a run directory: config.toml is missing. Choose another --out.")
        started = {self._lock_file, self.checkpoints, *self._written_at_start}
        is_new = self._lock_file in entries and entries <= started and not any(self.checkpoints.glob("*"))
        if not resume and entries and not is_new:
            raise UserError(f"{self.path} already exists. Use --resume to continue it, or choose another --out.")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"{self.path}: no permission to write to {parent}. Choose another --out.")

    def resume_config(self, config: Config) -> Config:
        """``config`` with every "auto" replaced by the value that an earlier start of this run chose."""
        if not self.config_file.is_file():
            return config
        stored = self.read_config()
        config = with_values(config, {"train.minutes": None})  # the stored values are what the budget decided
        values = _resolved(dataclasses.asdict(config), dataclasses.asdict(stored), "")
        if config.loss.centers_per_class == "auto" and "gamma" in stored.loss.options:  # chosen together
            values["loss.options.gamma"] = config.loss.options.get("gamma", stored.loss.options["gamma"])
        resolved = with_values(config, values)
        self._check_same(stored, resolved)
        return resolved

    def write_config(self, config: Config) -> None:
        """Write the resolved configuration; UserError if an earlier start of this run had another one."""
        if self.config_file.exists():
            stored = self.read_config()
            if stored.train.interpolate == "auto":  # chosen on held-out classes after training
                stored = with_values(stored, {"train.interpolate": config.train.interpolate})
            self._check_same(stored, config)
        write_text(self.config_file, f"format = {FORMAT}\n{write_config(config)}")

    def with_own_lists(self, config: Config) -> Config:
        """``config`` with the run's own copies of the list of items to leave out and of corrected labels."""
        own = {"exclude": self.exclude_file, "labels": self.labels_file}
        used = {name: file for name, file in own.items() if getattr(config.data, name) is not None and file.is_file()}
        return with_values(config, {f"data.{name}": str(file.absolute()) for name, file in used.items()})

    def write_data(self, benchmark: Benchmark, exclude: str | None = None, labels: str | None = None) -> None:
        """Record the fingerprint of the data, copies of the two lists, and the items that were left out."""
        if exclude is not None and not self.exclude_file.is_file():
            write_text(self.exclude_file, absolute_list(Path(exclude)))
        if labels is not None and not self.labels_file.is_file():
            write_text(self.labels_file, Path(labels).read_text(encoding="utf-8-sig"))
        written = {"fingerprint": benchmark.fingerprint(), "name": benchmark.name}
        write_text(self.data_file, json.dumps(written) + "\n")
        if benchmark.skipped:
            write_text(self.skipped_file, "".join(f"{item}\n" for item in benchmark.skipped))

    def read_data(self) -> str | None:
        """The recorded fingerprint of the data; None in runs of version 0.1."""
        if not self.data_file.is_file():
            return None
        try:
            return str(json.loads(self.data_file.read_text(encoding="utf-8"))["fingerprint"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.data_file}: no fingerprint of the data ({error})") from None

    def check_data(self, benchmark: Benchmark) -> None:
        """UserError if an earlier start of this run had other data."""
        recorded = self.read_data()
        if recorded is not None and recorded != benchmark.fingerprint():
            raise UserError(
                f"{self.path}: cannot resume: the data have changed since this run started (labels, class names or "
                "files). Start a new run with another --out."
            )

    def _check_same(self, before: Config, now: Config) -> None:
        if changed := differences(before, now):
            name, was, is_now = changed[0]
            raise UserError(f"{self.path}: cannot resume: {name} was {was!r}, now {is_now!r}.")

    def write_reports(self, file: Path, reports: Mapping[Any, Report]) -> None:
        """Write several reports by name, as in baseline.json."""
        table = {str(name): json.loads(report.to_json()) for name, report in reports.items()}
        write_text(file, json.dumps(table, indent=2, ensure_ascii=False) + "\n")

    def read_reports(self, file: Path) -> dict[str, Report]:
        """The reports in ``file`` by name; empty if there is no such file, as in runs of version 0.1."""
        if not file.is_file():
            return {}
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
            return {name: Report.from_json(json.dumps(report)) for name, report in table.items()}
        except (ValueError, AttributeError) as error:
            raise UserError(f"{file}: {error}") from error

    def restore_encoder(self, encoder: Encoder) -> None:
        """Load the weights of the run into ``encoder``, which must have the same architecture."""
        file = self.encoder / "model.safetensors"
        check_fit(encoder, read_shapes(file), str(file))
        encoder.load_state_dict(read_tensors(file))

    def write_loss(self, loss: Loss) -> None:
        """Write the parameters of ``loss``."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in loss.state_dict().items()}
        if tensors:
            with atomic_write(self.centers_file) as temporary:
                write_tensors(temporary, tensors)

    def restore_loss(self, loss: Loss) -> Loss:
        """``loss`` with the parameters of the run."""
        file = self.centers_file
        if not file.is_file():
            if loss.state_dict():
                raise UserError(f"{file} is missing: it contains what the loss of this run has learned")
            return loss
        check_fit(loss, read_shapes(file), str(file))
        state = read_tensors(file)
        try:
            loss.load_state_dict(state, assign=True)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{file}: does not fit the loss of this run ({reason})") from error
        return loss

    def write_calibration(self, calibration: Calibration) -> None:
        """Write the calibration of the run."""
        write_text(self.calibration_file, calibration.to_json() + "\n")

    def read_calibration(self) -> Calibration | None:
        """The calibration of the run, or None if it has none."""
        if not self.calibration_file.is_file():
            return None
        try:
            return Calibration.from_json(self.calibration_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{self.calibration_file}: {error}") from error

    def append_log(self, entry: dict[str, Any]) -> None:
        """Add a line to the log."""
        append_line(self.log_file, json.dumps(entry))

    def read_log(self) -> list[dict[str, Any]]:
        """The entries of the log, oldest first."""
        return [entry for _, entry in self._log_lines()]

    def read_epochs(self) -> list[dict[str, Any]]:
        """The log entries of whole epochs."""
        return [entry for entry in self.read_log() if "batch" not in entry]

    def read_report(self, file: Path) -> Report:
        """The report in ``file``; UserError if the run is not finished."""
        if not file.is_file():
            raise UserError(f"{file} is missing: the run is not finished. Continue it with --resume.")
        try:
            return Report.from_json(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{file}: {error}") from error

    def forget_log_after(self, position: Position) -> None:
        """Drop the entries that a resumed run will write again, and a line truncated by a crash."""
        if not self.log_file.exists():
            return
        kept = []
        for line, entry in self._log_lines():
            # An entry without "batch" is that of a whole epoch.
            done = (entry["epoch"], 0) if "batch" not in entry else (entry["epoch"] - 1, entry["batch"])
            if done <= (position.epoch, position.batch):
                kept.append(line + "\n")
        write_text(self.log_file, "".join(kept))

    def _log_lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines of the log and their entries, without lines that are truncated or damaged."""
        if not self.log_file.exists():
            return
        for line in self.log_file.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = _entry(line)
            if entry is not None:
                yield line, entry


def differences(before: Config, after: Config) -> list[tuple[str, Any, Any]]:
    """Settings in which two configurations differ: name, value before, value after."""
    return _differences(dataclasses.asdict(before), dataclasses.asdict(after), "")


def _resolved(config: dict[str, Any], stored: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The stored value of each setting that is "auto" in ``config``, by dotted name."""
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            values |= _resolved(value, stored.get(key, {}), f"{prefix}{key}.")
        elif value == "auto" and key in stored:
            values[prefix + key] = stored[key]
    return values


def _differences(before: dict[str, Any], after: dict[str, Any], prefix: str) -> list[tuple[str, Any, Any]]:
    changed = []
    for key in before.keys() | after.keys():
        one, other = before.get(key), after.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            changed += _differences(one, other, f"{prefix}{key}.")
        elif one != other:
            changed.append((prefix + key, one, other))
    return sorted(changed, key=lambda entry: entry[0])


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    types = type(entry.get("epoch")), type(entry.get("batch", 0)), type(entry.get("loss"))
    return entry if types == (int, int, float) else None
