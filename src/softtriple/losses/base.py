"""The base class of all losses: sizes, validation of a batch, and the interface to the training loop."""

import math
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple.errors import UserError

# A loss accepts tensors or NumPy arrays.
Vectors = Float[Tensor | np.ndarray, "batch dim"]
Labels = Integer[Tensor | np.ndarray, " batch"]

INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


class Shard(NamedTuple):
    """The centres held by this rank when the classes are split over ranks, and which classes they belong to."""

    centers: nn.Parameter
    classes: range


class Loss(nn.Module):
    """A loss ``loss(embeddings, labels)`` with everything that the training loop may use.

    A subclass defines ``forward``, which starts with ``check_batch``, and overrides the attributes and methods below
    where the default does not fit. ``as_loss`` turns any other module into a ``Loss``.

    Args:
        num_classes: number of classes; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        validate: check the values of each batch (finite, labels in range). On a GPU this waits for the device.
    """

    per_class: int | None = None  # examples per class that a batch should contain; None: any batch will do
    looks_ahead: bool = False  # start_epoch must be called before each epoch
    sparse_gradients: bool = False  # gradients of the centres are sparse tensors
    centers: nn.Parameter | None  # of shape (classes, centres per class, embedding_size)

    def __init__(self, num_classes: int, embedding_size: int, *, validate: bool = True) -> None:
        super().__init__()
        self.num_classes = require_count("num_classes", num_classes)
        self.embedding_size = require_count("embedding_size", embedding_size)
        self.validate = validate
        self.register_parameter("centers", None)

    @property
    def shard(self) -> Shard | None:
        """This rank's part of the centres; None if classes are not split over ranks."""
        return None

    def start_epoch(self, embeddings: Vectors, labels: Labels) -> None:
        """Called before each epoch with the embeddings of the whole training set, if ``looks_ahead``."""

    def choose_classes(self, anchors: Int[Tensor, " anchors"]) -> Int[Tensor, "anchors group"] | None:
        """For each anchor class, the classes to put into a batch with it; None if any will do."""
        return None

    def initialize_centers(self, embeddings: Vectors, labels: Labels) -> None:
        """Initialise the centres, if there are any, from embeddings of their classes."""

    def distinct_centers(self) -> Int[Tensor, " classes"] | None:
        """Number of distinct centres of each class, or None if the loss has no centres."""
        return None

    def predict(self, embeddings: Vectors) -> Int[Tensor, " batch"] | None:
        """Most similar class of each embedding, or None if the loss cannot classify."""
        return None

    def param_groups(self, *modules: nn.Module, lr: float = 1e-4, center_lr: float = 1e-2) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser: ``Adam(loss.param_groups(encoder))``.

        ``lr`` is for the parameters of ``modules``, ``center_lr`` for those of the loss; the defaults are the paper's.
        """
        groups = [
            {"params": [parameter for module in modules for parameter in module.parameters()], "lr": lr},
            {"params": list(self.parameters()), "lr": center_lr},
        ]
        return [group for group in groups if group["params"]]

    def gradient_bytes(self, batch_size: int) -> int:
        """Memory for the gradients of the loss's own parameters."""
        return sum(p.numel() * p.element_size() for p in self.parameters() if p.requires_grad)

    def working_bytes(self, batch_size: int) -> int:
        """Scratch memory of a step beyond parameters and gradients, where it can be large."""
        return 0

    def check_batch(
        self, embeddings: Vectors, labels: Labels
    ) -> tuple[Float[Tensor, "batch dim"], Int[Tensor, " batch"]]:
        """Embeddings and labels as tensors in the precision to compute in; ``UserError`` if they do not fit."""
        embeddings = self.check_embeddings(embeddings)
        return embeddings, check_labels(labels, embeddings, self.num_classes if self.validate else None)

    def check_embeddings(self, embeddings: Vectors) -> Float[Tensor, "batch dim"]:
        """Embeddings as a tensor in the precision to compute in; ``UserError`` if they do not fit."""
        return check_embeddings(embeddings, self.embedding_size, self.centers, check_values=self.validate)


def as_loss(module: nn.Module, num_classes: int, embedding_size: int) -> Loss:
    """``module`` as a ``Loss`` for data of these sizes; it may be any module ``module(embeddings, labels)``."""
    if not isinstance(module, Loss):
        return AdaptedLoss(module, num_classes, embedding_size)
    built_for, needed = (module.num_classes, module.embedding_size), (num_classes, embedding_size)
    if built_for != needed:
        raise UserError(
            f"{type(module).__name__} was built with num_classes={built_for[0]}, embedding_size={built_for[1]}, "
            f"but the data and the encoder need num_classes={needed[0]}, embedding_size={needed[1]}"
        )
    return module


class AdaptedLoss(Loss):
    """Any module ``module(embeddings, labels)`` as a ``Loss``.

    If the module defines members of the interface itself, such as ``per_class`` or ``predict``, these are used.
    """

    def __init__(self, module: nn.Module, num_classes: int, embedding_size: int) -> None:
        super().__init__(num_classes, embedding_size)
        self.module = module
        self.looks_ahead = hasattr(module, "start_epoch")
        for name in ("per_class", "start_epoch", "choose_classes", "param_groups", "distinct_centers", "predict"):
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))

    def forward(self, embeddings: Vectors, labels: Labels) -> Tensor:
        """The loss of the batch: what the module returns, which must be a scalar."""
        value = self.module(*self.check_batch(embeddings, labels))
        if not isinstance(value, Tensor) or value.ndim:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"{type(self.module).__name__} returned {got}, expected a scalar tensor: the mean loss")
        return value


def is_integer(value: object) -> bool:
    """Whether ``value`` is an integer, Python's or NumPy's, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether ``value`` is a real number, Python's or NumPy's, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_count(name: str, value: int) -> int:
    """``value``, or UserError unless it is an integer of at least 1."""
    if not is_integer(value) or value < 1:
        raise UserError(f"{name} = {value!r} must be an integer, at least 1")
    return int(value)


def require_positive(name: str, value: float) -> float:
    """``value``, or UserError unless it is a finite number above 0."""
    if not (is_number(value) and math.isfinite(value) and value > 0):
        raise UserError(f"{name} = {value!r} must be a finite number above 0")
    return value


def require_nonnegative(name: str, value: float) -> float:
    """``value``, or UserError unless it is a finite number of at least 0."""
    if not (is_number(value) and math.isfinite(value) and value >= 0):
        raise UserError(f"{name} = {value!r} must be a finite number, at least 0")
    return value


def require_finite(name: str, value: float) -> float:
    """``value``, or UserError unless it is a finite number."""
    if not (is_number(value) and math.isfinite(value)):
        raise UserError(f"{name} = {value!r} must be a finite number")
    return value


def check_embeddings(
    embeddings: Vectors, embedding_size: int, centers: Tensor | None, *, check_values: bool
) -> Float[Tensor, "batch dim"]:
    """Embeddings as a tensor, at least as precise as float32 and ``centers``; ``UserError`` if they do not fit."""
    vectors = _as_tensor(
        "embeddings", embeddings, "floating-point numbers", None if centers is None else centers.device
    )
    if vectors.ndim != 2 or vectors.shape[1] != embedding_size:
        raise UserError(
            f"embeddings have shape {tuple(vectors.shape)}, expected (batch, {embedding_size}): "
            f"the loss was built with embedding_size={embedding_size}"
        )
    if not vectors.is_floating_point():
        raise UserError(f"embeddings are {vectors.dtype}, expected floating-point numbers")
    if len(vectors) == 0:
        raise UserError("the batch is empty, expected at least one embedding")
    compute = torch.promote_types(vectors.dtype, torch.float32 if centers is None else centers.dtype)
    compute = torch.promote_types(compute, torch.float32)
    if check_values:
        # A norm is finite only if all values are, and if the vector is short enough to be normalised.
        norms = torch.linalg.vector_norm(vectors.detach().to(compute), dim=-1)
        if not math.isfinite(norms.amax().item()):
            rows = (~norms.isfinite()).nonzero().flatten().tolist()
            raise UserError(
                f"embeddings contain NaN, infinite or overflowing values in {len(rows)} of {len(vectors)} rows "
                f"(first: row {rows[0]}); lower the learning rate or check the encoder"
            )
    return vectors.to(compute)


def check_labels(
    labels: Labels, embeddings: Float[Tensor, "batch dim"], num_classes: int | None = None
) -> Int[Tensor, " batch"]:
    """One int64 label per embedding, in range if ``num_classes`` is given; ``UserError`` otherwise."""
    numbers = _as_tensor("labels", labels, "integers", embeddings.device)
    if numbers.dtype not in INTEGERS:
        raise UserError(f"labels are {numbers.dtype}, expected integers: the class index of each embedding")
    if numbers.shape != (len(embeddings),):
        raise UserError(f"labels have shape {tuple(numbers.shape)}, expected ({len(embeddings)},): one per embedding")
    numbers = numbers.long()
    if num_classes is not None:
        low, high = (int(bound) for bound in numbers.aminmax())
        if low < 0 or high >= num_classes:
            raise UserError(
                f"label {low if low < 0 else high} is out of range: "
                f"the loss was built with num_classes={num_classes}, so labels must be 0 to {num_classes - 1}"
            )
    return numbers


def check_lengths(embeddings: Float[Tensor, "batch dim"], precision: torch.dtype) -> None:
    """Raise ``UserError`` if products of ``embeddings`` could overflow; for losses that do not normalise them."""
    longest = torch.linalg.vector_norm(embeddings.detach(), dim=-1).amax().item()
    if longest > torch.finfo(precision).max ** 0.25:  # squares, and sums of many squares, then stay finite
        raise UserError(f"embeddings have norms up to {longest:.2g}, so their products would overflow {precision}")


def as_tensors(embeddings: Vectors, labels: Labels, device: torch.device) -> tuple[Tensor, Tensor]:
    """Both as tensors, with NumPy arrays moved to ``device``; ``UserError`` for anything else."""
    return (
        _as_tensor("embeddings", embeddings, "floating-point numbers", device),
        _as_tensor("labels", labels, "integers", device),
    )


def _as_tensor(name: str, values: Any, expected: str, device: torch.device | None) -> Tensor:
    if isinstance(values, Tensor):
        return values
    if not isinstance(values, np.ndarray):
        raise UserError(f"{name} are a {type(values).__name__}, expected a tensor or a NumPy array of {expected}")
    try:
        return torch.from_numpy(np.array(values, order="C")).to(device)
    except TypeError:
        raise UserError(f"{name} are a NumPy array of {values.dtype}, expected {expected}") from None
