"""The SoftTriple objective (Eq. 10) in tiles of classes, with its gradient written by hand.

The same function as ``functional.softtriple_objective``, arranged so that time goes into three matrix products and
memory into the centres and their gradient. For one class, with ``v`` the similarities to its centres divided by gamma:

    q = softmax(v)        s = sum(q v)        S' = gamma s        dS'/d(gamma v) = q (1 + v − s)

- Layout (classes, k, batch): tiles are contiguous slices, and the softmax over k is vectorised along the batch.
- One K×K Gram matrix per class gives the norms of the centres and the regulariser. The backward pass of both is then
  one K×K by K×D product, and no normalised copy of the centres is stored.
- The backward pass needs k + 1 numbers per class and example. The forward pass stores them in the memory that the
  gradient of the centres will fill; if they neither fit there nor are small, the backward pass recomputes them.
"""

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from softtriple.errors import UserError
from softtriple.losses.functional import Settings, coincident, softtriple_objective

# Similarities in one tile, or a quarter of its centre coordinates if that is more. On a CPU a tile stays in cache
# during the dozen operations on it, and is large enough to hide their fixed cost.
TILE_NUMBERS_CPU = 1 << 17
TILE_NUMBERS_GPU = 1 << 24

# Memory worth spending to avoid recomputing the first product in backward when the gradient's memory is too small.
SMALL_BYTES = 1 << 26

ALIGNMENT = 64  # bytes, a cache line, as torch aligns its own tensors
SMALLEST_NORM = 1e-12  # as in torch.nn.functional.normalize


class Totals(NamedTuple):
    """The sums over classes, all or local, that cross-entropy and regulariser are computed from."""

    log_total: Float[Tensor, " batch"]  # log of the sum of exponentials over the classes
    own_logits: Float[Tensor, " batch"]  # logit of the own class; 0 if that is not local
    distance: Float[Tensor, ""]  # between centres of the same class, summed over ordered pairs


class Part(NamedTuple):
    """How to compute the objective when only some of the classes are local; labels of the others are −1.

    ``combine`` computes the totals of all classes from those of the local ones. The gradient of the embeddings is the
    part through the local classes, times ``gain``.
    """

    num_classes: int
    combine: Callable[[Totals], Totals]
    gain: float = 1.0


class RecycledMemory:
    """Memory for one gradient, reused once the previous tensor has been freed.

    A new buffer costs page faults: 33 ms for 46 MB, against 4 ms for a reused one. Reuse is safe: a tensor made from a
    NumPy array keeps the array alive for as long as anything shares its storage.
    """

    def __init__(self) -> None:
        self._last: list[tuple[NDArray[np.uint8], weakref.ref[Any]]] = []

    def __reduce__(self) -> tuple[type["RecycledMemory"], tuple[()]]:
        return RecycledMemory, ()  # a copy of a loss gets memory of its own

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Uninitialised contiguous tensor like ``tensor``; on a CPU in the previous memory, if it is free."""
        if tensor.device.type != "cpu":
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        needed = tensor.numel() * tensor.element_size()
        memory = self._free_memory()
        if memory is None or memory.size != needed + ALIGNMENT:
            memory = np.empty(needed + ALIGNMENT, dtype=np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        loan = memory[start : start + needed]
        self._last.append((memory, weakref.ref(loan)))
        return torch.from_numpy(loan).view(tensor.dtype).view(tensor.shape)

    def _free_memory(self) -> NDArray[np.uint8] | None:
        try:
            memory, loan = self._last.pop()  # atomic: two threads never get the same memory
        except IndexError:
            return None
        return memory if loan() is None else None


def tiled_objective(
    embeddings: Float[Tensor, "batch dim"],
    labels: Int[Tensor, " batch"],
    centers: Float[Tensor, "classes k dim"],
    settings: Settings,
    memory: RecycledMemory,
    part: Part | None = None,
) -> Float[Tensor, ""]:
    """``softtriple_objective``, faster; double backward falls back to that function."""
    centers = centers.contiguous()
    learns = torch.is_grad_enabled() and centers.requires_grad
    gradient = memory.empty_like(centers) if learns else None
    value: Tensor = _TiledObjective.apply(embeddings, labels, centers, settings, gradient, part)  # type: ignore[no-untyped-call]
    return value


def working_bytes(batch: int, shape: torch.Size, tau: float, element_size: int) -> int:
    """Approximate scratch memory of ``tiled_objective`` for centres of ``shape``."""
    num_classes, k, dim = shape
    numbers = num_classes * k * (1 + k if tau and k > 1 else 1)  # norms, and the regulariser's matrices
    numbers += 8 * min(TILE_NUMBERS_CPU, num_classes * k * max(batch, dim // 4)) + 4 * batch * dim
    workspace = num_classes * (k + 1) * batch
    fits_gradient = (k + 1) * batch <= k * dim
    if not fits_gradient and workspace * element_size <= SMALL_BYTES:
        numbers += workspace
    return numbers * element_size


class _TiledObjective(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        labels: Tensor,
        centers: Tensor,
        settings: Settings,
        gradient: Tensor | None,
        part: Part | None,
    ) -> Tensor:
        ctx.save_for_backward(embeddings, labels, centers)
        ctx.settings, ctx.gradient, ctx.part = settings, gradient, part
        ctx.kept = _workspace(len(embeddings), centers, gradient) if any(ctx.needs_input_grad) else None
        value, ctx.summary = _forward(embeddings, labels, centers, settings, ctx.kept, part)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, labels, centers = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        if torch.is_grad_enabled():  # create_graph=True: the gradient will itself be differentiated
            if ctx.part is not None:
                raise UserError("double backward is not supported for sharded losses or sampled classes")
            value = softtriple_objective(embeddings, labels, centers, ctx.settings)
            by_embeddings, by_centers = _differentiable_gradients(value, (embeddings, centers), wanted, upstream)
        else:
            # The gradient is returned in the memory that holds the saved values: a second backward pass through the
            # same graph recomputes them.
            gradient, ctx.gradient, kept, ctx.kept = ctx.gradient, None, ctx.kept, None
            if wanted[1] and gradient is None:
                gradient = torch.empty_like(centers)
            by_embeddings, by_centers = _backward(
                centers, ctx.settings, ctx.summary, upstream, kept, gradient, ctx.part
            )
        return by_embeddings, None, by_centers, None, None, None


class _Tile(NamedTuple):
    """Which examples have their own class in a tile of classes, and where."""

    own: Int[Tensor, "1 batch"]  # row of the own class in the tile; 0 if it is not in the tile
    has_own: Float[Tensor, "1 batch"]  # 1 if the own class is in the tile, else 0


class _Summary(NamedTuple):
    """Saved by the forward pass for the backward pass; small compared with the centres."""

    unit: Float[Tensor, "batch dim"]
    norms: Float[Tensor, "batch 1"]
    size: int  # classes in a tile
    tiles: list[_Tile]
    log_total: Float[Tensor, " batch"]
    inverse_norms: Float[Tensor, "classes k 1"]
    mixing: Float[Tensor, "classes k k"] | None  # the regulariser's gradient is −tau * mixing @ centers


def _forward(
    embeddings: Tensor, labels: Tensor, centers: Tensor, settings: Settings, kept: Tensor | None, part: Part | None
) -> tuple[Tensor, _Summary]:
    num_classes, k, _ = centers.shape
    norms = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True).clamp_min_(SMALLEST_NORM)
    unit = embeddings / norms
    examples = (unit / settings.gamma).T.contiguous()
    inverse_norms = centers.new_empty(num_classes, k, 1)
    mixing = centers.new_empty(num_classes, k, k) if settings.tau and k > 1 else None
    size, tiles = _tiles(labels, centers, all_local=part is None)
    total_distance, own_logits, log_totals = centers.new_zeros(()), unit.new_zeros(len(unit)), []
    for tile, weights, inverse, mix, workspace in zip(
        tiles, *_in_tiles(size, centers, inverse_norms, mixing, kept), strict=True
    ):
        if mix is None:
            torch.linalg.vector_norm(weights, dim=-1, keepdim=True, out=inverse).clamp_min_(SMALLEST_NORM).reciprocal_()
        else:
            total_distance += _distances(weights, settings.smoothing, inverse, mix)
        _, logits = _logits(weights, inverse, examples, tile, settings, workspace)
        own_logits.addcmul_(logits.gather(0, tile.own)[0], tile.has_own[0])
        log_totals.append(logits.logsumexp(0))
    log_total = functools.reduce(torch.logaddexp, log_totals) if tiles else torch.full_like(own_logits, -math.inf)
    if part is not None:
        num_classes = part.num_classes
        log_total, own_logits, total_distance = part.combine(Totals(log_total, own_logits, total_distance))
    value = (log_total - own_logits).mean()
    if mixing is not None:
        spread = total_distance / 2 / (num_classes * k * (k - 1))  # every pair was counted twice
        value += settings.tau * spread
    return value, _Summary(unit, norms, size, tiles, log_total, inverse_norms, mixing)


def _backward(
    centers: Tensor,
    settings: Settings,
    summary: _Summary,
    upstream: Tensor,
    kept: Tensor | None,
    gradient: Tensor | None,
    part: Part | None,
) -> tuple[Tensor, Tensor | None]:
    _, k, dim = centers.shape
    num_classes = len(centers) if part is None else part.num_classes
    unit = summary.unit
    examples = (unit / settings.gamma).T.contiguous() if kept is None else None
    pull = upstream * (settings.tau / max(1, num_classes * k * (k - 1)))
    push = upstream * (settings.scale / len(unit))
    pushes = unit * push
    by_unit = torch.zeros_like(unit)
    for tile, weights, inverse, mix, workspace, by_weights in zip(
        summary.tiles,
        *_in_tiles(summary.size, centers, summary.inverse_norms, summary.mixing, kept, gradient),
        strict=True,
    ):
        if examples is None:
            slopes, logits = _views(workspace, weights, len(unit))
        else:
            slopes, logits = _logits(weights, inverse, examples, tile, settings, workspace=None)
        excess = logits.sub(summary.log_total).exp_()  # probability of the class, less one for the own class
        excess.scatter_add_(0, tile.own, -tile.has_own)
        forces = (slopes * excess[:, None]).view(-1, len(unit))
        by_unit.addmm_(forces.T, weights.view(-1, dim))
        if by_weights is None:
            continue
        torch.mm(forces, pushes, out=by_weights.view(-1, dim))
        # The loss does not depend on the length of a centre: remove the component of the gradient along it.
        along = (by_weights * weights).sum(-1, keepdim=True).mul_(inverse.square())
        if mix is None:
            by_weights.addcmul_(along, weights, value=-1)
        else:
            both = mix * pull
            both.diagonal(dim1=1, dim2=2).add_(along[..., 0])
            by_weights.baddbmm_(both, weights, alpha=-1)
    by_unit *= push if part is None else push * part.gain
    by_embeddings = (by_unit - unit * (unit * by_unit).sum(-1, keepdim=True)) / summary.norms
    return by_embeddings, gradient


def _logits(
    weights: Float[Tensor, "tile k dim"],
    inverse_norms: Float[Tensor, "tile k 1"],
    examples: Float[Tensor, "dim batch"],
    tile: _Tile,
    settings: Settings,
    workspace: Tensor | None,
) -> tuple[Float[Tensor, "tile k batch"], Float[Tensor, "tile batch"]]:
    """dS' / d(centre · example) for unnormalised centres, and scale · (S' − margin), in ``workspace`` if given."""
    slopes, logits = _views(workspace, weights, examples.shape[1])
    v = torch.mm(weights.view(-1, len(examples)), examples).view(slopes.shape).mul_(inverse_norms)
    q = v.softmax(1)
    product = v.mul_(q)
    s = torch.sum(product, 1, out=logits)
    torch.mul(product.addcmul_(q, (1 - s)[:, None]), inverse_norms, out=slopes)
    logits.mul_(settings.scale * settings.gamma)
    logits.scatter_add_(0, tile.own, tile.has_own * (-settings.scale * settings.margin))
    return slopes, logits


def _distances(
    weights: Float[Tensor, "tile k dim"],
    smoothing: float,
    inverse_norms: Float[Tensor, "tile k 1"],
    mixing: Float[Tensor, "tile k k"],
) -> Float[Tensor, ""]:
    """Sum of distances over ordered pairs of centres; fills in the norms and the matrix that yields the gradient."""
    gram = torch.bmm(weights, weights.mT)
    inverse_norms.copy_(gram.diagonal(dim1=1, dim2=2).clamp_min(SMALLEST_NORM**2).rsqrt_()[..., None])
    outer = inverse_norms * inverse_norms.mT
    cosine = gram.mul_(outer)
    squared = torch.rsub(cosine, 2 + smoothing, alpha=2)
    squared.diagonal(dim1=1, dim2=2).zero_()
    # A distance that rounding error could have produced becomes infinite, so that it has no gradient.
    inverse_distance = F.threshold(squared, coincident(squared.dtype), math.inf).rsqrt_()
    torch.mul(inverse_distance, outer, out=mixing)
    along = torch.linalg.vecdot(cosine, inverse_distance).mul_(inverse_norms[..., 0].square())
    mixing.diagonal(dim1=1, dim2=2).copy_(along.neg_())
    return torch.dot(squared.view(-1), inverse_distance.view(-1))


def _differentiable_gradients(
    value: Tensor, inputs: tuple[Tensor, Tensor], wanted: tuple[bool, bool], upstream: Tensor
) -> list[Tensor | None]:
    chosen = [tensor for tensor, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
    gradients = iter(torch.autograd.grad(value, chosen, upstream, create_graph=True))
    return [next(gradients) if is_wanted else None for is_wanted in wanted]


def _tiles(labels: Tensor, centers: Tensor, *, all_local: bool) -> tuple[int, list[_Tile]]:
    """Number of classes per tile, and the tiles."""
    num_classes, k, dim = centers.shape
    if not num_classes:
        return 0, []
    numbers = TILE_NUMBERS_CPU if centers.device.type == "cpu" else TILE_NUMBERS_GPU
    count = math.ceil(num_classes * k * max(len(labels), dim // 4) / numbers)
    size = math.ceil(num_classes / count)
    if size == num_classes and all_local:
        return size, [_Tile(labels[None], centers.new_ones(1, len(labels)))]
    own = labels - torch.arange(0, num_classes, size, device=labels.device)[:, None]
    inside = (own >= 0) & (own < size)
    own, has_own = own * inside, inside.to(centers.dtype)
    return size, [_Tile(*tile) for tile in zip(torch.split(own, 1), torch.split(has_own, 1), strict=True)]


def _in_tiles(size: int, first: Tensor, *others: Tensor | None) -> list[Iterable[Any]]:
    """Each tensor split into tiles of ``size`` classes; None becomes that many Nones."""
    if not size:
        return [(), *(() for _ in others)]
    if size == len(first):
        return [(first,), *((tensor,) for tensor in others)]
    tiles = torch.split(first, size)
    return [tiles, *(itertools.repeat(None, len(tiles)) if t is None else torch.split(t, size) for t in others)]


def _workspace(batch: int, centers: Tensor, gradient: Tensor | None) -> Tensor | None:
    """Memory for ``_views`` of every class, one row each, or None if that would take too much."""
    num_classes, k, dim = centers.shape
    needed = (k + 1) * batch
    if gradient is not None and needed <= k * dim:
        return gradient.view(num_classes, k * dim)
    if num_classes * needed * centers.element_size() <= SMALL_BYTES:
        return centers.new_empty(num_classes, needed)
    return None


def _views(workspace: Tensor | None, weights: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Memory for the slopes and the logits of a tile, in ``workspace`` if given."""
    size, k, _ = weights.shape
    memory = weights.new_empty(size * (k + 1) * batch) if workspace is None else workspace.view(-1)
    slopes = memory[: size * k * batch].view(size, k, batch)
    return slopes, memory[size * k * batch : size * (k + 1) * batch].view(size, batch)
