"""The figures of the paper: distinct centres, R@1 by number of centres, retrieved examples, and the illustration.

The illustration computes the paper's first figure on toy data. Each class has two modes, opposite each other on a
circle in the plane, and the encoder is an affine map: it cannot bring the two modes of a class together without the
others. So one centre cannot represent a class, and two can.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch.nn.functional as F

from softtriple.config import Config, with_values
from softtriple.data import VectorFile, write_vectors
from softtriple.data.sampling import stream
from softtriple.losses.centers import MERGED, count_distinct
from softtriple.papers.figures import Circle, draw_circles, draw_curves, draw_queries
from softtriple.papers.published import read_published
from softtriple.papers.recipes import recipe, softtriple_recipe
from softtriple.papers.runs import Measured, Study, make_result, measure, report_of, run_of, select
from softtriple.papers.sheets import Block, Line, Number, Result, as_json, bars_caption, uncertainty_label
from softtriple.papers.tables import metric_number
from softtriple.progress import Reporter
from softtriple.report.charts import draw_centers
from softtriple.report.pictures import Query, example_queries, example_rows
from softtriple.training.directory import RunDir

T = TypeVar("T")

# Number of centres, with and without the regulariser (tau = 0)

MOST_CENTERS = 20
NUMBERS_OF_CENTERS = (1, 2, 5, 10, 20)
CENTERS_AXIS = "centres per class, K"
REGULARIZED = {True: "with regulariser", False: "without regulariser"}


class Variant(NamedTuple):
    """SoftTriple with K centres per class, with or without the regulariser."""

    k: int
    regularized: bool

    @property
    def name(self) -> str:
        """The name of its runs."""
        return f"k{self.k}" if self.regularized else f"k{self.k}_no-regularizer"

    def of(self, recipe: Config) -> Config:
        """``recipe`` with this number of centres."""
        values: dict[str, Any] = {"loss.centers_per_class": self.k}
        return with_values(recipe, values if self.regularized else values | {"loss.options.tau": 0.0})


def measure_variants(
    study: Study,
    wanted: Sequence[str] | None,
    numbers_of_centers: Sequence[int],
    recipe: Config,
    look: Callable[[Config, RunDir, Reporter], T],
    *,
    prefix: str = "softtriple",
) -> tuple[dict[str, Measured[T]], dict[Variant, tuple[T, ...]]]:
    """The results of ``look`` with and without the regulariser, for the ``wanted`` rows: by row, and by variant.

    The regulariser has no effect on a single centre, which is run once.
    """
    variants = [Variant(k, regularized) for k in numbers_of_centers for regularized in (True, False)]
    rows = {f"{prefix}_{variant.name}": variant for variant in variants if variant.k > 1 or variant.regularized}
    chosen = select(rows, wanted)
    measured = measure(study, {name: variant.of(recipe) for name, variant in chosen.items()}, look)
    return measured, {variant: measured[name].values for name, variant in chosen.items()}


def curves(numbers: Mapping[Variant, Number | None]) -> dict[str, dict[int, Number]]:
    """The numbers by K, with and without the regulariser; a single centre belongs to both."""
    known = {variant: value for variant, value in numbers.items() if value is not None}
    return {
        title: {v.k: value for v, value in known.items() if v.regularized == regularized or v.k == 1}
        for regularized, title in REGULARIZED.items()
    }


def make_centers(study: Study, wanted: Sequence[str] | None) -> Result:
    """Distinct centres of each class after training with twenty."""
    measured, distinct = measure_variants(study, wanted, [MOST_CENTERS], softtriple_recipe(), distinct_of)
    # All seeds have the same classes, so the counts of a class have a mean.
    counts = {REGULARIZED[v.regularized]: np.mean(seeds, axis=0) for v, seeds in distinct.items() if seeds}
    lines = tuple(
        Line(title, (f"{count.mean():.1f}", f"{count.min():.1f}–{count.max():.1f}", f"{np.median(count):.1f}"))
        for title, count in counts.items()
    )
    panels = {title: count.tolist() for title, count in counts.items()}
    return make_result(
        study,
        measured,
        title=f"Distinct centres per class, of {MOST_CENTERS}",
        columns=("mean", "range", "median"),
        blocks=[Block(f"K = {MOST_CENTERS}", lines)] if lines else [],
        notes=[
            f"Centres within {MERGED} of each other on the unit sphere count as one. Mean, range and median are over"
            " classes; the count of a class is its mean over seeds.",
        ],
        numbers={variant.name: seeds for variant, seeds in distinct.items()},
        figure=draw_centers(panels, MOST_CENTERS) if panels else None,
    )


def distinct_of(config: Config, directory: RunDir, reporter: Reporter) -> tuple[int, ...]:
    """The number of distinct centres of each class of a run."""
    centers = run_of(config, directory, reporter).centers()
    assert centers is not None  # the loss is SoftTriple
    return tuple(count_distinct(centers, MERGED).tolist())


def make_recall_by_k(study: Study, wanted: Sequence[str] | None) -> Result:
    """R@1 for K = 1 to 20."""
    measured, reports = measure_variants(study, wanted, NUMBERS_OF_CENTERS, softtriple_recipe(), report_of)
    recalls = {variant: metric_number(seeds, "R@1") for variant, seeds in reports.items()}
    lines = {
        title: tuple(Line(f"K = {k}", (value.percent, value.uncertainty)) for k, value in sorted(by_k.items()))
        for title, by_k in curves(recalls).items()
    }
    panels, caption = {"R@1": curves(recalls)}, bars_caption(recalls.values())
    return make_result(
        study,
        measured,
        title="R@1 of SoftTriple by the number of centres per class",
        columns=("R@1", uncertainty_label(recalls.values())),
        blocks=[Block(title, by_k) for title, by_k in lines.items()],
        notes=["R@1 in per cent. The regulariser has no effect on K = 1, which is run once."],
        numbers={variant.name: as_json(value) for variant, value in recalls.items()},
        figure=draw_curves(panels, xlabel=CENTERS_AXIS, caption=caption) if any(recalls.values()) else None,
    )


# Retrieved examples

NUM_QUERIES, NUM_NEIGHBORS = 6, 4
COMPARED = ("softmax-norm", "softtriple")


def make_retrieved(study: Study, wanted: Sequence[str] | None) -> Result:
    """The nearest neighbours of a few test items, by the two methods of the paper's figure."""
    table = read_published()["table1"]
    chosen = select({row.name: row for row in table.rows if row.loss in COMPARED}, wanted)
    measured = measure(study, {name: recipe(table, row) for name, row in chosen.items()}, queries_of)
    answers = {row.method: measured[name].values[0] for name, row in chosen.items() if measured[name].values}
    correct = {method: _share_correct(queries) for method, queries in answers.items()}
    return make_result(
        study,
        measured,
        title="Retrieved examples",
        columns=("of the query's class",),
        blocks=[Block(method, (Line("neighbours shown", (share,)),)) for method, share in correct.items()],
        notes=[
            f"{NUM_QUERIES} random test items, the same for both methods, and their {NUM_NEIGHBORS} nearest neighbours,"
            " most similar first. A red box with a cross marks a class other than the query's.",
        ],
        numbers=dict(correct),
        figure=draw_queries(answers) if answers else None,
    )


def queries_of(config: Config, directory: RunDir, reporter: Reporter) -> tuple[Query, ...]:
    """Example queries of a run."""
    run = run_of(config, directory, reporter)
    split = run.benchmark().test
    rows = example_rows(split, NUM_QUERIES)
    return example_queries(run.test_embeddings, split, rows=rows, num_neighbors=NUM_NEIGHBORS)


def _share_correct(queries: Sequence[Query]) -> str:
    correct = [neighbor.same_class for query in queries for neighbor in query.neighbors]
    return f"{sum(correct)} of {len(correct)}"


# Illustration

NUM_CLASSES, ITEMS_PER_MODE, NOISE = 3, 80, 0.12
TOY_RECIPE: dict[str, Any] = {
    "data.split": "instances",
    "model.dim": 2,
    "train.epochs": 30,
    "train.milestones": (20,),
    "train.lr": 1e-2,
    "train.center_lr": 5e-2,
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax-norm": ("normalised softmax", {"loss.name": "softmax-norm"}),
    "hard-triple": ("HardTriple, K = 2", {"loss.name": "hard-triple", "loss.centers_per_class": 2}),
    "softtriple": ("SoftTriple, K = 2", {"loss.name": "softtriple", "loss.centers_per_class": 2}),
}


def write_toy_set(path: Path) -> str:
    """Write the toy set as a file of vectors; returns its path as a data source."""
    random = stream("two modes a class", 0)
    mode = np.repeat(np.arange(2 * NUM_CLASSES), ITEMS_PER_MODE)
    angle = np.pi * mode / NUM_CLASSES
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points += NOISE * random.standard_normal(points.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_vectors(path, VectorFile(vectors=points.astype(np.float32), labels=mode % NUM_CLASSES))
    return str(path)


def make_illustration(study: Study, wanted: Sequence[str] | None) -> Result:
    """Embeddings of unseen items of the toy data, and the centres, for three losses."""
    study = replace(study, protocol="paper")  # the toy recipe has its own learning rates
    chosen = select(METHODS, wanted)
    recipes = {name: with_values(Config(), {**TOY_RECIPE, **settings}) for name, (_, settings) in chosen.items()}
    measured = measure(study, recipes, circle_of)
    circles = {name: measured[name].values[0] for name in chosen if measured[name].values}
    panels = [
        replace(circle, title=f"{METHODS[name][0]}\naccuracy {100 * accuracy:.0f} %")
        for name, (circle, accuracy, _) in circles.items()
    ]
    return make_result(
        study,
        measured,
        data=f"toy data of {NUM_CLASSES} classes with two modes, {2 * ITEMS_PER_MODE} points each, half for training",
        title=f"{NUM_CLASSES} classes of two modes each, in two dimensions",
        columns=("accuracy", "R@1"),
        blocks=[
            Block(METHODS[name][0], (Line("unseen items, per cent", (f"{100 * a:.1f}", f"{100 * r:.1f}")),))
            for name, (_, a, r) in circles.items()
        ],
        notes=[
            "Arrows are centres. Items are drawn outside the circle, each class on its own ring.",
            "The toy data are built so that one centre per class cannot work: an illustration, not a benchmark.",
        ],
        numbers={name: {"accuracy": a, "recall@1": r} for name, (_, a, r) in circles.items()},
        figure=draw_circles(panels) if panels else None,
    )


def circle_of(config: Config, directory: RunDir, reporter: Reporter) -> tuple[Circle, float, float]:
    """Embeddings and centres of a run, its accuracy and its R@1."""
    run = run_of(config, directory, reporter)
    embeddings, centers = run.test_embeddings, run.centers()
    assert centers is not None
    assert run.report.accuracy is not None  # the test items have training classes
    unit = F.normalize(centers.cpu(), dim=-1)
    circle = Circle("", embeddings.vectors.numpy(), embeddings.labels.numpy(), unit.numpy())
    return circle, run.report.accuracy, run.report.recall[1]
