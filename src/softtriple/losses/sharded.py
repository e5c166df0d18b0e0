"""Losses over several processes: ``shard(loss)``. The losses themselves know nothing about ranks.

SoftTriple's centres are split by class: a rank holds the parameters, gradients and optimiser state of its own classes
only. One step:

    embeddings and labels gathered          every rank has the whole batch
    similarity to the local classes         in tiles (``tiled.py``), as in one process
    log Σ exp, own logit, spread gathered   2 batch + 1 numbers per rank, from which every rank computes the value
    gradient of the centres                 local and complete
    gradient of the embeddings              the part through the local classes, summed over ranks

Every other loss sees the whole batch on every rank, with parameters and gradients replicated. Value and gradients equal
those of one process; ranks may contribute different numbers of examples, or none.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from softtriple import dist
from softtriple.errors import UserError
from softtriple.losses.base import Labels, Loss, Shard, Vectors, as_tensors
from softtriple.losses.centers import MERGED, count_distinct, draw_centers, moved_to_data
from softtriple.losses.softtriple import SoftTripleLoss, prefix_objective, prefix_working_bytes
from softtriple.losses.tiled import Part, RecycledMemory, Totals

# Values drawn at once while skipping the centres of other ranks.
DRAWN_AT_ONCE = 1 << 24


def shard(loss: Loss) -> Loss:
    """``loss`` over all ranks, each of which passes its part of the batch; ``loss`` itself in one process.

    SoftTriple and the normalised softmax become a ``ShardedSoftTripleLoss``; if they are built on the meta device
    (``with torch.device("meta")``), no rank ever allocates all centres. Other losses get the parameters and buffers of
    the first rank, and gather the batch before each call.
    """
    if dist.world_size() == 1:
        return loss
    if isinstance(loss, SoftTripleLoss):
        return ShardedSoftTripleLoss(loss)
    dist.sync_state(loss)
    loss.register_forward_pre_hook(_gather_inputs)
    return loss


class ShardedSoftTripleLoss(Loss):
    """SoftTriple with the centres of this rank's classes only; the value is over all classes.

    ``classes`` are the classes of this rank; ``num_classes`` counts all classes. In a single process it equals the loss
    it was built from and shares its centres. Double backward is not supported.
    """

    centers: nn.Parameter

    def __init__(self, loss: SoftTripleLoss) -> None:
        super().__init__(loss.num_classes, loss.embedding_size, validate=loss.validate)
        if loss.synthesis:
            raise UserError(
                f"synthesis = {loss.synthesis} mixes classes, so all centres must be in one process: it works neither "
                "over several ranks nor with sample_rate below 1"
            )
        self.classes = range(self.num_classes)[dist.share(self.num_classes)]
        self.settings, self.prefixes = loss.settings, loss.prefixes
        self.centers = _own_centers(loss.centers, self.classes)
        self._memories = tuple(RecycledMemory() for _ in range(1 + len(self.prefixes)))

    @property
    def shard(self) -> Shard:
        """The centres of this rank, and their classes."""
        return Shard(self.centers, self.classes)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Mean loss over the batches of all ranks, plus tau times the spread of all centres."""
        embeddings, labels = self.gathered(embeddings, labels)
        own, local = self.local_rows(labels)
        return self.objective(embeddings, torch.where(local, own, -1), self.centers, self.num_classes)

    def gathered(self, embeddings: Vectors, labels: Labels) -> tuple[Float[Tensor, "all dim"], Int[Tensor, " all"]]:
        """The batch of all ranks, checked."""
        return self.check_batch(*dist.gather_batch(*as_tensors(embeddings, labels, self.centers.device)))

    def local_rows(self, labels: Int[Tensor, " batch"]) -> tuple[Int[Tensor, " batch"], Bool[Tensor, " batch"]]:
        """Rows of ``labels`` in this rank's centres, and which of them are there."""
        own = labels - self.classes.start
        return own, (own >= 0) & (own < len(self.classes))

    def objective(
        self,
        embeddings: Float[Tensor, "batch dim"],
        own: Int[Tensor, " batch"],
        centers: Float[Tensor, "classes k dim"],
        num_classes: int,
    ) -> Float[Tensor, ""]:
        """The objective over ``num_classes`` on all ranks, of which this one has ``centers``; ``own`` are their rows.

        ``own`` is −1 for an example whose class is on another rank. The gradient of the embeddings is multiplied by the
        number of ranks, because the gradients of the encoder are averaged over them.
        """
        part = Part(num_classes, _combine, gain=dist.world_size())
        with torch.autocast(embeddings.device.type, enabled=False):
            centers = centers.to(embeddings.dtype)
            return prefix_objective(embeddings, own, centers, self.settings, self.prefixes, self._memories, part)

    @torch.no_grad()
    def distinct_centers(self, tolerance: float = MERGED) -> Int[Tensor, " classes"]:
        """Number of centres left in each class of all ranks when those within ``tolerance`` count as one."""
        return dist.gather_rows(count_distinct(self.centers, tolerance))

    @torch.no_grad()
    def initialize_centers(self, embeddings: Vectors, labels: Labels) -> None:
        """Initialise the centres from data; a rank must pass the embeddings of its own classes, and may pass others."""
        embeddings, labels = self.check_batch(embeddings, labels)
        own, local = self.local_rows(labels)
        self.centers.copy_(moved_to_data(self.centers, embeddings[local], own[local]))

    def working_bytes(self, batch_size: int) -> int:
        """Approximate scratch memory of a step; ``batch_size`` counts the examples of all ranks."""
        return prefix_working_bytes(
            batch_size, self.centers.shape, self.prefixes, self.settings.tau, self.centers.element_size()
        )


def _gather_inputs(loss: nn.Module, inputs: tuple[Vectors, Labels]) -> tuple[Tensor, Tensor]:
    return dist.gather_batch(*as_tensors(*inputs, dist.device()))


def _combine(local: Totals) -> Totals:
    """Totals over all ranks, equal on each because they are added in rank order."""
    numbers = dist.stack(torch.cat([local.log_total, local.own_logits, local.distance[None]]))
    batch = len(local.log_total)
    log_totals, own_logits, distances = numbers[:, :batch], numbers[:, batch:-1], numbers[:, -1]
    return Totals(log_totals.logsumexp(dim=0), own_logits.sum(dim=0), distances.sum())


def _own_centers(centers: nn.Parameter, classes: range) -> nn.Parameter:
    """The rows of ``classes``; drawn as one process would draw them if the centres are on the meta device."""
    if not centers.is_meta:
        whole = len(classes) == len(centers)
        return centers if whole else nn.Parameter(centers.detach()[classes.start : classes.stop].clone())
    own = torch.empty(len(classes), *centers.shape[1:], dtype=centers.dtype)
    at_once = max(1, DRAWN_AT_ONCE // centers[0].numel())
    for start in range(0, len(centers), at_once):
        end = min(start + at_once, len(centers))
        drawn = draw_centers(end - start, tuple(centers.shape))
        first, last = max(start, classes.start), min(end, classes.stop)
        if first < last:
            own[first - classes.start : last - classes.start] = drawn[first - start : last - start]
    return nn.Parameter(own)
