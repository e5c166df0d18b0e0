"""What is wrong with labelled data, from features and labels: suspect labels, copies, outliers, doubtful classes.

`audit_items` puts together what `suspects` and `duplicates` find with what `softtriple.data.inspection` has seen. Rows
and classes in its result are numbers; names and pictures are added where they are shown.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.data.inspection import Inspection
from softtriple.losses.centers import spherical_kmeans
from softtriple.metrics.duplicates import DuplicateGroup, find_duplicates
from softtriple.metrics.suspects import LabelCheck, check_labels, deal, reduced, whitened

SUSPECT = 0.2  # probability of a wrong label
FEW_ITEMS = 5
CONFUSABLE = 0.15  # share of the items of two classes that are taken for the other
MERGE = 0.4  # of two classes that nothing tells apart, half of the items are
SPLIT = 0.75  # share of the variance along their axis that two modes explain; 0.64 for a normal distribution
SMALLER_MODE = 0.2  # share of the items
FEWEST_FOR_MODES = 20  # items of a class
FAR_OUT = 3.0  # interquartile ranges below the lower quartile, Tukey's rule

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Suspect:
    """An item that is probably of class ``suggested``: log-odds and probability that ``given`` is wrong."""

    row: int
    given: int
    suggested: int
    odds: float
    wrong: float


@dataclass(frozen=True)
class Outlier:
    """An item far from every centre: its cosine to the nearest."""

    row: int
    closeness: float


@dataclass(frozen=True)
class ClassIssue:
    """One class, or a pair: too few items, candidates to split or to merge, or often confused.

    ``value`` is the number of items for "few", the share of variance that two modes explain for "split", and the share
    of items taken for the other class for "merge" and "confusable".
    """

    kind: Literal["few", "split", "merge", "confusable"]
    classes: tuple[int, ...]
    value: float


@dataclass(frozen=True)
class Findings:
    """What an audit has found, the most striking first; ``unreadable`` and ``odd`` give the reason by row."""

    suspects: tuple[Suspect, ...]
    duplicates: tuple[DuplicateGroup, ...]
    unreadable: dict[int, str]
    odd: dict[int, str]
    outliers: tuple[Outlier, ...]
    classes: tuple[ClassIssue, ...]


def audit_items(
    features: Float[Tensor, "items features"],
    labels: Int[Tensor, " items"],
    inspection: Inspection,
    *,
    progress: Progress = lambda done, total: None,
) -> Findings:
    """Audit readable items; labels may have gaps. ``inspection`` is of the same items."""
    classes, numbers = torch.unique(labels, return_inverse=True)
    check = check_labels(features, numbers, progress=progress)
    names = classes.tolist()
    suspects = [
        replace(one, given=names[one.given], suggested=names[one.suggested]) for one in suspected(check, numbers)
    ]
    issues = [
        replace(issue, classes=tuple(names[label] for label in issue.classes))
        for issue in class_issues(features, numbers, check)
    ]
    return Findings(
        suspects=tuple(suspects),
        duplicates=tuple(find_duplicates(inspection.digests, features, inspection.thumbnails)),
        unreadable=inspection.unreadable,
        odd=inspection.odd,
        outliers=tuple(find_outliers(check.closeness)),
        classes=tuple(issues),
    )


def suspected(check: LabelCheck, labels: Int[Tensor, " items"]) -> list[Suspect]:
    """The items whose label is in doubt, by decreasing odds of a wrong label."""
    doubtful = (check.wrong > SUSPECT).nonzero().flatten()
    order = doubtful[check.odds[doubtful].argsort(descending=True, stable=True)]
    columns = (order, labels[order], check.suggested[order], check.odds[order], check.wrong[order])
    return [Suspect(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def find_outliers(closeness: Float[Tensor, " items"]) -> list[Outlier]:
    """Items whose ``closeness`` is far below that of the others, the farthest first."""
    lower, upper = torch.quantile(closeness.double(), torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
    rows = (closeness < lower - FAR_OUT * (upper - lower)).nonzero().flatten()
    rows = rows[closeness[rows].argsort(stable=True)]
    return [Outlier(row, value) for row, value in zip(rows.tolist(), closeness[rows].tolist(), strict=True)]


def class_issues(
    features: Float[Tensor, "items features"], labels: Int[Tensor, " items"], check: LabelCheck
) -> list[ClassIssue]:
    """Classes with too few items, pairs that are confused or look like one, and classes with two separate modes."""
    sizes = labels.bincount()
    few = [ClassIssue("few", (label,), float(size)) for label, size in enumerate(sizes.tolist()) if size < FEW_ITEMS]
    taken = check.evidence > 0
    confused = torch.stack([labels[taken], check.suggested[taken]], dim=1).sort(dim=1).values
    pairs = []
    for (one, other), count in Counter(map(tuple, confused.tolist())).items():
        share = count / int(sizes[one] + sizes[other])
        if share >= CONFUSABLE and min(sizes[one], sizes[other]) >= FEW_ITEMS:
            pairs.append(ClassIssue("merge" if share >= MERGE else "confusable", (one, other), share))
    rows = reduced(features)
    vectors = whitened(rows, rows, labels)
    separate = [
        ClassIssue("split", (label,), share)
        for label in (sizes >= FEWEST_FOR_MODES).nonzero().flatten().tolist()
        if (share := mode_separation(vectors[labels == label])) >= SPLIT
    ]
    return few + sorted(separate + pairs, key=lambda issue: (issue.kind != "split", -issue.value))


def mode_separation(vectors: Float[Tensor, "items dim"], *, seed: int = 0) -> float:
    """Share of the variance that two modes, found in one half of the items, explain in the other half.

    Along the axis through the two centres; the lesser share of both halves. 0 if a mode is small.
    """
    half = deal(torch.zeros(len(vectors), dtype=torch.int64), 2, seed)
    shares = []
    for part in (0, 1):
        one, other = spherical_kmeans(vectors[half == part][None], 2)[0]
        along = vectors[half != part] @ (one - other)
        first = along > (one + other) @ (one - other) / 2
        weight = float(first.double().mean())
        if min(weight, 1 - weight) < SMALLER_MODE:
            return 0.0
        between = weight * (1 - weight) * float(along[first].mean() - along[~first].mean()) ** 2
        shares.append(between / max(float(along.var(correction=0)), 1e-12))
    return min(shares)
