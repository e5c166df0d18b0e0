"""Trackers get the numbers of the log, the configuration and the report, and are closed whatever happens."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softtriple.config import Config, with_values
from softtriple.errors import UserError
from softtriple.metrics import Report
from softtriple.progress import Reporter
from softtriple.training import Run, train
from softtriple.training.directory import RunDir
from softtriple.training.tracking import TRACKERS, Tracking, WandB, check_trackers, tracking

REPORT = Report(
    recall={1: 0.5}, precision_at_1=0.5, r_precision=0.25, map_at_r=0.125, num_queries=8, num_gallery=8, num_classes=2
)
QUIET = Reporter(quiet=True)


def small_run(folder: Path, *track: str, **settings: Any) -> Run:
    labels = np.repeat(np.arange(4), 6)
    vectors = np.eye(8, dtype=np.float32)[labels] + 0.1 * np.random.default_rng(0).standard_normal((24, 8))
    config = with_values(Config(), {"train.track": track, "train.epochs": 2, "model.dim": 4})
    return train((vectors.astype(np.float32), labels), out=folder, config=config, reporter=QUIET, **settings)


def logged(run: Run) -> dict[str, list[float]]:
    """The numbers of each metric in the log, by epoch."""
    names = [name for name, value in run.log[0].items() if isinstance(value, int | float) and name != "epoch"]
    return {name: [entry[name] for entry in run.log] for name in names}


def test_tensorboard(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "tensorboard", evaluate_every=1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    expected = logged(run)
    assert {"loss", "items_per_second", "distinct_centers", "test_recall@1"} <= expected.keys()
    for name, values in expected.items():
        assert [event.step for event in events.Scalars(name)] == [1, 2]
        assert [event.value for event in events.Scalars(name)] == pytest.approx(values)
    assert events.Scalars("report/recall@1")[0].value == pytest.approx(run.report.recall[1])
    assert {"config/text_summary", "report/text_summary"} <= set(events.Tags()["tensors"])


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of MLflow's SQLite store; creating its tables takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
        patch.chdir(folder)
        from mlflow import MlflowClient

        client = MlflowClient()
        client.create_experiment("softtriple", artifact_location=(folder / "artifacts").as_uri())
        yield client
        client._tracking_client.store.engine.dispose()


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_mlflow_with_its_sqlite_store(mlflow_store: Any, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", "mlflow")
    (stored,) = mlflow_store.search_runs([mlflow_store.get_experiment_by_name("softtriple").experiment_id])
    assert (stored.info.run_name, stored.info.status) == ("run", "FINISHED")
    assert stored.data.params["train.epochs"] == "2"
    assert stored.data.params["model.dim"] == "4"
    for name, values in logged(run).items():
        history = mlflow_store.get_metric_history(stored.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history] == list(enumerate(values, start=1))
    assert stored.data.metrics["report/recall_at_1"] == run.report.recall[1]
    report = Path(stored.info.artifact_uri.removeprefix("file://")) / "report.json"
    assert Report.from_json(report.read_text()) == run.report

    # A run that is stopped and resumed is one run in MLflow, too.
    directory = RunDir(tmp_path / "run")
    with contextlib.suppress(KeyboardInterrupt), tracking(run.config, directory, QUIET):
        assert mlflow_store.get_run(stored.info.run_id).info.status == "RUNNING"
        raise KeyboardInterrupt
    assert mlflow_store.get_run(stored.info.run_id).info.status == "FAILED"


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    directory = RunDir(tmp_path / "run")
    directory.path.mkdir()
    try:
        check_trackers(["wandb"], directory)  # no key is needed
        tracker = WandB(Config(), directory, None)
        tracker.log({"loss": 0.75}, 1)
        tracker.finish(REPORT)
    finally:
        wandb.teardown()
    (file,) = directory.path.glob("wandb/offline-run-*/*.wandb")
    assert tracker.id is not None
    assert tracker.id in file.name
    content = file.read_bytes()
    assert all(name in content for name in (b"loss", b"0.75", b"centers_per_class", b"report.json"))


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_before_any_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, extra = TRACKERS[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'softtriple\[{extra}\]'"):
        small_run(tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


def test_wandb_without_a_key_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    class Session:
        settings = type("Settings", (), {"mode": "online"})

    monkeypatch.setattr(wandb, "setup", Session)
    monkeypatch.setattr(wandb, "login", lambda prompt: False)
    with pytest.raises(UserError, match=r"wandb login.*WANDB_MODE=offline"):
        check_trackers(["wandb"], None)


def test_tensorboard_needs_a_run_directory() -> None:
    with pytest.raises(UserError, match="out="):
        check_trackers(["tensorboard"], None)


class Recorded:
    """A tracker that remembers, and fails when told to."""

    id = "one"

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[Any] = []
        self.error = error

    def log(self, metrics: Mapping[str, float], epoch: int) -> None:
        if self.error is not None:
            raise self.error
        self.calls.append((dict(metrics), epoch))

    def finish(self, report: Report | None) -> None:
        self.calls.append(report)


def test_a_tracker_that_fails_does_not_stop_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    broken, working = Recorded(ConnectionError("no route to host")), Recorded()
    both = Tracking({"broken": broken, "mute": Recorded(TimeoutError()), "working": working}, Reporter())
    both.log({"epoch": 1, "loss": 0.5, "rates": {"head": 0.1}})
    both.finish(REPORT)
    both.finish(None)
    assert broken.calls == []
    assert working.calls[0] == ({"loss": 0.5, "rate/head": 0.1}, 1)
    assert working.calls[1][0]["report/map_at_r"] == 0.125
    assert working.calls[2:] == [REPORT]
    notes = capsys.readouterr().err
    assert "broken failed (no route to host)" in notes
    assert "mute failed (TimeoutError)" in notes


def test_trackers_are_closed_if_another_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Recorded()

    def refuse(*_: Any) -> Recorded:
        raise UserError("no server")

    monkeypatch.setitem(TRACKERS, "mlflow", (lambda *_: started, "sys", ""))
    monkeypatch.setitem(TRACKERS, "wandb", (refuse, "sys", ""))
    config = with_values(Config(), {"train.track": ("mlflow", "wandb")})
    with pytest.raises(UserError, match="no server"), tracking(config, RunDir(tmp_path), QUIET):
        pass
    assert started.calls == [None]


def test_a_resumed_run_finds_its_trackers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = []

    def start(config: Config, directory: RunDir | None, id: str | None) -> Recorded:
        ids.append(id)
        return Recorded()

    monkeypatch.setitem(TRACKERS, "mlflow", (start, "sys", ""))
    config = with_values(Config(), {"train.track": "mlflow"})
    directory = RunDir(tmp_path)
    for _ in range(2):
        with tracking(config, directory, QUIET):
            pass
    assert ids == [None, "one"]
    assert json.loads(directory.tracking_file.read_text()) == {"mlflow": "one"}
    directory.tracking_file.write_text("{")
    with pytest.raises(UserError, match=r"tracking\.json"), tracking(config, directory, QUIET):
        pass
