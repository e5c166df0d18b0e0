"""Class sampling for very many classes: each step looks at some of them, as Partial FC does (An et al., CVPR 2022).

The classes of the batch always take part, and as many others, drawn evenly, as make the share ``rate``; a class comes
with all its centres. The loss is SoftTriple over those classes alone, cross-entropy and regulariser. It is unbiased in
the sense of that paper: no positive is ever missing, and every negative has the same chance. Nothing corrects for the
negatives left out, so that the value is lower than that of the full loss, and a negative in the draw counts for more.

Centres that were not drawn have no gradient, not one of zeros: the gradient is a sparse tensor of rows, and an
optimiser that knows such (``softtriple.training.optim.RowAdam``, ``torch.optim.SparseAdam``) leaves the others alone.
"""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple import dist
from softtriple.losses.centers import param_groups
from softtriple.losses.sharded import ShardedSoftTripleLoss
from softtriple.losses.softtriple import SoftTripleLoss
from softtriple.losses.tiled import RecycledMemory


def sample_classes(loss: nn.Module, rate: float, seed: int = 0) -> nn.Module:
    """SoftTriple, sharded or not, over the share ``rate`` of the classes in each step; ``loss`` itself at 1.0."""
    if not 0 < rate <= 1:
        raise ValueError(f"sample_rate = {rate!r} must be above 0 and at most 1")
    if rate == 1:
        return loss
    if isinstance(loss, SoftTripleLoss):
        loss = ShardedSoftTripleLoss(loss)
    if not isinstance(loss, ShardedSoftTripleLoss):
        raise ValueError(f"sample_rate = {rate}: only softtriple and softmax-norm can sample classes")
    return SampledSoftTripleLoss(loss, rate, seed)


class SampledSoftTripleLoss(nn.Module):
    """``loss`` over a draw of its classes, another in each step; over all of them in evaluation mode.

    A draw depends on the seed, the number of draws before it (``draws``, part of the state) and the classes of the
    rank: a resumed run goes on as it would have, and one with another number of ranks draws others.
    """

    draws: Tensor

    def __init__(self, loss: ShardedSoftTripleLoss, rate: float, seed: int) -> None:
        super().__init__()
        self.loss, self.rate, self.seed = loss, rate, seed
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))
        self._memory = RecycledMemory()

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss over the batches of all ranks, among the classes drawn, plus tau times the spread of these."""
        if not self.training:
            value: Tensor = self.loss(embeddings, labels)
            return value
        embeddings, labels = self.loss.gathered(embeddings, labels)
        classes = self.loss.classes
        here = (labels >= classes.start) & (labels < classes.stop)
        own = labels - classes.start
        rows = self._draw(own[here])
        # Where in the draw the own class is, for those that are on this rank.
        own = torch.where(here, torch.searchsorted(rows, own), -1)
        num_drawn = dist.sum_(torch.tensor(len(rows)))
        centers: Tensor = _TakeRows.apply(self.loss.centers, rows, self._memory)  # type: ignore[no-untyped-call]
        return self.loss.objective(embeddings, own, centers, int(num_drawn))

    def _draw(self, positives: Int[Tensor, " positives"]) -> Int[Tensor, " rows"]:
        random = np.random.default_rng([self.seed, int(self.draws), self.loss.classes.start])
        self.draws += 1
        rows = draw_rows(len(self.loss.classes), self.rate, positives.cpu().numpy(), random)
        return torch.from_numpy(rows).to(positives.device)

    def distinct_centers(self) -> Int[Tensor, " classes"]:
        """How many centres each class has left, drawn or not."""
        return self.loss.distinct_centers()

    param_groups = param_groups


def draw_rows(
    count: int, rate: float, positives: Integer[np.ndarray, " positives"], random: np.random.Generator
) -> Integer[np.ndarray, " rows"]:
    """Rows of the share ``rate`` of ``count`` classes, ascending: all ``positives`` and an even draw of the others.

    Example:
        >>> len(draw_rows(10, 0.25, np.array([7, 7]), np.random.default_rng(0)))
        3
    """
    # Those with the smallest keys; the choice needs no sorting, and the order comes with it.
    keys = random.random(count)
    keys[positives] = -1.0
    wanted = max(math.ceil(rate * count), int((keys < 0).sum()))
    if wanted == count:
        return np.arange(count)
    return np.flatnonzero(keys < np.partition(keys, wanted)[wanted])


class _TakeRows(torch.autograd.Function):
    """Forward: some rows, in memory that is used again. Backward: a sparse gradient with these rows and no others."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, rows: Tensor, memory: RecycledMemory) -> Tensor:
        ctx.rows, ctx.shape = rows, weights.shape
        return torch.index_select(weights, 0, rows, out=memory.empty_like(weights[: len(rows)]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return torch.sparse_coo_tensor(ctx.rows[None], gradient, ctx.shape, check_invariants=False), None, None
