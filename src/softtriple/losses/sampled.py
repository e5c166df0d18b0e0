"""Class sampling for very many classes: each step uses only some of them, as in Partial FC (An et al., CVPR 2022).

The classes of the batch always take part, together with as many others, drawn uniformly, as make up the share ``rate``;
a class comes with all its centres. The loss, including the regulariser, is SoftTriple over the sampled classes. As in
that paper, no positive is ever missing and every negative is equally likely. Nothing corrects for the missing
negatives, so the value is lower than that of the full loss, and each sampled negative has more weight.

The gradient of the centres is a sparse tensor of the sampled rows, so that an optimiser for sparse gradients
(``softtriple.training.optim.RowAdam``, ``torch.optim.SparseAdam``) skips all others.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from softtriple import dist
from softtriple.errors import UserError
from softtriple.losses.base import Labels, Loss, Shard, Vectors
from softtriple.losses.sharded import ShardedSoftTripleLoss
from softtriple.losses.softtriple import SoftTripleLoss, prefix_working_bytes
from softtriple.losses.tiled import RecycledMemory


def sample_classes(loss: Loss, rate: float, seed: int = 0) -> Loss:
    """``loss``, SoftTriple or its sharded form, over a share ``rate`` of the classes in each step."""
    if check_rate(rate) == 1:
        return loss
    if isinstance(loss, SoftTripleLoss):
        loss = ShardedSoftTripleLoss(loss)
    if not isinstance(loss, ShardedSoftTripleLoss):
        raise UserError(f"sample_rate = {rate}: only softtriple and softmax-norm can sample classes")
    return SampledSoftTripleLoss(loss, rate, seed)


def check_rate(rate: float) -> float:
    """``rate``, or UserError unless it is above 0 and at most 1."""
    if not 0 < rate <= 1:
        raise UserError(f"sample_rate = {rate!r} must be above 0 and at most 1")
    return rate


class SampledSoftTripleLoss(Loss):
    """``loss`` over a new sample of its classes in each training step; over all of them in evaluation mode.

    A sample depends on the seed, the number of earlier samples (``draws``, part of the state) and the classes of the
    rank: a resumed run continues with the same samples, and a different number of ranks draws different ones.
    """

    sparse_gradients = True
    draws: Tensor

    def __init__(self, loss: ShardedSoftTripleLoss, rate: float, seed: int) -> None:
        super().__init__(loss.num_classes, loss.embedding_size, validate=loss.validate)
        self.loss, self.rate, self.seed = loss, rate, seed
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))
        self._memory = RecycledMemory()

    @property
    def shard(self) -> Shard:
        """The centres of this rank, and their classes."""
        return self.loss.shard

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss over the batches of all ranks among the sampled classes, plus tau times their spread."""
        if not self.training:
            value: Tensor = self.loss(embeddings, labels)
            return value
        embeddings, labels = self.loss.gathered(embeddings, labels)
        own, local = self.loss.local_rows(labels)
        rows = self._draw(own[local])
        # Position of each example's own class in the sample, if that class is on this rank.
        own = torch.where(local, torch.searchsorted(rows, own), -1)
        num_drawn = dist.sum_(torch.tensor(len(rows)))
        centers: Tensor = _TakeRows.apply(self.loss.centers, rows, self._memory)  # type: ignore[no-untyped-call]
        return self.loss.objective(embeddings, own, centers, int(num_drawn))

    def distinct_centers(self) -> Int[Tensor, " classes"]:
        """Number of distinct centres of each class, sampled or not."""
        return self.loss.distinct_centers()

    def initialize_centers(self, embeddings: Vectors, labels: Labels) -> None:
        """Initialise the centres of all classes from data."""
        self.loss.initialize_centers(embeddings, labels)

    def gradient_bytes(self, batch_size: int) -> int:
        """Memory of the gradient of the sampled centres."""
        return self._sampled_shape(batch_size).numel() * self.loss.centers.element_size()

    def working_bytes(self, batch_size: int) -> int:
        """Approximate scratch memory of a step, including a copy of the sampled centres."""
        shape, element_size = self._sampled_shape(batch_size), self.loss.centers.element_size()
        tiles = prefix_working_bytes(batch_size, shape, self.loss.prefixes, self.loss.settings.tau, element_size)
        return tiles + shape.numel() * element_size

    def _sampled_shape(self, batch_size: int) -> torch.Size:
        """Largest shape of the sampled centres: the classes of the batch all differ and are all on this rank."""
        num_classes, *rest = self.loss.centers.shape
        return torch.Size((min(num_classes, max(math.ceil(self.rate * num_classes), batch_size)), *rest))

    def _draw(self, positives: Int[Tensor, " positives"]) -> Int[Tensor, " rows"]:
        random = np.random.default_rng([self.seed, int(self.draws), self.loss.classes.start])
        self.draws += 1
        rows = draw_rows(len(self.loss.classes), self.rate, positives.cpu().numpy(), random)
        return torch.from_numpy(rows).to(positives.device)


def draw_rows(
    count: int, rate: float, positives: Integer[np.ndarray, " positives"], random: np.random.Generator
) -> Integer[np.ndarray, " rows"]:
    """A share ``rate`` of ``count`` rows, ascending: all ``positives`` and a uniform sample of the others.

    Example:
        >>> len(draw_rows(10, 0.25, np.array([7, 7]), np.random.default_rng(0)))
        3
    """
    # The rows with the smallest random keys, which a partition finds without sorting.
    keys = random.random(count)
    keys[positives] = -1.0
    wanted = max(math.ceil(rate * count), int((keys < 0).sum()))
    if wanted == count:
        return np.arange(count)
    return np.flatnonzero(keys < np.partition(keys, wanted)[wanted])


class _TakeRows(torch.autograd.Function):
    """Forward: some rows, in reused memory. Backward: a sparse gradient of these rows."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: Tensor, memory: RecycledMemory) -> Tensor:
        ctx.rows, ctx.shape = rows, weights.shape
        return torch.index_select(weights, 0, rows, out=memory.empty_like(weights[: len(rows)]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return torch.sparse_coo_tensor(ctx.rows[None], gradient, ctx.shape, check_invariants=False), None, None
