"""What a loss accepts, said in one sentence where it does not."""

import math
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
INTEGERS = (*SIGNED, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def is_whole_number(value: object) -> bool:
    """Whether ``value`` is an integer, Python's or NumPy's; true and false are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether ``value`` is a real number, Python's or NumPy's; true and false are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


# What an option must be, by its annotation: in words, and as a test.
KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", is_whole_number),
    float: ("a number", is_number),
    float | None: ("a number", lambda value: value is None or is_number(value)),
    Sequence[float]: (
        "a list of numbers",
        lambda value: isinstance(value, list | tuple) and all(map(is_number, value)),
    ),
    str: ("a text", lambda value: isinstance(value, str)),
}


def at_least_one(name: str, value: int) -> int:
    """``value`` if it is a whole number of one or more."""
    if not is_whole_number(value) or value < 1:
        raise ValueError(f"{name} = {value!r} must be a whole number of at least 1")
    return int(value)


def positive(name: str, value: float) -> float:
    """``value`` if it is a finite number above zero."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} = {value!r} must be a finite number above 0")
    return value


def not_negative(name: str, value: float) -> float:
    """``value`` if it is a finite number of at least zero."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} = {value!r} must be a finite number of at least 0")
    return value


def checked_embeddings(embeddings: Tensor, centers: Tensor, *, look_at_values: bool) -> Tensor:
    """``embeddings`` in the precision to compute in, float32 at least; ``ValueError`` unless they fit the centres."""
    embedding_size = centers.shape[-1]
    if embeddings.ndim != 2 or embeddings.shape[1] != embedding_size:
        raise ValueError(
            f"embeddings have shape {tuple(embeddings.shape)}, expected (batch, {embedding_size}): "
            f"the loss was made with embedding_size={embedding_size}"
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings are {embeddings.dtype}, expected a floating-point tensor")
    if len(embeddings) == 0:
        raise ValueError("the batch is empty: a mean over no examples is not defined")
    compute = torch.promote_types(torch.promote_types(embeddings.dtype, centers.dtype), torch.float32)
    if look_at_values:
        # A norm is finite only if every number is, and small enough to be normalised at all.
        norms = torch.linalg.vector_norm(embeddings.detach().to(compute), dim=-1)
        if not math.isfinite(norms.amax().item()):
            rows = (~norms.isfinite()).nonzero().flatten().tolist()
            raise ValueError(
                f"embeddings hold NaN, infinite or overflowing numbers in {len(rows)} of {len(embeddings)} rows "
                f"(first: row {rows[0]}); lower the learning rate or look at the encoder"
            )
    return embeddings.to(compute)


def refuse_long(embeddings: Tensor, precision: torch.dtype) -> None:
    """Refuse embeddings whose products could leave ``precision``: for losses that do not make them of unit length."""
    longest = torch.linalg.vector_norm(embeddings.detach(), dim=-1).amax().item()
    if longest > torch.finfo(precision).max ** 0.25:  # the square, and sums of many squares, then stay finite
        raise ValueError(f"embeddings are up to {longest:.2g} long, and their products would overflow {precision}")


def checked_labels(labels: Tensor, batch: int, num_classes: int | None = None) -> Tensor:
    """``labels`` as int64; ``ValueError`` unless they are ``batch`` integers, in range if ``num_classes`` is given."""
    if labels.dtype not in INTEGERS:
        raise ValueError(f"labels are {labels.dtype}, expected integers: the class number of each embedding")
    if labels.shape != (batch,):
        raise ValueError(f"labels have shape {tuple(labels.shape)}, expected ({batch},): one for each embedding")
    labels = labels.long()
    if num_classes is not None:
        low, high = (int(bound) for bound in labels.aminmax())
        if low < 0 or high >= num_classes:
            raise ValueError(
                f"label {low if low < 0 else high} is out of range: "
                f"the loss was made with num_classes={num_classes}, so labels go from 0 to {num_classes - 1}"
            )
    return labels


def checked_batch(
    embeddings: Tensor, labels: Tensor, num_classes: int, embedding_size: int, look_at_values: bool
) -> tuple[Tensor, Tensor]:
    """Both as the two functions above give them, for a loss without centres that embeddings would have to fit."""
    no_centers = torch.empty(0, embedding_size)
    embeddings = checked_embeddings(embeddings, no_centers, look_at_values=look_at_values)
    return embeddings, checked_labels(labels, len(embeddings), num_classes if look_at_values else None)
