"""Hidden modes: if training only sees coarse labels, do several centres find the finer classes within them?

The data have fine labels that are not used for training: the character of an alphabet, the case of a letter. Training
items are grouped by the nearest centre of their class, and the groups are compared with the fine labels. Retrieval by
fine label on unseen classes shows whether separate modes give a better metric.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Int
from pydantic import TypeAdapter
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from softtriple.config import Config, with_values
from softtriple.errors import UserError
from softtriple.files import write_text
from softtriple.losses.centers import MERGED, count_distinct, nearest_centers
from softtriple.metrics import Embeddings, ami, evaluate, nmi
from softtriple.papers.figures import draw_curves
from softtriple.papers.runs import Study, make_result, run_of
from softtriple.papers.sheets import NOTHING, Block, Line, Number, Result, as_json, bars_caption, uncertainty_label
from softtriple.papers.studies import CENTERS_AXIS, REGULARIZED, Variant, curves, measure_variants
from softtriple.progress import Reporter
from softtriple.training import Run
from softtriple.training.directory import RunDir

NUMBERS_OF_CENTERS = (1, 5, 20)
BUDGET = {"train.epochs": 6, "train.milestones": (4,), "train.batch_size": 64}
SHARES = {
    "purity": "purity",
    "NMI": "nmi",
    "AMI in class": "ami_in_class",
    "R@1 fine": "fine_recall",
    "R@1 class": "class_recall",
}
DRAWN = ("purity", "NMI", "AMI in class", "R@1 fine")


@dataclass(frozen=True)
class Modes:
    """How well the centres of one run match the fine labels."""

    modes_per_class: float  # fine labels per class in the training data
    distinct_centers: float  # mean per class
    purity: float
    nmi: float
    ami_in_class: float
    fine_recall: float
    fine_interval: tuple[float, float]
    class_recall: float
    class_interval: tuple[float, float]


def make_hidden_modes(study: Study, wanted: Sequence[str] | None) -> Result:
    """Centres compared with hidden classes for K = 1, 5 and 20, with and without the regulariser."""
    if study.benchmark is not None and study.benchmark.train.fine_labels is None:
        raise UserError(f"{study.data} has no fine labels. Use --data glyphs or --data omniglot-alphabets:PATH.")
    recipe = with_values(Config(), BUDGET)
    measured, modes = measure_variants(study, wanted, NUMBERS_OF_CENTERS, recipe, modes_of, prefix="hidden-modes")
    numbers = {variant: {title: _number(values, title) for title in SHARES} for variant, values in modes.items()}
    lines: dict[int, tuple[Line, ...]] = {}
    for variant, values in modes.items():
        lines[variant.k] = (*lines.get(variant.k, ()), *_lines(variant, values, numbers[variant]))
    ran = [values for values in modes.values() if values]
    hidden = f"{ran[0][0].modes_per_class:.1f} per training class, by fine labels not trained on" if ran else NOTHING
    panels = {title: curves({variant: numbers[variant][title] for variant in numbers}) for title in DRAWN}
    caption = bars_caption(n for by_title in numbers.values() for n in by_title.values())
    return make_result(
        study,
        measured,
        title="Hidden modes: what centres find within classes",
        columns=("centres", *SHARES),
        blocks=[Block(f"K = {k}", of_k) for k, of_k in lines.items()],
        notes=[
            "In per cent; centres: distinct centres per class.",
            "Purity and NMI compare training items grouped by the nearest centre of their class with their fine labels."
            " K = 1 shows the class alone. Purity rises with the number of groups in any case; AMI in class, the"
            " agreement within each class, is 0 for any number of random groups.",
            "R@1: unseen items of unseen classes.",
        ],
        numbers={
            variant.name: {
                "distinct_centers": as_json(Number.of(mode.distinct_centers for mode in modes[variant])),
                **{SHARES[title]: as_json(value) for title, value in by_title.items()},
            }
            for variant, by_title in numbers.items()
        },
        figure=draw_curves(panels, xlabel=CENTERS_AXIS, caption=caption) if ran else None,
        more_facts=(("Hidden modes", hidden),),
    )


def modes_of(config: Config, directory: RunDir, reporter: Reporter) -> Modes:
    """`find_modes` of a run, computed once; the run is trained first if it is not finished."""
    file = directory.path / "hidden-modes.json"
    if file.exists() and directory.report_file.exists():
        return TypeAdapter(Modes).validate_json(file.read_bytes())
    modes = find_modes(run_of(config, directory, reporter))
    write_text(file, json.dumps(asdict(modes), indent=2) + "\n")
    return modes


def find_modes(run: Run) -> Modes:
    """Compare the centres of a run with the fine labels of its data."""
    training, test, centers = run.training_split, run.benchmark().test, run.centers()
    assert training.fine_labels is not None
    assert test.fine_labels is not None
    assert centers is not None
    labels, fine = torch.from_numpy(training.labels), torch.from_numpy(training.fine_labels)
    groups = nearest_centers(run.embed_split(training).vectors, labels, centers.cpu())
    by_fine_label = Embeddings(run.test_embeddings.vectors, torch.from_numpy(test.fine_labels))
    retrieval = evaluate(by_fine_label, recall_at=(1,), kmeans_restarts=0)
    return Modes(
        modes_per_class=len(torch.unique(fine)) / len(torch.unique(labels)),
        distinct_centers=count_distinct(centers, MERGED).float().mean().item(),
        purity=purity(fine, groups),
        nmi=nmi(fine, groups),
        ami_in_class=ami_in_class(labels, fine, groups),
        fine_recall=retrieval.recall[1],
        fine_interval=retrieval.intervals["recall@1"],
        class_recall=run.report.recall[1],
        class_interval=run.report.intervals["recall@1"],
    )


def purity(fine: Int[Tensor, " items"], groups: Int[Tensor, " items"]) -> float:
    """Share of items that have the most frequent fine label of their group.

    Example:
        >>> purity(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 5, 7]))
        0.75
    """
    return int(contingency_matrix(groups, fine).max(axis=1).sum()) / len(fine)


def ami_in_class(labels: Int[Tensor, " items"], fine: Int[Tensor, " items"], groups: Int[Tensor, " items"]) -> float:
    """Mean AMI of groups and fine labels over classes with several fine labels, weighted by their number of items.

    Example:
        >>> labels, fine = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 0, 1, 1, 2])
        >>> [round(abs(ami_in_class(labels, fine, groups)), 4) for groups in (fine, labels)]
        [1.0, 0.0]
    """
    total, items = 0.0, 0
    for label in torch.unique(labels):
        members = labels == label
        if len(torch.unique(fine[members])) > 1:
            total += ami(fine[members], groups[members]) * int(members.sum())
            items += int(members.sum())
    return total / items if items else 0.0


def _number(values: Sequence[Modes], title: str) -> Number | None:
    interval = None
    if len(values) == 1 and title.startswith("R@1"):
        interval = values[0].fine_interval if title == "R@1 fine" else values[0].class_interval
    return Number.of((getattr(modes, SHARES[title]) for modes in values), interval)


def _lines(variant: Variant, values: Sequence[Modes], numbers: dict[str, Number | None]) -> tuple[Line, ...]:
    label = "one centre" if variant.k == 1 else REGULARIZED[variant.regularized]
    known = [n for n in numbers.values() if n is not None]
    if not known:
        return (Line(label, (NOTHING,) * (1 + len(SHARES))),)
    centers = sum(modes.distinct_centers for modes in values) / len(values)
    return (
        Line(label, (f"{centers:.1f}", *(n.percent for n in known)), strong=True),
        Line(uncertainty_label(known), ("", *(n.uncertainty for n in known))),
    )
