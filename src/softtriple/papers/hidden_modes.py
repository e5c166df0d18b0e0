"""Hidden modes: trained on coarse labels only, do several centres find the classes that these hide?

The data have fine labels that no loss sees: the character of an alphabet, the case of a letter. Every training item
goes to the nearest centre of its own class; the groups that this makes are compared with the fine labels. And the fine
label of unseen items of unseen classes is retrieved, which tells whether modes kept apart make a better metric.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.config import Config, with_settings
from softtriple.files import write_whole
from softtriple.losses import SoftTripleLoss
from softtriple.losses.centers import MERGED, merge_groups
from softtriple.metrics import ami, nmi
from softtriple.metrics.evaluate import Embeddings, evaluate
from softtriple.models.features import embed_feed
from softtriple.papers.ablations import WITH, WITHOUT, Variant, curves, variants
from softtriple.papers.figures import draw_curves
from softtriple.papers.results import Result
from softtriple.papers.runs import Study, check_settings, facts, lacking_notes, measure, nothing_ran, select
from softtriple.papers.sheets import (
    NOTHING,
    Block,
    Line,
    Number,
    Sheet,
    as_json,
    bars_caption,
    number,
    uncertainty_label,
)
from softtriple.progress import Reporter
from softtriple.training.directory import RunDir
from softtriple.training.inference import still_feed
from softtriple.training.train import Outcome, load_data, train

NUMBERS_OF_CENTERS = (1, 5, 20)
BUDGET = ["train.epochs=6", "train.milestones=[4]", "train.batch_size=64"]
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
    """What the centres of one run have found."""

    modes_per_class: float  # of the training data, by their fine labels
    distinct_centers: float  # per class, mean
    purity: float
    nmi: float
    ami_in_class: float
    fine_recall: float
    fine_interval: tuple[float, float]
    class_recall: float
    class_interval: tuple[float, float]


def make_hidden_modes(study: Study, wanted: Sequence[str] | None) -> Result:
    """Centres against hidden classes for K = 1, 5 and 20, with and without the regulariser."""
    chosen = select({f"hidden-modes_{variant.name}": variant for variant in variants(NUMBERS_OF_CENTERS)}, wanted)
    recipe = with_settings(Config(), BUDGET)
    if not study.lacking:
        _check_data(study.config(recipe, seed=0))
    measured = measure(study, {name: variant.of(recipe) for name, variant in chosen.items()}, modes_of)
    found = {variant: measured[name].values for name, variant in chosen.items()}
    numbers = {variant: {title: _number(values, title) for title in SHARES} for variant, values in found.items()}
    ran = [values for values in found.values() if values]
    hidden = f"{ran[0][0].modes_per_class:.1f} per training class, by fine labels that no loss sees" if ran else NOTHING
    sheet = Sheet(
        title="Hidden modes: what centres find inside the classes",
        facts=(*facts(study, measured), ("Hidden modes", hidden)),
        columns=("centres", *SHARES),
        blocks=tuple(
            Block(
                f"K = {k}", tuple(line for v in chosen.values() if v.k == k for line in _lines(v, found[v], numbers[v]))
            )
            for k in dict.fromkeys(variant.k for variant in chosen.values())
        ),
        notes=(
            "In per cent; centres: distinct ones per class.",
            "Purity and NMI: training items grouped by the nearest centre of their class, against their fine labels."
            " K = 1 is what the class alone gives; purity rises with the number of groups by itself. AMI in class: the"
            " agreement inside each class, where 0 is chance whatever that number is.",
            "R@1: unseen items of unseen classes.",
            *lacking_notes(measured),
        ),
    )
    panels = {title: curves({variant: numbers[variant][title] for variant in numbers}) for title in DRAWN}
    caption = bars_caption(n for by_title in numbers.values() for n in by_title.values())
    return Result(
        sheet,
        numbers={
            variant.name: {
                "distinct_centers": as_json(number(modes.distinct_centers for modes in found[variant])),
                **{SHARES[title]: as_json(value) for title, value in by_title.items()},
            }
            for variant, by_title in numbers.items()
        },
        figure=draw_curves(panels, xlabel="centres per class, K", caption=caption) if ran else None,
        lacking=nothing_ran(measured),
    )


def modes_of(config: Config, run: RunDir, reporter: Reporter) -> Modes:
    """What the centres of a run have found; it is trained first if that is not done."""
    kept = run.path / "hidden-modes.json"
    if kept.exists():
        check_settings(config, run)
        values: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        intervals: dict[str, Any] = {name: tuple(values.pop(name)) for name in ("fine_interval", "class_interval")}
        return Modes(**values, **intervals)
    outcome = train(config, run, reporter, resume=True)
    modes = find_modes(outcome)
    write_whole(kept, json.dumps(asdict(modes), indent=2) + "\n")
    return modes


def find_modes(outcome: Outcome) -> Modes:
    """Compare the centres of a trained loss with the fine labels of its data."""
    learned, test, loss = outcome.learned, outcome.benchmark.test, outcome.loss
    assert learned.fine_labels is not None  # as _check_data saw
    assert test.fine_labels is not None
    assert isinstance(loss, SoftTripleLoss)
    labels, fine = torch.from_numpy(learned.labels), torch.from_numpy(learned.fine_labels)
    vectors = embed_feed(outcome.encoder, still_feed(outcome.encoder, learned), device=loss.centers.device)
    groups = group_by_center(vectors, labels, loss.centers.detach().cpu())
    retrieved = evaluate(
        Embeddings(outcome.test.vectors, torch.from_numpy(test.fine_labels)), recall_at=(1,), kmeans_restarts=0
    )
    return Modes(
        modes_per_class=len(torch.unique(fine)) / len(torch.unique(labels)),
        distinct_centers=loss.distinct_centers().float().mean().item(),
        purity=purity(fine, groups),
        nmi=nmi(fine, groups),
        ami_in_class=ami_in_class(labels, fine, groups),
        fine_recall=retrieved.recall[1],
        fine_interval=retrieved.intervals["recall@1"],
        class_recall=outcome.report.recall[1],
        class_interval=outcome.report.intervals["recall@1"],
    )


def group_by_center(
    vectors: Float[Tensor, "items dim"], labels: Int[Tensor, " items"], centers: Float[Tensor, "classes k dim"]
) -> Int[Tensor, " items"]:
    """The group of each item: its class and the nearest centre of that, merged centres being one."""
    unit = F.normalize(centers, dim=-1)
    similarity = torch.einsum("nd,nkd->nk", vectors, unit[labels])
    nearest = similarity.argmax(dim=1, keepdim=True)
    leaders = merge_groups(unit, MERGED)[labels].gather(1, nearest)[:, 0]
    return labels * centers.shape[1] + leaders


def purity(fine: Int[Tensor, " items"], groups: Int[Tensor, " items"]) -> float:
    """Share of items that have the commonest fine label of their group.

    Example:
        >>> purity(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 5, 7]))
        0.75
    """
    pairs, counts = torch.unique(torch.stack([groups, fine], dim=1), dim=0, return_counts=True)
    commonest: dict[int, int] = {}
    for group, count in zip(pairs[:, 0].tolist(), counts.tolist(), strict=True):
        commonest[group] = max(commonest.get(group, 0), count)
    return sum(commonest.values()) / len(fine)


def ami_in_class(labels: Int[Tensor, " items"], fine: Int[Tensor, " items"], groups: Int[Tensor, " items"]) -> float:
    """Agreement of groups and fine labels inside a class, adjusted for chance: mean over items of classes with modes.

    Example:
        >>> labels, fine = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 0, 1, 1, 2])
        >>> round(ami_in_class(labels, fine, torch.tensor([0, 0, 1, 1, 2])), 4), ami_in_class(labels, fine, labels)
        (1.0, 0.0)
    """
    total, items = 0.0, 0
    for label in torch.unique(labels):
        members = labels == label
        if len(torch.unique(fine[members])) > 1:
            total += ami(fine[members], groups[members]) * int(members.sum())
            items += int(members.sum())
    return total / items if items else 0.0


def _check_data(config: Config) -> None:
    """ValueError before anything is trained on data that hide nothing."""
    benchmark = load_data(config, Reporter(quiet=True))
    if benchmark.train.fine_labels is None or benchmark.test.fine_labels is None:
        raise ValueError(
            f"{config.dataset} has no fine labels for the centres to find;"
            " hidden-modes takes glyphs or omniglot-alphabets:PATH"
        )


def _number(values: Sequence[Modes], title: str) -> Number | None:
    interval = None
    if len(values) == 1 and title.startswith("R@1"):
        interval = values[0].fine_interval if title == "R@1 fine" else values[0].class_interval
    return number((getattr(modes, SHARES[title]) for modes in values), interval)


def _lines(variant: Variant, values: Sequence[Modes], numbers: dict[str, Number | None]) -> tuple[Line, ...]:
    label = "one centre" if variant.k == 1 else WITH if variant.regularized else WITHOUT
    known = [n for n in numbers.values() if n is not None]
    if not known:
        return (Line(label, (NOTHING,) * (1 + len(SHARES))),)
    centers = sum(modes.distinct_centers for modes in values) / len(values)
    return (
        Line(label, (f"{centers:.1f}", *(n.percent for n in known)), strong=True),
        Line(uncertainty_label(known), ("", *(n.uncertainty for n in known))),
    )
