"""Random batches and centres, in float64, and the comparison of a loss with plain loops."""

from typing import TypeVar

import torch
from torch import Tensor

from softtriple.losses import CenterLoss

AnyLoss = TypeVar("AnyLoss", bound=CenterLoss)


def with_centers(loss: AnyLoss, centers: Tensor) -> AnyLoss:
    """``loss`` in the precision of ``centers``, which replace its own."""
    with torch.no_grad():
        loss.to(centers.dtype).centers.copy_(centers)
    return loss


def assert_same_with_gradient(value: Tensor, expected: Tensor, embeddings: Tensor, **tolerance: float) -> None:
    """Both have the same value and gradient; ``tolerance`` is that of the gradient."""
    torch.testing.assert_close(value, expected)
    # Plain loops over a batch without pairs give a constant.
    by_book = torch.autograd.grad(expected + 0 * embeddings.sum(), embeddings)
    torch.testing.assert_close(torch.autograd.grad(value, embeddings), by_book, **tolerance)


def random_batch(seed: int, size: int, num_classes: int, dim: int) -> tuple[Tensor, Tensor]:
    """Embeddings, which need a gradient, and their labels."""
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(size, dim, generator=random, dtype=torch.float64, requires_grad=True)
    return embeddings, torch.randint(num_classes, (size,), generator=random)


def random_problem(
    seed: int, size: int, num_classes: int, k: int, dim: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels and the ``k`` centres of each class; embeddings and centres need a gradient."""
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(size, dim, generator=random, dtype=dtype, requires_grad=True)
    centers = torch.randn(num_classes, k, dim, generator=random, dtype=dtype, requires_grad=True)
    return embeddings, torch.randint(num_classes, (size,), generator=random), centers
