import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from softtriple import Run
from softtriple.cli import app


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 12)
    values = 4 * random.standard_normal((6, 8))[labels] + random.standard_normal((72, 8))
    labels[4] = 2
    np.savez(tmp_path / "v.npz", vectors=values.astype(np.float32), labels=labels)
    return tmp_path / "v.npz"


def call(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_audit_then_train_without_what_it_found(vectors: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "found", tmp_path / "run"
    told = json.loads(call("audit", vectors, "--out", out, "--json"))
    assert (told["suspects"][0]["split"], told["suspects"][0]["row"]) == ("train", 4)
    assert {file.name for file in out.iterdir()} == {"audit.csv", "audit.html", "audit.json"}
    assert json.loads((out / "audit.json").read_text()) == told

    (tmp_path / "list.csv").write_text("split,row\ntrain,4\ntest,1\n")
    call("train", vectors, "--out", run, "--epochs", 1, "--dim", 4, "--exclude", tmp_path / "list.csv")
    before = Run.load(run)
    assert len(before.benchmark().train) + len(before.benchmark().test) == 70
    # The run has its own copy of the list.
    (tmp_path / "list.csv").unlink()
    report = json.loads(call("evaluate", run, "--json"))
    assert report["num_queries"] == before.report.num_queries == 35
    call("train", vectors, "--out", run, "--epochs", 1, "--dim", 4, "--exclude", tmp_path / "list.csv", "--resume")
    with (run / "exclude.csv").open() as file:
        assert [row["row"] for row in csv.DictReader(file)] == ["4", "1"]


def test_a_run_can_be_audited(vectors: Path, tmp_path: Path) -> None:
    call("train", vectors, "--out", tmp_path / "run", "--epochs", 1, "--dim", 4)
    assert "suspect labels" in call("audit", tmp_path / "run")


@pytest.mark.parametrize("options", [["--set", "data.split=instances"], ["--on-error", "skip"]])
def test_a_run_has_its_own_data(vectors: Path, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "config.toml").write_text("format = 1\n")
    done = CliRunner().invoke(app, ["audit", str(tmp_path), *options])
    assert done.exit_code == 2


def test_a_missing_list_is_noticed_before_data_are_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["train", "digits", "--out", str(tmp_path / "run"), "--exclude", "none.csv"])
    assert done.exit_code == 1
    assert "none.csv" in str(done.exception)
