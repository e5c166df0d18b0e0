"""Which rows form a batch. It is a function of (seed, epoch), so a resumed run sees the same batches."""

import itertools
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import Int64, Integer

from softtriple.errors import UserError

Rows = Integer[np.ndarray, " _"]  # anonymous: two batches may differ in length
Labels = Int64[np.ndarray, " items"]


def stream(purpose: str, *counters: int) -> np.random.Generator:
    """Random generator for ``purpose`` at ``counters``, for example ``stream("crop", seed, epoch, row)``.

    Different purposes are independent, such as the shuffle and the crops of an epoch, which have the same counters.
    """
    return np.random.default_rng([zlib.crc32(purpose.encode()), *counters])


def in_order(num_rows: int, batch_size: int) -> Iterator[Rows]:
    """Every row once, in order: for embedding and evaluation."""
    return _chunks(np.arange(num_rows), batch_size)


def shuffled(num_rows: int, batch_size: int, seed: int, epoch: int) -> Iterator[Rows]:
    """Every row once, in random order.

    This is all that SoftTriple needs, because its centres replace sampled triplets.
    """
    return _chunks(stream("shuffle", seed, epoch).permutation(num_rows), batch_size)


def m_per_class(labels: Labels, classes_per_batch: int, m: int, seed: int, epoch: int) -> Iterator[Rows]:
    """Batches of ``m`` rows from each of ``classes_per_batch`` classes, for losses that compare pairs.

    There are as many batches as in a shuffle with the same batch size. Classes come in shuffled rounds, so all are
    seen equally often; a class with fewer than ``m`` rows repeats some.
    """
    classes = np.unique(labels)
    if not 1 <= classes_per_batch <= len(classes):
        raise UserError(f"classes_per_batch = {classes_per_batch}; expected 1 to {len(classes)}, the number of classes")
    if m < 1:
        raise UserError(f"m = {m}; expected at least 1 row per class")
    generator = stream("m per class", seed, epoch)
    groups = _class_rounds(classes, classes_per_batch, generator)
    count = max(len(labels) // (classes_per_batch * m), 1)
    return rows_of_classes(labels, itertools.islice(groups, count), m, seed, epoch)


def rows_of_classes(labels: Labels, groups: Iterable[Labels], m: int, seed: int, epoch: int) -> Iterator[Rows]:
    """One batch per group of classes: ``m`` rows of each class, some repeated if it has fewer."""
    by_class = {label: np.flatnonzero(labels == label) for label in np.unique(labels)}
    generator = stream("rows of classes", seed, epoch)
    for group in groups:
        pools = [by_class[label] for label in group]
        yield np.concatenate([generator.choice(pool, m, replace=len(pool) < m) for pool in pools])


def _class_rounds(classes: Labels, size: int, generator: np.random.Generator) -> Iterator[Labels]:
    while True:
        order = generator.permutation(classes)
        for group in range(len(classes) // size):
            yield order[group * size : (group + 1) * size]


def _chunks(rows: Rows, batch_size: int) -> Iterator[Rows]:
    if batch_size < 1:
        raise UserError(f"batch_size = {batch_size}; expected at least 1")
    return (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
