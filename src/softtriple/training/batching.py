"""Batches as a loss wants them: it says so, and nothing else needs to know which loss it is.

A loss may have ``per_class`` (how many examples of each class it needs side by side; none for a plain shuffle),
``choose_classes`` (which classes it wants around some anchors) and ``start_epoch`` (a look at all embeddings).
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64, Integer
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import TrainConfig
from softtriple.data import m_per_class, rows_of_classes, shuffled
from softtriple.data.randomness import stream
from softtriple.feeds import Feed


@runtime_checkable
class LooksAhead(Protocol):
    """A loss that looks at the embeddings of all training items before each epoch."""

    def start_epoch(self, embeddings: Tensor, labels: Tensor) -> None:
        """Take note of the embeddings."""


Labels = Int64[np.ndarray, " items"]
Rows = Integer[np.ndarray, " rows"]


def row_batches(loss: nn.Module, labels: Labels, config: TrainConfig, epoch: int) -> Iterator[Rows]:
    """The rows of each batch of ``epoch``."""
    per_class: int | None = getattr(loss, "per_class", None)
    if per_class is None:
        return shuffled(len(labels), config.batch_size, config.seed, epoch)
    num_classes = int(labels.max()) + 1
    classes_per_batch = min(max(config.batch_size // per_class, 2), num_classes)
    choose: Callable[[Tensor], Tensor] | None = getattr(loss, "choose_classes", None)
    if choose is None:
        return m_per_class(labels, classes_per_batch, per_class, config.seed, epoch)
    groups = _neighborhoods(choose, num_classes, classes_per_batch, stream("anchors", config.seed, epoch))
    count = max(len(labels) // (classes_per_batch * per_class), 1)
    return rows_of_classes(labels, (next(groups) for _ in range(count)), per_class, config.seed, epoch)


def own_parts(feed: Feed, row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Inputs and labels of this rank's part of each batch; in one process that is the whole batch.

    The parts of all ranks are the batch in its order, so that the sequence of batches does not depend on their number.
    A rank that a small last batch has nothing for gets its first row, without a label.
    """
    asked, known = itertools.tee(row_batches)
    with closing(feed.batches((_own(batch) for batch in asked), epoch)) as found:
        for (inputs, labels), batch in zip(found, known, strict=True):
            part = dist.share(len(batch))
            yield inputs, labels[: part.stop - part.start]


def _own(batch: Rows) -> Rows:
    part = batch[dist.share(len(batch))]
    return part if len(part) else batch[:1]


def _neighborhoods(
    choose: Callable[[Tensor], Tensor], num_classes: int, size: int, generator: np.random.Generator
) -> Iterator[Labels]:
    """Groups of about ``size`` classes: random anchors, each with the classes around it, none twice."""
    while True:
        anchors = torch.from_numpy(generator.permutation(num_classes))
        around = choose(anchors).cpu().numpy()
        per_batch = max(size // around.shape[1], 1)
        for start in range(0, num_classes, per_batch):
            yield np.unique(around[start : start + per_batch])[: max(size, around.shape[1])]
