"""Losses over several processes: ``shard(loss)`` from outside; no loss knows of ranks itself.

SoftTriple's centres are split by class: a rank has the parameters, gradients and optimiser state of its classes alone.
A step then is

    embeddings and labels gathered          every rank has the whole batch
    similarity to the classes at hand       the tiles of ``tiled.py``, as in one process
    log Σ exp, own logit, spread gathered   2 batch + 1 numbers a rank, from which each rank has the value
    gradient of the centres                 local and complete
    gradient of the embeddings              the part through the classes at hand, summed over ranks

Every other loss sees the whole batch on every rank: its parameters are there on each, and so are their gradients.
Value and gradients are those of one process; ranks may bring different numbers of examples, or none.
"""

from typing import Any

import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple import dist
from softtriple.losses.centers import MERGED, count_distinct, draw_centers, param_groups
from softtriple.losses.checks import checked_embeddings, checked_labels
from softtriple.losses.softtriple import SoftTripleLoss
from softtriple.losses.tiled import Part, RecycledMemory, Settings, Totals, tiled_objective

# Centres drawn at once while those of other ranks are passed over.
DRAWN_AT_ONCE = 1 << 24


def shard(loss: nn.Module) -> nn.Module:
    """``loss`` over all ranks, for the part of the batch that each of them has; ``loss`` itself in one process.

    SoftTriple and the normalised softmax leave their centres to the ``ShardedSoftTripleLoss`` that comes back. Made on
    the meta device (``with torch.device("meta")``), they never exist as a whole. Other losses come back as they are,
    with the parameters and buffers of the first rank, but gather the batch before they look at it.
    """
    if dist.world_size() == 1:
        return loss
    if isinstance(loss, SoftTripleLoss):
        return ShardedSoftTripleLoss(loss)
    dist.sync_state(loss)
    loss.register_forward_pre_hook(_gather_inputs)
    return loss


class ShardedSoftTripleLoss(nn.Module):
    """SoftTriple with the centres of this rank's classes alone; its value is that of all classes.

    ``classes`` are those of this rank, ``num_classes`` counts all of them. In one process it is the loss it was made
    from, and shares its centres. Second derivatives are not to be had.
    """

    def __init__(self, loss: SoftTripleLoss) -> None:
        super().__init__()
        self.num_classes = len(loss.centers)
        self.classes = range(self.num_classes)[dist.share(self.num_classes)]
        self.settings = Settings(loss.scale, loss.gamma, loss.margin, loss.tau, loss.smoothing)
        self.validate = loss.validate
        self.centers = _own_centers(loss.centers, self.classes)
        self._memory = RecycledMemory()

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Mean loss over the batches of all ranks, plus tau times the spread of all centres."""
        embeddings, labels = self.gathered(embeddings, labels)
        own = labels - self.classes.start
        own = torch.where((own >= 0) & (own < len(self.classes)), own, -1)
        return self.objective(embeddings, own, self.centers, self.num_classes)

    def gathered(
        self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "all dim"], Int[Tensor, " all"]]:
        """The batch of all ranks, checked."""
        embeddings, labels = dist.gather_batch(embeddings, labels)
        embeddings = checked_embeddings(embeddings, self.centers, look_at_values=self.validate)
        return embeddings, checked_labels(labels, len(embeddings), self.num_classes if self.validate else None)

    def objective(
        self,
        embeddings: Float[Tensor, "batch dim"],
        own: Int[Tensor, " batch"],
        centers: Float[Tensor, "classes k dim"],
        num_classes: int,
    ) -> Float[Tensor, ""]:
        """The objective over ``num_classes`` on all ranks, of which this one has ``centers``; ``own`` are their rows.

        ``own`` is −1 for an example whose class is on another rank. The embeddings' gradient comes as many times as
        there are ranks, because the encoder's gradients are averaged over them.
        """
        part = Part(num_classes, _combine, gain=dist.world_size())
        with torch.autocast(embeddings.device.type, enabled=False):
            centers = centers.to(embeddings.dtype)
            return tiled_objective(embeddings, own, centers, self.settings, _no_definition, self._memory, part)

    @torch.no_grad()
    def distinct_centers(self, tolerance: float = MERGED) -> Int[Tensor, " classes"]:
        """How many centres each class has left, on all ranks, when those within ``tolerance`` count as one."""
        return dist.gather_rows(count_distinct(self.centers, tolerance))

    param_groups = param_groups


def _gather_inputs(loss: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return dist.gather_batch(*inputs)


def _combine(here: Totals) -> Totals:
    """Totals over all ranks, the same on each: they are added in the order of the ranks."""
    numbers = dist.stack(torch.cat([here.log_total, here.own_logits, here.distance[None]]))
    batch = len(here.log_total)
    log_totals, own_logits, distances = numbers[:, :batch], numbers[:, batch:-1], numbers[:, -1]
    return Totals(log_totals.logsumexp(dim=0), own_logits.sum(dim=0), distances.sum())


def _own_centers(centers: nn.Parameter, classes: range) -> nn.Parameter:
    """The rows of ``classes``; drawn as one process would draw them where the centres are on the meta device."""
    if not centers.is_meta:
        return (
            centers
            if len(classes) == len(centers)
            else nn.Parameter(centers.detach()[classes.start : classes.stop].clone())
        )
    own = torch.empty(len(classes), *centers.shape[1:], dtype=centers.dtype)
    at_once = max(1, DRAWN_AT_ONCE // centers[0].numel())
    for start in range(0, len(centers), at_once):
        end = min(start + at_once, len(centers))
        drawn = draw_centers(end - start, tuple(centers.shape))
        first, last = max(start, classes.start), min(end, classes.stop)
        if first < last:
            own[first - classes.start : last - classes.start] = drawn[first - start : last - start]
    return nn.Parameter(own)


def _no_definition(*_: Any) -> Tensor:
    raise ValueError("second derivatives of a loss over several ranks, or over sampled classes, are not implemented")
