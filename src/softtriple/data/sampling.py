"""Which rows make a batch. An epoch is a function of (seed, epoch): a resumed run sees the same batches."""

from collections.abc import Iterator

import numpy as np

from softtriple.data.benchmark import Labels, Rows
from softtriple.data.randomness import stream


def in_order(num_rows: int, batch_size: int) -> Iterator[Rows]:
    """Every row once, as they stand: for embedding and evaluation."""
    return _chunks(np.arange(num_rows), batch_size)


def shuffled(num_rows: int, batch_size: int, seed: int, epoch: int, drop_last: bool = False) -> Iterator[Rows]:
    """Every row once, in random order; ``drop_last`` leaves out a last batch that is not full.

    All that SoftTriple needs: its centres take the place of sampled triplets.
    """
    order = stream("shuffle", seed, epoch).permutation(num_rows)
    if drop_last:
        order = order[: num_rows // batch_size * batch_size]
    return _chunks(order, batch_size)


def m_per_class(labels: Labels, classes_per_batch: int, m: int, seed: int, epoch: int) -> Iterator[Rows]:
    """Batches of ``m`` rows from each of ``classes_per_batch`` classes, for losses that compare pairs.

    As many batches as a shuffle of the same size would have. Classes come in shuffled rounds, so they are seen
    equally often; a class with fewer than ``m`` rows repeats some.
    """
    classes = np.unique(labels)
    if not 1 <= classes_per_batch <= len(classes):
        raise ValueError(f"classes_per_batch = {classes_per_batch} must lie between 1 and the {len(classes)} classes")
    if m < 1:
        raise ValueError(f"m = {m} rows of each class are too few: at least 1 is needed")
    by_class = {label: np.flatnonzero(labels == label) for label in classes}
    generator = stream("m per class", seed, epoch)
    groups_in_round = len(classes) // classes_per_batch
    for batch in range(max(len(labels) // (classes_per_batch * m), 1)):
        group = batch % groups_in_round
        if group == 0:
            order = generator.permutation(classes)
        chosen = order[group * classes_per_batch : (group + 1) * classes_per_batch]
        yield np.concatenate(
            [generator.choice(by_class[label], m, replace=len(by_class[label]) < m) for label in chosen]
        )


def _chunks(rows: Rows, batch_size: int) -> Iterator[Rows]:
    if batch_size < 1:
        raise ValueError(f"batch_size = {batch_size} is too small: at least 1 is needed")
    return (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
