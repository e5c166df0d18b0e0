"""The only module that uses torch.distributed: joining a torchrun job, and communication between its ranks.

In one process every function here is the identity. With several, all ranks must call the same functions in the same
order. There are two process groups: one for communication in every step (gloo for CPU tensors, NCCL for GPU tensors),
and one on gloo with a long timeout, in which the other ranks wait for work of the first that may take hours.
"""

import itertools
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as torch_dist  # noqa: TID251
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

Value = TypeVar("Value")

# A rank that hangs is noticed after this time; one that exits is noticed at once by its broken connections.
STEP_TIMEOUT = timedelta(minutes=30)
PATIENCE = timedelta(days=1)

PIECE_BYTES = 1 << 28

_patient_group: Any = None


@contextmanager
def joined() -> Iterator[None]:
    """Join the other processes of a torchrun job; outside of one, do nothing.

    If another process ends early, this one raises a ConnectionError that says so.
    """
    global _patient_group
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or torch_dist.is_initialized():
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    torch_dist.init_process_group(backend, timeout=STEP_TIMEOUT)
    _patient_group = torch_dist.new_group(backend="gloo", timeout=PATIENCE)
    try:
        yield
    except RuntimeError as error:
        if not _is_broken_connection(error):
            raise
        # torchrun terminates all ranks when one dies; ignore the signal to report the reason first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise ConnectionError(
            f"rank {rank()} of {world_size()}: another process of the job has ended; its own message may say why. "
            "Continue from the newest checkpoint with --resume"
        ) from error
    finally:
        _patient_group = None
        torch_dist.destroy_process_group()


def rank() -> int:
    """Number of this process, from 0."""
    return torch_dist.get_rank() if torch_dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes in the job."""
    return torch_dist.get_world_size() if torch_dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this is the first process, which writes files and prints."""
    return rank() == 0


def device() -> torch.device:
    """The device of this process: its own GPU if there are any, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def share(count: int) -> slice:
    """This rank's slice of ``count`` items; if they do not divide evenly, the first ranks get one more.

    Example:
        >>> share(5)
        slice(0, 5, None)
    """
    size, longer = divmod(count, world_size())
    start = rank() * size + min(rank(), longer)
    return slice(start, start + size + (rank() < longer))


# Communication without gradients.


def from_main(make: Callable[[], Value]) -> Value:
    """Call ``make`` on the first rank only, and return its result on every rank."""
    if world_size() == 1:
        return make()
    made = [make() if is_main() else None]
    torch_dist.broadcast_object_list(made, src=0, group=_patient_group)
    return cast(Value, made[0])


@contextmanager
def main_first() -> Iterator[None]:
    """Run the block on the first rank, then on the others, which can use the files that the first has written."""
    if not is_main():
        barrier()
    try:
        yield
    finally:  # also after an error, which the others then raise themselves
        if is_main():
            barrier()


def barrier() -> None:
    """Wait for all ranks."""
    if world_size() > 1:
        torch_dist.barrier(group=_patient_group)


def any_rank(*flags: bool) -> list[bool]:
    """For each of ``flags``, whether it is set on any rank."""
    if world_size() == 1:
        return list(flags)
    numbers = torch.tensor([int(flag) for flag in flags])
    torch_dist.all_reduce(numbers, torch_dist.ReduceOp.MAX)
    return [bool(number) for number in numbers]


def gather_objects(value: Value) -> list[Value]:
    """The values of all ranks, in rank order."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    torch_dist.all_gather_object(values, value, group=_patient_group)
    return values


def gather_rows(tensor: Shaped[Tensor, "rows ..."]) -> Shaped[Tensor, "all_rows ..."]:
    """The rows of all ranks in rank order; ranks may have different numbers of rows, or none.

    Needs no memory beyond the result, at the cost of one broadcast per rank; `gather_batch`, which is called in every
    step, uses a single all-gather instead.
    """
    if world_size() == 1:
        return tensor
    counts = _row_counts(tensor)
    whole = tensor.new_empty(sum(counts), *tensor.shape[1:])
    for source, part in enumerate(torch.split(whole, counts)):
        if source == rank():
            part.copy_(tensor.detach())
        torch_dist.broadcast(part, src=source)
    return whole


def stack(tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "ranks ..."]:
    """The tensors of all ranks, which must have the same shape, stacked in rank order."""
    return tensor[None] if world_size() == 1 else _gather(tensor[None], [1] * world_size())


def sum_(tensor: Tensor) -> Tensor:
    """Replace ``tensor`` by its sum over all ranks, in place."""
    if world_size() > 1:
        torch_dist.all_reduce(tensor)
    return tensor


def rows_on_main(tensor: Shaped[Tensor, "rows ..."], folder: Path) -> Shaped[Tensor, "all_rows ..."]:
    """Gather the rows of all ranks on the first, memory-mapped from an unlinked temporary file in ``folder``.

    On other ranks, returns ``tensor``.
    """
    if world_size() == 1:
        return tensor
    mine = tensor.detach().cpu().contiguous()
    counts = gather_objects(len(mine))
    if not is_main():
        for piece in _pieces(mine):
            torch_dist.send(piece, dst=0, group=_patient_group)
        return tensor
    shape = (sum(counts), *mine.shape[1:])
    size = math.prod(shape) * mine.element_size()
    with tempfile.TemporaryFile(dir=folder) as file:  # the mapping outlives the file object
        if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
            # Writing to a mapped page without disk space would kill the process (SIGBUS); allocating raises instead.
            os.posix_fallocate(file.fileno(), 0, size)
        memory = np.memmap(file, np.uint8, "w+", shape=size)
    whole = torch.from_numpy(memory).view(mine.dtype).view(shape)
    parts = torch.split(whole, counts)
    parts[0].copy_(mine)
    for source, part in enumerate(parts[1:], start=1):
        for piece in _pieces(part):
            torch_dist.recv(piece, src=source, group=_patient_group)
    return whole


def _pieces(tensor: Shaped[Tensor, "rows ..."]) -> Iterator[Shaped[Tensor, "some ..."]]:
    """Slices of rows that are small enough to send."""
    rows = max(1, PIECE_BYTES // max(1, tensor[:1].numel() * tensor.element_size()))
    return (tensor[start : start + rows] for start in range(0, len(tensor), rows))


# Communication in training.


def data_parallel(module: nn.Module) -> nn.Module:
    """``module`` with the weights of the first rank on all ranks, and gradients averaged over ranks in backward.

    On GPUs batch norm is synchronised over ranks. gloo does not support that: each rank normalises by its own part of
    the batch, and the running statistics of the first rank are kept.
    """
    if world_size() == 1 or not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    if device().type == "cuda":
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return DistributedDataParallel(module)


@contextmanager
def gradients_synchronized(module: nn.Module, wanted: bool) -> Iterator[None]:
    """Average the gradients of ``module`` over ranks in this block's backward only if ``wanted``.

    With gradient accumulation, only the last batch of a step needs to synchronise.
    """
    if wanted or not isinstance(module, DistributedDataParallel):
        yield
        return
    with module.no_sync():
        yield


def sync_buffers(module: nn.Module) -> None:
    """Copy the buffers of the first rank, such as the running statistics of batch norm, to all ranks."""
    _copy_from_main(module.buffers())


def sync_state(module: nn.Module) -> None:
    """Copy the parameters and buffers of the first rank to all ranks."""
    _copy_from_main(itertools.chain(module.parameters(), module.buffers()))


def _copy_from_main(tensors: Iterable[Tensor]) -> None:
    if world_size() > 1:
        for tensor in tensors:
            torch_dist.broadcast(tensor.detach(), src=0)


def gather_batch(
    embeddings: Float[Tensor, "batch dim"], labels: Shaped[Tensor, " batch"]
) -> tuple[Float[Tensor, "all dim"], Shaped[Tensor, " all"]]:
    """Embeddings and labels of the whole batch, from each rank's part; parts may differ in size or be empty.

    Backward: the sum over ranks of the gradients for this rank's rows. If every rank computes the same value from the
    whole batch, this is world_size times its gradient, and the averaging in ``data_parallel`` makes it the gradient of
    a single process.
    """
    if world_size() == 1:
        return embeddings, labels
    counts = _row_counts(labels)
    gathered: Tensor = _GatherWithGradient.apply(embeddings, counts)  # type: ignore[no-untyped-call]
    return gathered, _gather(labels, counts)


class _GatherWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        return _gather(tensor, counts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = sum_(gradient.clone(memory_format=torch.contiguous_format))
        return torch.split(total, ctx.counts)[rank()], None


def _row_counts(tensor: Tensor) -> list[int]:
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(world_size())]
    torch_dist.all_gather(counts, torch.tensor([len(tensor)]))
    return [int(count) for count in counts]


def _gather(tensor: Tensor, counts: list[int]) -> Tensor:
    # Backends need equal sizes: pad shorter parts, and cut the padding off again.
    longest = max(counts)
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[: len(tensor)] = tensor.detach()
    parts = [torch.empty_like(padded) for _ in counts]
    torch_dist.all_gather(parts, padded)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _is_broken_connection(error: RuntimeError) -> bool:
    text = str(error)
    return isinstance(error, torch_dist.DistError) or any(name in text for name in ("gloo", "NCCL", "TCPStore"))
