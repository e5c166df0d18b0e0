"""Which items a run is calibrated on: those of classes that it was not trained on."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Int

from softtriple.data import Benchmark, Split
from softtriple.errors import UserError
from softtriple.metrics import Calibration, Embeddings
from softtriple.metrics.calibration import FEWEST_CLASSES, GallerySize, sample_rows, usable_classes
from softtriple.models.features import Rows

ENOUGH_CLASSES = 20

Labels = Int[np.ndarray, " items"]


def calibration_split(benchmark: Benchmark, held_out: Split | None) -> tuple[str, Split]:
    """The items of a run's own data to calibrate on, and what they are: held-out training classes if there are enough.

    Calibrating on them leaves the test classes untouched, but a few of them do not fix a threshold. Otherwise it is the
    test classes, which training has not seen either; the report is then about the same items.
    """
    enough = min(ENOUGH_CLASSES, len(np.unique(benchmark.test.labels)) // 2)
    if held_out is None or len(np.unique(held_out.labels)) < enough:
        return "test classes", benchmark.test
    return "validation classes", held_out


def unseen_rows(labels: Labels, class_names: Sequence[str], trained: Sequence[str]) -> Rows:
    """Rows whose class is not one of those trained on, by name."""
    seen = set(trained)
    return np.flatnonzero([class_names[label] not in seen for label in labels.tolist()])


def unseen_embeddings(embedded: Embeddings, trained: Sequence[str]) -> Embeddings | None:
    """The embeddings of classes not trained on, or None if there are too few to calibrate on."""
    labels = embedded.labels.cpu().numpy()
    rows = unseen_rows(labels, embedded.class_names, trained)
    if len(usable_classes(labels[rows])) < FEWEST_CLASSES:
        return None
    return Embeddings(embedded.vectors[rows], embedded.labels[rows], class_names=embedded.class_names)


def embed_unseen(
    benchmark: Benchmark, trained: Sequence[str], embed: Callable[[Split, Sequence[str]], Embeddings]
) -> Embeddings | None:
    """Embeddings of items of all splits whose class was not trained on, no more of them than a calibration uses."""
    parts = []
    for split in benchmark.splits.values():
        unseen = split.take(unseen_rows(split.labels, benchmark.class_names, trained))
        if len(rows := sample_rows(unseen.labels)):
            parts.append(embed(unseen.take(rows), benchmark.class_names))
    if not parts:
        return None
    vectors, labels = (torch.cat(column) for column in ([p.vectors for p in parts], [p.labels for p in parts]))
    return unseen_embeddings(Embeddings(vectors, labels, class_names=benchmark.class_names), trained)


def too_few(source: str) -> UserError:
    """The error for data without enough classes that were not trained on."""
    return UserError(
        f"{source}: fewer than {FEWEST_CLASSES} classes with two or more items were not trained on, and only such "
        "classes show what unknown items look like. Choose others with --data, or train with --set train.hold_out=0.2"
    )


def gallery_size(calibration: Calibration, held: Mapping[str, int], only: Sequence[str] = ()) -> GallerySize:
    """The calibration for a gallery with ``held`` items of each class, of which ``only`` some may be searched."""
    sizes = [count for name, count in held.items() if not only or name in only]
    return calibration.at(len(sizes), sum(sizes))
