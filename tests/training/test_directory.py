"""Run directories: never overwritten, never shared, and a log that a crash cannot spoil."""

from pathlib import Path

import numpy as np
import pytest
import torch

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, Split, Vectors
from softtriple.errors import UserError
from softtriple.metrics import evaluate
from softtriple.training.checkpoint import Position
from softtriple.training.directory import RunDir

REPORT = evaluate(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), recall_at=(1,), kmeans_restarts=0)


def made(name: str) -> Benchmark:
    split = Split(Vectors(np.eye(4, dtype=np.float32)), np.array([0, 0, 1, 1]))
    return Benchmark(name="made", class_names=(name, "other"), train=split, test=split)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with run.opened(resume=False):
        run.write_config(Config())
        run.append_log({"epoch": 1})
    with pytest.raises(UserError, match=r"run already exists.*--resume"), run.opened(resume=False):
        pass
    with run.opened(resume=True):
        assert run.read_config() == Config()


def test_a_start_that_failed_is_in_nobodys_way(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with run.opened(resume=False):
        run.write_config(Config(dataset="wrong"))
        run.write_data(made("wrong"))
        run.write_reports(run.baseline_file, {"wrong": REPORT})
    with run.opened(resume=False):
        assert run.read_reports(run.baseline_file) == {}
        run.write_data(made("right"))
        run.write_config(Config(dataset="right"))
        (run.checkpoints / "epoch-00000-batch-0000001.pt").touch()
    with pytest.raises(UserError, match="already exists"), run.opened(resume=False):
        pass
    assert run.read_config() == Config(dataset="right")


def test_a_folder_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mine")
    with pytest.raises(UserError, match="already exists"), RunDir(tmp_path).opened(resume=False):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_only_a_run_can_be_resumed(tmp_path: Path) -> None:
    missing, photos, empty = (RunDir(tmp_path / name) for name in ("missing", "photos", "empty"))
    with pytest.raises(UserError, match=r"missing does not exist.*--resume"), missing.opened(resume=True):
        pass
    assert not missing.path.exists()
    photos.path.mkdir()
    (photos.path / "bird.jpg").touch()
    with pytest.raises(UserError, match="photos is not a run directory"), photos.opened(resume=True):
        pass
    assert [file.name for file in photos.path.iterdir()] == ["bird.jpg"]
    empty.path.mkdir()  # stopped before it wrote anything
    with empty.opened(resume=True):
        assert empty.checkpoints.is_dir()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with (
        run.opened(resume=False),
        pytest.raises(UserError, match="another process is training"),
        run.opened(resume=True),
    ):
        pass


def test_a_run_is_resumed_with_its_own_settings(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_config(Config())
    run.write_config(Config())
    with pytest.raises(UserError, match=r"train.epochs was 'auto', now 3"):
        run.write_config(with_settings(Config(), ["train.epochs=3"]))


def test_what_was_resolved_takes_the_place_of_auto(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    asked = with_settings(Config(), ["train.lr=0.5", "model.backbone=linear"])
    assert run.resume_config(asked) == asked
    resolved = with_settings(asked, ["train.epochs=7", "model.layer_norm=false", "train.milestones=[2, 5]"])
    run.write_config(resolved)
    assert run.resume_config(asked) == resolved
    with pytest.raises(UserError, match=r"cannot resume: train.epochs was 7, now 8"):
        run.resume_config(with_settings(asked, ["train.epochs=8"]))


def test_a_run_is_resumed_with_its_own_data(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.check_data(made("a"))  # nothing was recorded yet
    run.write_data(made("a"))
    run.check_data(made("a"))
    with pytest.raises(UserError, match=r"cannot resume: the data have changed.*--out"):
        run.check_data(made("b"))


def test_baselines_are_read_as_they_were_written(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.read_reports(run.baseline_file) == {}
    run.write_reports(run.baseline_file, {"first": REPORT, "a second": REPORT})
    assert list(run.read_reports(run.baseline_file).items()) == [("first", REPORT), ("a second", REPORT)]
    for content in ("{", "[]", '{"first": {}}'):
        run.baseline_file.write_text(content)
        with pytest.raises(UserError, match=r"baseline\.json"):
            run.read_reports(run.baseline_file)


def test_a_run_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_config(Config())
    lines = run.config_file.read_text().splitlines()
    # Before there was a number of the format, and before there was the last setting.
    run.config_file.write_text("\n".join(line for line in lines if not line.startswith(("format", "track"))))
    run.write_config(Config())


def test_a_run_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_config(Config())
    run.config_file.write_text(run.config_file.read_text().replace("format = 1", "format = 2\nunheard_of = 3"))
    with pytest.raises(ValueError, match=r"config\.toml: written by a newer softtriple \(format 2"):
        run.read_config()


def test_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run directory"):
        RunDir(tmp_path).read_config()


@pytest.mark.parametrize(
    ("position", "kept"),
    [
        (Position(), []),
        (Position(epoch=0, batch=50), [(1, 50)]),
        (Position(epoch=1), [(1, 50), (1, 100), (1, None)]),
        (Position(epoch=1, batch=70), [(1, 50), (1, 100), (1, None), (2, 50)]),
        (Position(epoch=2), [(1, 50), (1, 100), (1, None), (2, 50), (2, None)]),
    ],
)
def test_the_log_is_cut_where_a_run_is_resumed(
    tmp_path: Path, position: Position, kept: list[tuple[int, int | None]]
) -> None:
    run = RunDir(tmp_path)
    for epoch, batch in [(1, 50), (1, 100), (1, None), (2, 50), (2, None)]:
        run.append_log({"epoch": epoch, "loss": 0.5, **({} if batch is None else {"batch": batch})})
    with run.log_file.open("ab") as log:
        log.write(b'3\n{}\n{"epoch": "x", "loss": 0.5}\n[[\n\xff\xfe\n')  # damaged
        log.write(b'{"epoch": 3, "ba')  # a crash in the middle of a line
    assert len(run.read_log()) == 5
    run.forget_log_after(position)
    assert [(entry["epoch"], entry.get("batch")) for entry in run.read_log()] == kept
