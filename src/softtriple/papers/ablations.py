"""What the centres do: how many are left of twenty, and R@1 by their number, with and without the regulariser.

The paper's figures of CUB-2011. Tau is the weight of the regulariser; without it tau is zero.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from softtriple.config import Config, with_settings
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.metrics import Report
from softtriple.models.weights import read_tensors
from softtriple.papers.figures import draw_centers, draw_curves
from softtriple.papers.recipes import softtriple_recipe
from softtriple.papers.results import Result
from softtriple.papers.runs import Study, facts, lacking_notes, measure, nothing_ran, report_of, select
from softtriple.papers.sheets import Block, Line, Number, Sheet, as_json, bars_caption, number, uncertainty_label
from softtriple.progress import Reporter
from softtriple.training.directory import RunDir

MOST_CENTERS = 20
NUMBERS_OF_CENTERS = (1, 2, 5, 10, 20)
WITH, WITHOUT = "with regulariser", "without regulariser"


class Variant(NamedTuple):
    """SoftTriple with K centres per class, with or without the regulariser."""

    k: int
    regularized: bool

    @property
    def name(self) -> str:
        """What tells its runs from those of others."""
        return f"k{self.k}" if self.regularized else f"k{self.k}_no-regularizer"

    def of(self, recipe: Config) -> Config:
        """``recipe`` with these centres."""
        without = [] if self.regularized else ["loss.options.tau=0.0"]
        return with_settings(recipe, [f"loss.centers_per_class={self.k}", *without])


def variants(numbers_of_centers: Sequence[int]) -> list[Variant]:
    """Each number of centres with and without the regulariser, which does nothing to one centre: that is run once."""
    return [
        Variant(k, regularized) for k in numbers_of_centers for regularized in (True, False) if k > 1 or regularized
    ]


def curves(numbers: Mapping[Variant, Number | None]) -> dict[str, dict[int, Number]]:
    """The numbers by K, once with and once without the regulariser; one centre belongs to both."""
    known = {variant: found for variant, found in numbers.items() if found is not None}
    return {
        name: {
            variant.k: found for variant, found in known.items() if variant.regularized == regularized or variant.k == 1
        }
        for name, regularized in ((WITH, True), (WITHOUT, False))
    }


def make_centers(study: Study, wanted: Sequence[str] | None) -> Result:
    """Distinct centres of each class after training with twenty."""
    chosen = select({f"softtriple_{variant.name}": variant for variant in variants([MOST_CENTERS])}, wanted)
    measured = measure(study, {name: variant.of(softtriple_recipe()) for name, variant in chosen.items()}, distinct_of)
    # A class is the same in every seed, so its counts have a mean.
    counts = {
        variant: np.mean(measured[name].values, axis=0) for name, variant in chosen.items() if measured[name].values
    }
    titles = {True: WITH, False: WITHOUT}
    lines = tuple(
        Line(
            titles[variant.regularized],
            (f"{found.mean():.1f}", f"{found.min():.1f}–{found.max():.1f}", f"{np.median(found):.1f}"),
        )
        for variant, found in counts.items()
    )
    sheet = Sheet(
        title=f"Distinct centres per class, of {MOST_CENTERS}",
        facts=facts(study, measured),
        columns=("mean", "range", "median"),
        blocks=(Block(f"K = {MOST_CENTERS}", lines),) if lines else (),
        notes=(
            f"Centres closer than {MERGED} on the unit sphere count as one. Over classes, each the mean of its seeds.",
            *lacking_notes(measured),
        ),
    )
    return Result(
        sheet,
        numbers={variant.name: measured[name].values for name, variant in chosen.items()},
        figure=draw_centers({titles[v.regularized]: found.tolist() for v, found in counts.items()}, MOST_CENTERS)
        if counts
        else None,
        lacking=nothing_ran(measured),
    )


def make_recall_by_k(study: Study, wanted: Sequence[str] | None) -> Result:
    """R@1 for K = 1 to 20."""
    chosen = select({f"softtriple_{variant.name}": variant for variant in variants(NUMBERS_OF_CENTERS)}, wanted)
    measured = measure(study, {name: variant.of(softtriple_recipe()) for name, variant in chosen.items()}, report_of)
    found = {variant: _recall(measured[name].values) for name, variant in chosen.items()}
    sheet = Sheet(
        title="R@1 of SoftTriple by the number of centres per class",
        facts=facts(study, measured),
        columns=("R@1", uncertainty_label(found.values())),
        blocks=tuple(
            Block(
                name,
                tuple(Line(f"K = {k}", (value.percent, value.uncertainty)) for k, value in sorted(by_k.items())),
            )
            for name, by_k in curves(found).items()
        ),
        notes=("R@1 in per cent. One centre has nothing to regularise: K = 1 is one run.", *lacking_notes(measured)),
    )
    nothing = nothing_ran(measured)
    return Result(
        sheet,
        numbers={variant.name: as_json(value) for variant, value in found.items()},
        figure=None
        if nothing
        else draw_curves({"R@1": curves(found)}, xlabel="centres per class, K", caption=bars_caption(found.values())),
        lacking=nothing,
    )


def distinct_of(config: Config, run: RunDir, reporter: Reporter) -> tuple[int, ...]:
    """How many distinct centres each class of a run has, which is trained first if it is not finished."""
    report_of(config, run, reporter)
    return tuple(count_distinct(read_tensors(run.centers_file)["centers"], MERGED).tolist())


def _recall(reports: Sequence[Report]) -> Number | None:
    interval = reports[0].intervals.get("recall@1") if reports else None
    return number((report.recall.get(1) for report in reports), interval)
