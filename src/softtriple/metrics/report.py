"""The result of an evaluation: a value, its JSON and a plain table."""

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import TYPE_CHECKING

from pydantic import ConfigDict, TypeAdapter, ValidationError

from softtriple.errors import UserError, counted

if TYPE_CHECKING:  # pydantic's decorator returns a dataclass, but type checkers see through the standard one only
    from dataclasses import dataclass
else:
    from functools import partial

    from pydantic.dataclasses import dataclass

    dataclass = partial(dataclass, config=ConfigDict(extra="forbid"))


@dataclass(frozen=True, kw_only=True)
class KMeansRuns:
    """The k-means runs behind NMI and AMI, which are those of the run with the lowest objective, continued."""

    seed: int
    restarts: int
    objective: float
    nmi_spread: float | None  # largest minus smallest over the restarts; None for a single run
    ami_spread: float | None


@dataclass(frozen=True, kw_only=True)
class ClassResult:
    """Means over the queries of one class that have something to find."""

    queries: int
    recall_at_1: float
    map_at_r: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """How well vectors retrieve and cluster their classes; every metric is a share between 0 and 1.

    AMI alone may fall a little below 0, for clusters that agree less than chance would.
    """

    recall: Mapping[int, float]  # by k; of the queries that have something to find, unlike `recall_at_k`
    precision_at_1: float
    r_precision: float
    map_at_r: float
    nmi: float | None = None  # None: k-means was not asked for
    ami: float | None = None
    accuracy: float | None = None  # by nearest class similarity; only where the classes were trained on
    num_queries: int
    num_gallery: int
    num_classes: int
    num_without_positives: int = 0  # queries that can find nothing, left out of the means
    num_zero_vectors: int = 0
    kmeans: KMeansRuns | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    per_class: Mapping[str, ClassResult] = field(default_factory=dict)
    incomplete: bool = False  # the benchmark lacked some of its items, so published numbers do not compare
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def recall_per_class(self) -> dict[str, float]:
        """Recall@1 of each class."""
        return {name: result.recall_at_1 for name, result in self.per_class.items()}

    def to_json(self) -> str:
        """The report as one JSON object; `from_json` gives the equal report back."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    @staticmethod
    def from_json(text: str) -> "Report":
        """Read what `to_json` wrote."""
        try:
            values = json.loads(text)
            if isinstance(values, dict):
                values.pop("recall_per_class", None)  # in files of version 0.1; `per_class` has it now
            return TypeAdapter(Report).validate_python(values)
        except json.JSONDecodeError as error:
            raise UserError(f"not a report: {error}") from error
        except ValidationError as error:
            faults = (f"{'.'.join(map(str, fault['loc'])) or 'JSON'}: {fault['msg']}" for fault in error.errors())
            raise UserError(f"not a report: {'; '.join(faults)}") from error


def metric_rows(report: Report) -> list[tuple[str, str, float]]:
    """Title, name and value of each metric that ``report`` has, in the order in which they are shown."""
    rows = [
        *((f"Recall@{k}", f"recall@{k}", share) for k, share in sorted(report.recall.items())),
        ("Precision@1", "precision_at_1", report.precision_at_1),
        ("R-precision", "r_precision", report.r_precision),
        ("MAP@R", "map_at_r", report.map_at_r),
        ("NMI", "nmi", report.nmi),
        ("AMI", "ami", report.ami),
        ("Accuracy", "accuracy", report.accuracy),
    ]
    return [(title, name, share) for title, name, share in rows if share is not None]


def format_table(report: Report) -> str:
    """The metrics in percent with their 95 % intervals, one per line, and what was evaluated.

    Example:
        >>> print(format_table(Report(recall={1: 0.5}, precision_at_1=0.5, r_precision=0.25, map_at_r=0.125,
        ...     intervals={"recall@1": (0.4, 0.6)}, num_queries=8, num_gallery=8, num_classes=2)))
        Recall@1      50.00   40.00 to 60.00
        Precision@1   50.00
        R-precision   25.00
        MAP@R         12.50
        8 queries of 2 classes against 8 items
    """
    lines = []
    for title, name, share in metric_rows(report):
        line = f"{title:<12}{100 * share:>7.2f}"
        if name in report.intervals:
            low, high = report.intervals[name]
            line += f"   {100 * low:.2f} to {100 * high:.2f}"
        lines.append(line)
    queries, classes = counted(report.num_queries, "query"), counted(report.num_classes, "class")
    lines.append(f"{queries} of {classes} against {counted(report.num_gallery, 'item')}")
    if report.incomplete:
        lines.append("incomplete: the data set lacks some of its items")
    if report.num_without_positives:
        lines.append(f"left out: {counted(report.num_without_positives, 'query')} without another item of the class")
    if report.num_zero_vectors:
        lines.append(f"{counted(report.num_zero_vectors, 'zero vector')}: similar to nothing")
    if report.kmeans is not None:
        runs = report.kmeans
        if runs.nmi_spread is None or runs.ami_spread is None:
            lines.append(f"k-means: one run from seed {runs.seed}")
        else:
            spread = f"spread NMI {100 * runs.nmi_spread:.2f}, AMI {100 * runs.ami_spread:.2f}"
            lines.append(f"k-means: best of {runs.restarts} from seed {runs.seed}; {spread}")
    return "\n".join(lines)
