"""Runs side by side: paired intervals where test items are the same, and a note where they are not."""

from dataclasses import replace
from pathlib import Path

import pytest

from softtriple.config import Config
from softtriple.errors import UserError
from softtriple.files import write_text
from softtriple.metrics import Report, difference_intervals
from softtriple.metrics.report import ClassResult
from softtriple.training.comparing import compare_runs
from softtriple.training.directory import RunDir


def report(*shares: float, names: str = "abcd") -> Report:
    per_class = {
        name: ClassResult(queries=10, recall_at_1=share, map_at_r=share / 2)
        for name, share in zip(names, shares, strict=True)
    }
    mean = sum(shares) / len(shares)
    return Report(
        recall={1: mean}, precision_at_1=mean, r_precision=mean, map_at_r=mean / 2, num_queries=10 * len(shares),
        num_gallery=10 * len(shares), num_classes=len(shares), per_class=per_class,
    )  # fmt: skip


def write_run(folder: Path, written: Report, fingerprint: str = "x") -> Path:
    folder.mkdir()
    run = RunDir(folder)
    run.write_config(Config())
    write_text(run.report_file, written.to_json())
    write_text(run.data_file, f'{{"fingerprint": "{fingerprint}"}}')
    return folder


def test_differences_are_those_of_the_reports(tmp_path: Path) -> None:
    reports = report(0.5, 0.6, 0.7, 0.8), report(0.6, 0.8, 0.7, 0.9), report(0.1, 0.2, 0.3, 0.4)
    paths = [write_run(tmp_path / f"run{number}", written) for number, written in enumerate(reports)]
    compared = compare_runs(paths)
    assert list(compared.reports.values()) == list(reports)
    assert compared.differences == {
        str(path): difference_intervals(reports[0], written)
        for path, written in zip(paths[1:], reports[1:], strict=True)
    }
    assert compared.notes == ()
    table = compared.to_table()
    assert table["differences"][str(paths[1])]["recall@1"]["mean"] == pytest.approx(0.1)


def test_other_test_items_are_said(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", report(0.5, 0.6, 0.7, 0.8))
    classes = write_run(tmp_path / "classes", report(0.5, 0.6, 0.7, 0.8, names="abcx"))
    data = write_run(tmp_path / "data", report(0.5, 0.6, 0.7, 0.8), fingerprint="y")
    partial = write_run(tmp_path / "partial", replace(report(0.5, 0.6, 0.7, 0.8), incomplete=True))
    compared = compare_runs([first, classes, data, partial])
    assert list(compared.differences) == [str(data), str(partial)]
    unpaired, other, lacking = compared.notes
    assert unpaired.startswith(str(classes))
    assert "'d'" in unpaired
    assert other.startswith(str(data))
    assert lacking.startswith(str(partial))


def test_what_is_no_pair_of_finished_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", report(0.5, 0.6, 0.7, 0.8))
    with pytest.raises(UserError, match="twice"):
        compare_runs([run, run])
    with pytest.raises(UserError, match="not a run directory"):
        compare_runs([run, tmp_path])
    (tmp_path / "started").mkdir()
    RunDir(tmp_path / "started").write_config(Config())
    with pytest.raises(UserError, match="--resume"):
        compare_runs([run, tmp_path / "started"])
