"""`softtriple compare`: the reports of several runs, and whether they are of the same test items."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softtriple.errors import UserError
from softtriple.metrics import Report
from softtriple.metrics.comparison import Difference, difference_intervals
from softtriple.training.directory import RunDir


@dataclass(frozen=True)
class Compared:
    """Reports by run, the differences of the others from the first, and notes on what limits the comparison."""

    reports: dict[str, Report]
    differences: dict[str, dict[str, Difference]]  # without runs on other test items
    notes: tuple[str, ...]

    def to_table(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "runs": {name: json.loads(report.to_json()) for name, report in self.reports.items()},
            "differences": {
                name: {metric: difference._asdict() for metric, difference in by_metric.items()}
                for name, by_metric in self.differences.items()
            },
            "notes": list(self.notes),
        }


def compare_runs(paths: Sequence[Path]) -> Compared:
    """The reports in the run directories ``paths``, each compared with the first."""
    names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        raise UserError("a run is named twice; expected different runs to compare")
    directories = [RunDir(path) for path in paths]
    for directory in directories:
        directory.read_config()  # UserError unless it is a run
    reports = {name: run.read_report(run.report_file) for name, run in zip(names, directories, strict=True)}
    first, *others = names
    data = {name: run.read_data() for name, run in zip(names, directories, strict=True)}
    differences: dict[str, dict[str, Difference]] = {}
    notes = []
    for name in others:
        try:
            differences[name] = difference_intervals(reports[first], reports[name])
        except UserError as error:
            notes.append(
                f"{name} and {first} are not on the same test items, so their difference has no interval: {error}"
            )
            continue
        if None not in (data[name], data[first]) and data[name] != data[first]:
            notes.append(f"{name} and {first} have different data (items or files) and are paired by class only")
    notes += [f"{name}: the data set lacked some of its items" for name in names if reports[name].incomplete]
    return Compared(reports, differences, tuple(notes))
