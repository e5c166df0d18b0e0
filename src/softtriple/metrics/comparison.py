"""Differences between two reports on the same test classes, with paired intervals."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from softtriple.errors import UserError, counted
from softtriple.metrics.intervals import percentile_intervals, resampled_sums
from softtriple.metrics.report import Report, metric_rows


class Difference(NamedTuple):
    """How much larger a metric is in the second of two reports, with its 95 % interval."""

    mean: float
    low: float
    high: float


def difference_intervals(
    a: Report, b: Report, *, resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Difference]:
    """``b`` minus ``a`` in Recall@1 and MAP@R, by bootstrap over classes.

    Every resample draws the same classes for both, so that what makes a class hard for either cancels. Both reports
    must be of the same queries: equal classes with equal numbers of queries.

    Example:
        >>> def report(share):
        ...     per_class = {"x": {"queries": 2, "recall_at_1": share, "map_at_r": share}}
        ...     return Report(recall={1: share}, precision_at_1=share, r_precision=share, map_at_r=share,
        ...                   num_queries=2, num_gallery=2, num_classes=1, per_class=per_class)
        >>> difference_intervals(report(0.5), report(0.75))["map_at_r"]
        Difference(mean=0.25, low=0.25, high=0.25)
    """
    _check_paired(a, b)
    names = list(a.per_class)
    sizes = np.array([a.per_class[name].queries for name in names], dtype=np.float64)
    columns = {
        metric: np.array([getattr(b.per_class[n], field) - getattr(a.per_class[n], field) for n in names]) * sizes
        for metric, field in (("recall@1", "recall_at_1"), ("map_at_r", "map_at_r"))
    }
    sums = np.stack([*columns.values(), sizes], axis=1)
    intervals = percentile_intervals(resampled_sums(sums, resamples, seed), level)
    means = sums[:, :-1].sum(axis=0) / sizes.sum()
    return {name: Difference(float(mean), *ends) for name, mean, ends in zip(columns, means, intervals, strict=True)}


def format_comparison(reports: Mapping[str, Report]) -> str:
    """A table with one row per metric and one column per report, in percent.

    A further column for each report after the first is its difference to the first, with the interval where there is
    one. Reports on other test classes are shown without it.
    """
    first, *others = reports
    shares = {name: {metric: share for _, metric, share in metric_rows(report)} for name, report in reports.items()}
    titles = {metric: title for report in reports.values() for title, metric, _ in metric_rows(report)}
    differences = {name: _paired_differences(reports[first], reports[name]) for name in others}
    table = [["", *reports, *(["difference"] if len(others) == 1 else [f"{name} - {first}" for name in others])]]
    for metric, title in titles.items():
        cells = [f"{100 * shares[name][metric]:.2f}" if metric in shares[name] else "-" for name in reports]
        for name in others:
            if metric not in shares[first] or metric not in shares[name]:
                cells.append("")
                continue
            cell = f"{100 * (shares[name][metric] - shares[first][metric]):+.2f}"
            if metric in differences[name]:
                _, low, high = differences[name][metric]
                cell += f"  ({100 * low:+.2f} to {100 * high:+.2f})"
            cells.append(cell)
        table.append([title, *cells])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    align = ["<", *[">"] * len(reports), *["<"] * len(others)]
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True))
        for row in table
    )
    return "\n".join(line.rstrip() for line in lines)


def _paired_differences(a: Report, b: Report) -> dict[str, Difference]:
    try:
        return difference_intervals(a, b)
    except UserError:
        return {}


def _check_paired(a: Report, b: Report) -> None:
    if not a.per_class or not b.per_class:
        raise UserError("a report has no results per class; evaluate again to compare it")
    if differing := sorted(a.per_class.keys() ^ b.per_class.keys()):
        raise UserError(
            f"the reports are of different test classes: {counted(len(differing), 'class')} only in one of them, such "
            f"as {differing[0]!r}; evaluate both on the same data"
        )
    for name, result in a.per_class.items():
        if result.queries != b.per_class[name].queries:
            raise UserError(
                f"the reports are of different queries: class {name!r} has {result.queries} in one and "
                f"{b.per_class[name].queries} in the other; evaluate both on the same data"
            )
