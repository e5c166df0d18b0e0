"""The training loop: epochs of batches, the log, checkpoints, and a stop that loses nothing."""

import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, Num
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import TrainConfig
from softtriple.data import m_per_class, rows_of_classes, shuffled
from softtriple.data.sampling import stream
from softtriple.errors import UserError
from softtriple.losses import Loss
from softtriple.models import Encoder
from softtriple.models.allocation import reusing_memory
from softtriple.models.features import Feed, embed_together
from softtriple.progress import Reporter
from softtriple.training.checkpoint import Position, load_checkpoint, save_checkpoint
from softtriple.training.directory import RunDir
from softtriple.training.memory import activation_bytes, check_memory, estimate_memory
from softtriple.training.optim import build_optimizer, set_rates

# Steps between two looks at the loss: each look waits for the device, and over ranks for the slowest of them.
LOOK_EVERY = 10
LOG_EVERY = 50
COMPILER = "inductor"  # of torch.compile
# What the encoder computes in under autocast; None: no autocast.
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}

Labels = Int64[np.ndarray, " items"]
Rows = Integer[np.ndarray, " rows"]
Batch = tuple[Tensor, Tensor]


class Step(NamedTuple):
    """One batch that was trained on."""

    loss: Float[Tensor, ""]  # a tensor: .item() would wait for the device
    updated: bool  # whether the optimiser has stepped, so that the state is one to save


class Pending(NamedTuple):
    """A step whose loss has not been looked at yet."""

    loss: Float[Tensor, ""]
    items: int


class FromStage(nn.Module):
    """An encoder that takes the output of its first ``first`` stages, as one module."""

    def __init__(self, encoder: Encoder, first: int) -> None:
        super().__init__()
        self.encoder, self.first = encoder, first

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Unit embeddings."""
        return self.encoder.run_from(inputs, self.first)


def train_epoch(
    encoder: nn.Module,
    loss: nn.Module,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    *,
    accumulate: int = 1,
    device: torch.device | str = "cpu",
    half: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Iterator[Step]:
    """One pass over ``batches`` of inputs and labels; yields after each batch.

    There may be fewer labels than inputs: a rank without examples of a batch runs some all the same, so that ranks stay
    in step, and contributes nothing. ``accumulate`` batches make one optimiser step, with the mean of their gradients.
    With ``half`` the encoder computes in that precision, the loss never does; float16 needs a ``scaler`` that outlives
    the epoch.
    """
    encoder.train()
    scaler = scaler or torch.amp.GradScaler(enabled=False)
    optimizer.zero_grad(set_to_none=True)
    remaining = iter(batches)
    while group := list(itertools.islice(remaining, accumulate)):
        for number, (inputs, labels) in enumerate(group, start=1):
            last = number == len(group)
            with dist.gradients_synchronized(encoder, last):
                with torch.autocast(torch.device(device).type, dtype=half, enabled=half is not None):
                    embeddings = encoder(inputs.to(device, non_blocking=True))[: len(labels)]
                value = loss(embeddings, labels.to(device, non_blocking=True))
                scaler.scale(value / len(group)).backward()
            if last:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
            yield Step(value.detach(), updated=last)


def fit(
    config: TrainConfig,
    encoder: Encoder,
    loss: Loss,
    feed: Feed,
    *,
    directory: RunDir | None,
    evaluate: Callable[[], dict[str, float]],
    device: torch.device,
    reporter: Reporter,
    track: Callable[[dict[str, Any]], None] = lambda entry: None,
) -> list[dict[str, Any]]:
    """Train for the epochs that are left and return the log, an entry per epoch.

    ``evaluate`` gives what the log holds of an evaluation, and ``track`` takes each new entry of the log.
    Without a ``directory`` nothing is written to disk.
    """
    loss.train()
    epochs, batch_size = config.epochs, config.batch_size
    assert epochs != "auto"
    assert batch_size != "auto"
    stop_after = epochs if config.stop_after == "auto" else min(config.stop_after, epochs)
    optimizer = build_optimizer(encoder, loss, config)
    half = PRECISIONS[config.precision]
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)
    # With the first stages cached, what runs of the encoder is small.
    activations = 0 if feed.first else activation_bytes(encoder, half) * -(-batch_size // dist.world_size())
    memory = estimate_memory(encoder, loss, batch_size, activations)
    reporter.note(f"memory{_per_rank()}: about {memory}")
    check_memory(memory, device)
    position, log = Position(), []
    if directory is not None:
        position = load_checkpoint(directory.checkpoints, encoder, loss, optimizer, scaler)
        if dist.is_main():
            directory.forget_log_after(position)
        log = directory.read_epochs()
    if position != Position():
        reporter.note(f"resumed after epoch {position.epoch} of {stop_after}, batch {position.batch}")
    if dist.world_size() > 1 and device.type == "cpu" and _has_batch_statistics(encoder):
        reporter.note("batch norm: each rank normalises by its own part of the batch; one process would use all of it")

    def save() -> None:
        if directory is not None:
            save_checkpoint(directory.checkpoints, position, encoder, loss, optimizer, scaler)

    def write_log(entry: dict[str, Any]) -> None:
        if directory is not None and dist.is_main():
            directory.append_log(entry)

    network = FromStage(encoder.fast(), feed.first)
    if config.compile == "on":
        network.compile(backend=COMPILER)  # in place: names of parameters stay as they are
    parallel = dist.data_parallel(network)
    with reporter.task("training") as update, stop_requests() as stopping, unvalidated(loss), reusing_memory():
        centers = ""
        while position.epoch < stop_after:
            set_rates(optimizer, position.epoch, config)
            if position.batch == 0 and loss.looks_ahead:
                loss.start_epoch(embed_together(encoder, feed), torch.from_numpy(feed.labels))
            rows = itertools.islice(row_batches(loss, feed.labels, config, position.epoch), position.batch, None)
            asked, counted = itertools.tee(rows)
            start = saved = time.monotonic()
            rate, seen, items_before = 0.0, 0, position.items
            pending: list[Pending] = []
            with closing(own_parts(feed, asked, position.epoch)) as batches:
                steps = train_epoch(
                    parallel, loss, batches, optimizer,
                    accumulate=config.accumulate, device=device, half=half, scaler=scaler,
                )  # fmt: skip
                for number, (step, batch) in enumerate(zip(steps, counted, strict=True), start=1):
                    pending.append(Pending(step.loss, len(batch)))
                    seen += len(batch)
                    now = time.monotonic()
                    rate = seen / (now - start)
                    done = position.epoch * len(feed) + items_before + seen
                    told = f"epoch {position.epoch + 1}{_mean_loss(position)}, {rate:.0f} items/s{centers}"
                    update(done, stop_after * len(feed), told)
                    late = now - saved > 60 * config.checkpoint_minutes
                    alone = dist.world_size() == 1  # several ranks have to agree, which they do at looks only
                    if number % LOOK_EVERY and not (alone and step.updated and (late or stopping())):
                        continue
                    position = _look(position, pending, directory)
                    if position.batch % LOG_EVERY == 0:
                        value = pending[-1].loss.item()
                        write_log({"epoch": position.epoch + 1, "batch": position.batch, "loss": value})
                    pending = []
                    if not step.updated:
                        continue
                    due, stop = dist.any_rank(late, stopping())
                    # What a loss saw at the start of an epoch is not in the checkpoint: such runs resume at epochs.
                    if (due or stop) and not loss.looks_ahead:
                        save()
                        saved = now
                    if stop:
                        raise KeyboardInterrupt
            position = _look(position, pending, directory)
            dist.sync_buffers(encoder)
            entry = _epoch_entry(position, optimizer, loss, rate)
            if "distinct_centers" in entry:
                centers = f", {entry['distinct_centers']:.1f} centres per class"
            if config.evaluate_every and (position.epoch + 1) % config.evaluate_every == 0:
                entry |= evaluate()
            position = Position(epoch=position.epoch + 1)
            log.append(entry)
            write_log(entry)  # before the checkpoint: a resumed run drops entries that it will write again
            save()
            track(entry)
            if any(dist.any_rank(stopping())):  # the request came while the epoch was evaluated
                raise KeyboardInterrupt
    return log


def row_batches(loss: Loss, labels: Labels, config: TrainConfig, epoch: int) -> Iterator[Rows]:
    """The rows of each batch of ``epoch``, as the loss asks for them."""
    assert config.batch_size != "auto"
    if loss.per_class is None:
        return shuffled(len(labels), config.batch_size, config.seed, epoch)
    num_classes = int(labels.max()) + 1
    classes_per_batch = min(max(config.batch_size // loss.per_class, 2), num_classes)
    if loss.choose_classes(torch.zeros(1, dtype=torch.int64)) is None:
        return m_per_class(labels, classes_per_batch, loss.per_class, config.seed, epoch)
    groups = _neighborhoods(loss, num_classes, classes_per_batch, stream("anchors", config.seed, epoch))
    count = max(len(labels) // (classes_per_batch * loss.per_class), 1)
    return rows_of_classes(labels, itertools.islice(groups, count), loss.per_class, config.seed, epoch)


def own_parts(feed: Feed, row_batches: Iterable[Rows], epoch: int) -> Generator[Batch, None, None]:
    """Inputs and labels of this rank's part of each batch; in one process the whole batch.

    The parts of all ranks are the batch in its order, so the sequence of batches does not depend on their number. A
    rank that a small last batch has nothing for gets its first row, without a label.
    """
    asked, known = itertools.tee(row_batches)
    with closing(feed.batches((_own(batch) for batch in asked), epoch)) as parts:
        for (inputs, labels), batch in zip(parts, known, strict=True):
            part = dist.share(len(batch))
            yield inputs, labels[: part.stop - part.start]


def _look(position: Position, pending: list[Pending], directory: RunDir | None) -> Position:
    """The position after the ``pending`` steps; UserError at the first loss that is not finite."""
    values = torch.stack([step.loss for step in pending]).tolist() if pending else []
    for value, (_, items) in zip(values, pending, strict=True):
        position = position.after(items, value)
        if not math.isfinite(value):
            has_checkpoint = directory is not None and any(directory.checkpoints.glob("*.pt"))
            saved = f" The last good state is in {directory.checkpoints}." if directory and has_checkpoint else ""
            raise UserError(
                f"the loss became {value} in batch {position.batch} of epoch {position.epoch + 1}. Most often a "
                f"learning rate (train.lr, train.center_lr) or loss.options.scale is too high.{saved}"
            )
    return position


def _mean_loss(position: Position) -> str:
    return f", loss {position.loss_sum / position.items:.3f}" if position.items else ""


def _own(batch: Rows) -> Rows:
    part = batch[dist.share(len(batch))]
    return part if len(part) else batch[:1]


def _neighborhoods(loss: Loss, num_classes: int, size: int, generator: np.random.Generator) -> Iterator[Labels]:
    """Groups of about ``size`` classes: random anchors, each with the classes near it, none twice."""
    while True:
        anchors = torch.from_numpy(generator.permutation(num_classes))
        chosen = loss.choose_classes(anchors)
        assert chosen is not None
        around = chosen.cpu().numpy()
        per_batch = max(size // around.shape[1], 1)
        for start in range(0, num_classes, per_batch):
            yield np.unique(around[start : start + per_batch])[: max(size, around.shape[1])]


def _has_batch_statistics(encoder: Encoder) -> bool:
    modules = encoder.train().modules()
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in modules)


def _per_rank() -> str:
    return f" of each of {dist.world_size()} ranks" if dist.world_size() > 1 else ""


def _epoch_entry(position: Position, optimizer: torch.optim.Optimizer, loss: Loss, rate: float) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "epoch": position.epoch + 1,
        "loss": position.loss_sum / position.items,
        "items_per_second": round(rate, 1),
        "rates": {group["part"]: group["lr"] for group in optimizer.param_groups},
    }
    distinct = loss.distinct_centers()
    if distinct is not None:
        entry["distinct_centers"] = distinct.float().mean().item()
    return entry


@contextmanager
def unvalidated(loss: Loss) -> Iterator[None]:
    """No look at the values of each batch: labels are known to be right, and the loop looks for infinite losses."""
    validating = [module for module in loss.modules() if isinstance(module, Loss) and module.validate]
    for module in validating:
        module.validate = False
    try:
        yield
    finally:
        for module in validating:
            module.validate = True


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """A function that tells whether Ctrl-C or SIGTERM came meanwhile; a second one ends the process at once."""
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
