"""The paper's first figure, computed: classes of two modes on the circle, with one centre per class and with two.

The modes of the classes alternate around a circle in the plane, the two of one class opposite each other, and the
encoder is an affine map of the plane: it can bring the modes of one class together only by bringing all together. So
one centre cannot stand for a class, and two can.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch.nn.functional as F

from softtriple.config import Config, with_settings
from softtriple.data import VectorFile, write_vectors
from softtriple.data.sampling import stream
from softtriple.papers.figures import Circle, draw_circles
from softtriple.papers.results import Result
from softtriple.papers.runs import Study, facts, lacking_notes, measure, nothing_ran, select
from softtriple.papers.sheets import Block, Line, Sheet
from softtriple.progress import Reporter
from softtriple.training.directory import RunDir
from softtriple.training.train import train

NUM_CLASSES, ITEMS_PER_MODE, NOISE = 3, 80, 0.12
RECIPE = [
    "data.split=instances",
    "model.dim=2",
    "train.epochs=30",
    "train.milestones=[20]",
    "train.lr=1e-2",
    "train.center_lr=5e-2",
]
METHODS = {
    "softmax-norm": ("normalised softmax", ["loss.name=softmax-norm"]),
    "hard-triple": ("HardTriple, K = 2", ["loss.name=hard-triple", "loss.centers_per_class=2"]),
    "softtriple": ("SoftTriple, K = 2", ["loss.name=softtriple", "loss.centers_per_class=2"]),
}


def write_toy_set(path: Path) -> str:
    """Write the points as a file of vectors; its path, as data are named."""
    random = stream("two modes a class", 0)
    mode = np.repeat(np.arange(2 * NUM_CLASSES), ITEMS_PER_MODE)
    angle = np.pi * mode / NUM_CLASSES
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    points += NOISE * random.standard_normal(points.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_vectors(path, VectorFile(vectors=points.astype(np.float32), labels=mode % NUM_CLASSES))
    return str(path)


def make_illustration(study: Study, wanted: Sequence[str] | None) -> Result:
    """Embeddings of unseen items of the toy set, and the centres, for three losses."""
    drawn = f"drawn: {NUM_CLASSES} classes of two modes, {2 * ITEMS_PER_MODE} points each, half of them to train on"
    study = replace(study, protocol="full", notes=(drawn,))  # the rates below are part of the toy
    chosen = select(METHODS, wanted)
    recipes = {name: with_settings(Config(), [*RECIPE, *settings]) for name, (_, settings) in chosen.items()}
    measured = measure(study, recipes, circle_of)
    circles = {name: measured[name].values[0] for name in chosen if measured[name].values}
    sheet = Sheet(
        title=f"{NUM_CLASSES} classes of two modes each, in two dimensions",
        facts=facts(study, measured),
        columns=("classified right", "R@1"),
        blocks=tuple(
            Block(METHODS[name][0], (Line("unseen items, per cent", (f"{100 * a:.1f}", f"{100 * r:.1f}")),))
            for name, (_, a, r) in circles.items()
        ),
        notes=(
            "Arrows are the centres; items lie outside the circle, each class on a ring.",
            "The set is made so that one centre per class cannot do: it shows how, and measures nothing.",
            *lacking_notes(measured),
        ),
    )
    panels = [
        replace(circle, title=f"{METHODS[name][0]}\nright: {100 * accuracy:.0f} %")
        for name, (circle, accuracy, _) in circles.items()
    ]
    return Result(
        sheet,
        numbers={name: {"accuracy": a, "recall@1": r} for name, (_, a, r) in circles.items()},
        figure=draw_circles(panels) if panels else None,
        lacking=nothing_ran(measured),
    )


def circle_of(config: Config, run: RunDir, reporter: Reporter) -> tuple[Circle, float, float]:
    """Embeddings and centres of a run, the share of items whose class is right, and R@1."""
    outcome = train(config, run, reporter, resume=True)
    centers = F.normalize(outcome.loss.get_parameter("centers").detach().cpu(), dim=-1)
    assert outcome.report.accuracy is not None  # test items are of the classes trained on
    circle = Circle("", outcome.test.vectors.numpy(), outcome.test.labels.numpy(), centers.numpy())
    return circle, outcome.report.accuracy, outcome.report.recall[1]
