"""The SoftTriple objective (Eq. 10) in tiles of classes, with its gradient written by hand.

Exactly the function that ``softtriple_objective`` defines, arranged so that time goes into three matrix products and
memory into the centres and their gradient. For one class, with ``v`` the similarities to its centres over gamma:

    q = softmax(v)        s = sum(q v)        S' = gamma s        dS'/d(gamma v) = q (1 + v − s)

- Layout (classes, k, batch): tiles are contiguous slices, and the softmax over k runs along the batch.
- One K×K Gram matrix a class gives the norms of the centres and the regulariser; the backward pass of both is then one
  K×K by K×D product, and no normalised copy of the centres is stored.
- Backward needs k + 1 numbers for each class and example. They are kept in the memory that the gradient of the centres
  will fill; where they do not fit there and are not small, backward computes them again.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

# Similarities in one tile, and centre coordinates over four. On a CPU a tile stays in cache while a dozen operations
# pass over it, and yet is large enough that the fixed cost of those operations does not count.
TILE_NUMBERS_CPU = 1 << 17
TILE_NUMBERS_GPU = 1 << 24

# Memory worth spending to spare backward the first product where the gradient has no room for what it needs.
SMALL_BYTES = 1 << 26

ALIGNMENT = 64  # bytes, a cache line: what torch gives its own tensors
SMALLEST_NORM = 1e-12  # as torch.nn.functional.normalize


class Settings(NamedTuple):
    """The numbers of the objective; ``smoothing`` is added under the root of the regulariser."""

    scale: float
    gamma: float
    margin: float
    tau: float
    smoothing: float = 0.0


Definition = Callable[[Tensor, Tensor, Tensor, Settings], Tensor]


def coincident(dtype: torch.dtype) -> float:
    """Squared distance of two unit vectors below which rounding alone can have made it."""
    return 4 * torch.finfo(dtype).eps


class RecycledMemory:
    """Memory for one gradient, used again once the tensor handed out last is dead.

    A fresh buffer costs page faults: 33 ms for 46 MB where an old one takes 4. Whether the old one is dead is known,
    not guessed: a tensor made from a NumPy array keeps that array alive as long as anything shares its storage.
    """

    def __init__(self) -> None:
        self._last: list[tuple[NDArray[np.uint8], weakref.ref[Any]]] = []

    def __reduce__(self) -> tuple[type["RecycledMemory"], tuple[()]]:
        return RecycledMemory, ()  # a copy of a loss starts without memory

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Contiguous tensor like ``tensor`` with arbitrary content; on a CPU in the old memory if that is free."""
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
    definition: Definition,
    memory: RecycledMemory,
) -> Float[Tensor, ""]:
    """What ``definition`` computes, faster; second derivatives are those of ``definition`` itself."""
    centers = centers.contiguous()
    learns = torch.is_grad_enabled() and centers.requires_grad
    gradient = memory.empty_like(centers) if learns else None
    value: Tensor = _TiledObjective.apply(embeddings, labels, centers, settings, definition, gradient)  # type: ignore[no-untyped-call]
    return value


class _TiledObjective(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        labels: Tensor,
        centers: Tensor,
        settings: Settings,
        definition: Definition,
        gradient: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(embeddings, labels, centers)
        ctx.settings, ctx.definition, ctx.gradient = settings, definition, gradient
        ctx.kept = _room(len(embeddings), centers, gradient) if any(ctx.needs_input_grad) else None
        value, ctx.summary = _forward(embeddings, labels, centers, settings, ctx.kept)
        return value

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, labels, centers = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        if torch.is_grad_enabled():  # create_graph=True: the gradient will itself be differentiated
            by_embeddings, by_centers = _differentiable_gradients(ctx, upstream, wanted)
        else:
            # The gradient leaves with this call, and what was kept in its memory is overwritten: a second backward
            # pass through the same graph starts afresh.
            gradient, ctx.gradient, kept, ctx.kept = ctx.gradient, None, ctx.kept, None
            if wanted[1] and gradient is None:
                gradient = torch.empty_like(centers)
            by_embeddings, by_centers = _backward(
                embeddings, labels, centers, ctx.settings, ctx.summary, upstream, kept, gradient
            )
        return by_embeddings, None, by_centers, None, None, None


class _Summary(NamedTuple):
    """What the forward pass leaves behind for every class and example, small beside the centres."""

    log_total: Float[Tensor, " batch"]
    inverse_norms: Float[Tensor, "classes k 1"]
    mixing: Float[Tensor, "classes k k"] | None  # the regulariser's gradient is mixing @ centers


class _Tile(NamedTuple):
    """A run of classes, and the examples whose own class is among them."""

    classes: slice
    own: Int[Tensor, "1 batch"]  # own class, counted from the first of the tile (0 where it is elsewhere)
    has_own: Float[Tensor, "1 batch"]  # 1 where the own class is in this tile, else 0


def _forward(
    embeddings: Tensor, labels: Tensor, centers: Tensor, settings: Settings, kept: Tensor | None
) -> tuple[Tensor, _Summary]:
    unit, _ = _unit(embeddings)
    examples = (unit / settings.gamma).T.contiguous()
    num_classes, k, _ = centers.shape
    inverse_norms = centers.new_empty(num_classes, k, 1)
    regularised = settings.tau > 0 and k > 1
    mixing = centers.new_empty(num_classes, k, k) if regularised else None
    spread, own_logits, log_totals = centers.new_zeros(()), unit.new_zeros(len(unit)), []
    for tile in _tiles(labels, centers):
        weights = centers[tile.classes]
        if mixing is None:
            torch.linalg.vector_norm(weights, dim=-1, keepdim=True, out=inverse_norms[tile.classes])
            inverse_norms[tile.classes].clamp_min_(SMALLEST_NORM).reciprocal_()
        else:
            spread += _pull_together(weights, settings, inverse_norms[tile.classes], mixing[tile.classes])
        slopes, logits = _views(kept, tile, weights, unit)
        _similarities(weights, inverse_norms[tile.classes], examples, slopes, logits)
        logits.mul_(settings.scale * settings.gamma)
        logits.scatter_add_(0, tile.own, tile.has_own * (-settings.scale * settings.margin))
        own_logits.addcmul_(logits.gather(0, tile.own)[0], tile.has_own[0])
        log_totals.append(logits.logsumexp(0))
    log_total = torch.stack(log_totals).logsumexp(0)
    value = (log_total - own_logits).mean()
    if regularised:
        # Every pair of centres was counted twice.
        value += spread * (settings.tau / (2 * num_classes * k * (k - 1)))
    return value, _Summary(log_total, inverse_norms, mixing)


def _backward(
    embeddings: Tensor,
    labels: Tensor,
    centers: Tensor,
    settings: Settings,
    summary: _Summary,
    upstream: Tensor,
    kept: Tensor | None,
    gradient: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    unit, norms = _unit(embeddings)
    examples = (unit / settings.gamma).T.contiguous() if kept is None else None
    num_classes, k, dim = centers.shape
    step = upstream * (settings.scale / len(unit))
    pushes = unit * step
    by_unit = torch.zeros_like(unit)
    for tile in _tiles(labels, centers):
        weights = centers[tile.classes]
        slopes, logits = _views(kept, tile, weights, unit)
        if examples is not None:
            _similarities(weights, summary.inverse_norms[tile.classes], examples, slopes, logits)
            logits.mul_(settings.scale * settings.gamma)
            logits.scatter_add_(0, tile.own, tile.has_own * (-settings.scale * settings.margin))
        excess = logits.sub(summary.log_total).exp_()  # probability of the class, less one for the own class
        excess.scatter_add_(0, tile.own, -tile.has_own)
        forces = (slopes * excess[:, None]).view(-1, len(unit))
        by_unit.addmm_(forces.T, weights.view(-1, dim))
        if gradient is None:
            continue
        by_weights = gradient[tile.classes]
        torch.mm(forces, pushes, out=by_weights.view(-1, dim))
        # A unit vector does not change when its centre grows: take out the part along the centre.
        along = (by_weights * weights).sum(-1, keepdim=True).mul_(summary.inverse_norms[tile.classes].square())
        if summary.mixing is None:
            by_weights.addcmul_(along, weights, value=-1)
        else:
            mixing = summary.mixing[tile.classes] * (upstream * (settings.tau / (num_classes * k * (k - 1))))
            mixing.diagonal(dim1=1, dim2=2).sub_(along[..., 0])
            by_weights.baddbmm_(mixing, weights)
    by_unit *= step
    by_embeddings = (by_unit - unit * (unit * by_unit).sum(-1, keepdim=True)) / norms
    return by_embeddings, gradient


def _similarities(
    weights: Float[Tensor, "tile k dim"],
    inverse_norms: Float[Tensor, "tile k 1"],
    examples: Float[Tensor, "dim batch"],
    slopes: Float[Tensor, "tile k batch"],
    relaxed: Float[Tensor, "tile batch"],
) -> None:
    """Fill ``relaxed`` with S' / gamma and ``slopes`` with dS' / d(centre · example), the centre as it is stored."""
    tile, k, dim = weights.shape
    v = torch.mm(weights.view(-1, dim), examples).view(tile, k, -1).mul_(inverse_norms)
    q = v.softmax(1)
    product = v.mul_(q)
    torch.sum(product, 1, out=relaxed)
    torch.mul(product.addcmul_(q, (1 - relaxed)[:, None]), inverse_norms, out=slopes)


def _pull_together(
    weights: Float[Tensor, "tile k dim"],
    settings: Settings,
    inverse_norms: Float[Tensor, "tile k 1"],
    mixing: Float[Tensor, "tile k k"],
) -> Float[Tensor, ""]:
    """Sum of distances over ordered pairs of centres; fills the norms and the matrix that gives the gradient."""
    gram = torch.bmm(weights, weights.mT, out=mixing)
    squared_norms = gram.diagonal(dim1=1, dim2=2)
    inverse_norms.copy_(squared_norms.clamp_min(SMALLEST_NORM**2).rsqrt_()[..., None])
    outer = inverse_norms * inverse_norms.mT
    cosine = gram.mul_(outer)
    squared = cosine.mul(-2).add_(2 + settings.smoothing)
    squared.diagonal(dim1=1, dim2=2).zero_()
    apart = squared > coincident(squared.dtype)
    inverse_distance = squared.rsqrt().masked_fill_(~apart, 0)
    total = (squared * inverse_distance).sum()
    along = (inverse_distance * cosine).sum(-1, keepdim=True).mul_(inverse_norms.square())
    torch.mul(inverse_distance, outer.neg_(), out=mixing)
    mixing.diagonal(dim1=1, dim2=2).copy_(along[..., 0])
    return total


def _differentiable_gradients(
    ctx: Any, upstream: Tensor, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    embeddings, labels, centers = ctx.saved_tensors
    inputs = [tensor for tensor, is_wanted in zip((embeddings, centers), wanted, strict=True) if is_wanted]
    value = ctx.definition(embeddings, labels, centers, ctx.settings)
    found = iter(torch.autograd.grad(value, inputs, upstream, create_graph=True))
    by_embeddings, by_centers = (next(found) if is_wanted else None for is_wanted in wanted)
    return by_embeddings, by_centers


def _unit(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    norms = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True).clamp_min_(SMALLEST_NORM)
    return embeddings / norms, norms


def _tiles(labels: Tensor, centers: Tensor) -> list[_Tile]:
    num_classes, k, dim = centers.shape
    numbers = TILE_NUMBERS_CPU if centers.device.type == "cpu" else TILE_NUMBERS_GPU
    size = min(num_classes, max(1, numbers // (k * max(len(labels), dim // 4))))
    starts = range(0, num_classes, size)
    own = labels - torch.tensor(starts, device=labels.device)[:, None]
    has_own = (own >= 0) & (own < size)
    own, has_own = own * has_own, has_own.to(centers.dtype)
    return [
        _Tile(slice(start, min(start + size, num_classes)), own[i : i + 1], has_own[i : i + 1])
        for i, start in enumerate(starts)
    ]


def _room(batch: int, centers: Tensor, gradient: Tensor | None) -> Tensor | None:
    """A row for each class that holds ``_views`` of it, or None if that would take too much memory."""
    num_classes, k, dim = centers.shape
    needed = (k + 1) * batch
    if gradient is not None and needed <= k * dim:
        return gradient.view(num_classes, k * dim)
    if num_classes * needed * centers.element_size() <= SMALL_BYTES:
        return centers.new_empty(num_classes, needed)
    return None


def _views(kept: Tensor | None, tile: _Tile, weights: Tensor, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Where the slopes and the logits of a tile are kept, or fresh memory for them."""
    size, k, _ = weights.shape
    batch = len(unit)
    memory = unit.new_empty(size * (k + 1) * batch) if kept is None else kept[tile.classes].view(-1)
    slopes, logits, _ = memory.split_with_sizes(
        [size * k * batch, size * batch, memory.numel() - size * (k + 1) * batch]
    )
    return slopes.view(size, k, batch), logits.view(size, batch)
