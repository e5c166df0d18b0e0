"""Epoch after epoch: batches, rates, the log, checkpoints, and a stop that loses nothing."""

import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, Num
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config, TrainConfig
from softtriple.data import m_per_class, rows_of_classes, shuffled
from softtriple.data.sampling import stream
from softtriple.losses import SampledSoftTripleLoss, ShardedSoftTripleLoss, SoftTripleLoss
from softtriple.models import Encoder
from softtriple.models.features import Feed, embed_together
from softtriple.progress import Reporter, Update
from softtriple.training.checkpoint import Position, find_checkpoints, load_checkpoint, save_checkpoint
from softtriple.training.optim import build_optimizer, estimate_memory, set_rates
from softtriple.training.run import RunDir

Batch = tuple[Tensor, Tensor]


class FromStage(nn.Module):
    """An encoder that takes the output of its first ``first`` stages: one module, whatever goes in."""

    def __init__(self, encoder: Encoder, first: int) -> None:
        super().__init__()
        self.encoder, self.first = encoder, first

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        """Unit vectors."""
        return self.encoder.run_from(inputs, self.first)


class Step(NamedTuple):
    """One batch that was learned from."""

    loss: Float[Tensor, ""]  # a tensor: .item() would wait for a GPU
    updated: bool  # whether the optimiser has made its step, and the state is one to keep


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

    There may be fewer labels than inputs: a rank without examples of a batch runs some all the same, so that ranks
    stay in step, and gives nothing of them. ``accumulate`` batches make one step of the optimiser. With ``half`` the
    encoder computes in that precision, but never the loss; float16 needs a ``scaler``, which keeps small gradients and
    should outlive the epoch, as it finds the scale by trying.
    """
    encoder.train()
    scaler = scaler or torch.amp.GradScaler(enabled=False)
    optimizer.zero_grad(set_to_none=True)
    waiting = 0
    for inputs, labels in batches:
        with torch.autocast(str(device).split(":")[0], dtype=half, enabled=half is not None):
            embeddings = encoder(inputs.to(device))[: len(labels)]
        value = loss(embeddings, labels.to(device))
        scaler.scale(value / accumulate).backward()
        waiting = (waiting + 1) % accumulate
        if not waiting:
            _step(optimizer, scaler)
        yield Step(value.detach(), updated=not waiting)
    if waiting:
        _step(optimizer, scaler)


def _step(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)


BATCHES_BETWEEN_LOG_LINES = 50


def fit(
    config: Config,
    run: RunDir,
    encoder: Encoder,
    loss: nn.Module,
    feed: Feed,
    check: Callable[[], dict[str, float]],
    device: torch.device,
    reporter: Reporter,
) -> None:
    """Train for the epochs that are left; ``check`` gives what is to be logged of an evaluation."""
    loss.train()
    optimizer = build_optimizer(encoder, loss, config.train)
    half = _half(config.train.precision, device)
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)
    reporter.note(f"memory{_of_each()}: about {estimate_memory(encoder, loss, config.train.batch_size)}")
    position = load_checkpoint(run.checkpoints, encoder, loss, optimizer, scaler)
    if dist.is_main():
        run.forget_log_after(position)
    if position != Position():
        reporter.note(f"resumed after epoch {position.epoch} of {config.train.epochs}, batch {position.batch}")

    learn = partial(
        train_epoch,
        dist.data_parallel(FromStage(encoder, feed.first)),
        loss,
        optimizer=optimizer,
        accumulate=config.train.accumulate,
        device=device,
        half=half,
        scaler=scaler,
    )
    if dist.world_size() > 1 and device.type == "cpu" and _has_batch_statistics(encoder):
        reporter.note("batch norm: each rank normalises by its own part of a batch, which one process would not do")

    def keep() -> None:
        save_checkpoint(run.checkpoints, position, encoder, loss, optimizer, scaler)

    with reporter.task("training") as update, asked_to_stop() as stopping:
        centers = ""
        while position.epoch < config.train.epochs:
            set_rates(optimizer, position.epoch, config.train)
            if position.batch == 0 and isinstance(loss, LooksAhead):
                loss.start_epoch(embed_together(encoder, feed, device=device), torch.from_numpy(feed.labels))
            start = saved = time.monotonic()
            seen_before, rate = position.items, 0.0
            with closing(_rest_of_epoch(position, learn, loss, feed, config.train)) as learned:
                for position, value, updated in learned:
                    _refuse_infinite(value, position, run)
                    rate = (position.items - seen_before) / (time.monotonic() - start)
                    _tell(update, position, len(feed), config.train.epochs, f"{rate:.0f} items/s{centers}")
                    if position.batch % BATCHES_BETWEEN_LOG_LINES == 0:
                        _log(run, {"epoch": position.epoch + 1, "batch": position.batch, "loss": value})
                    if not updated:
                        continue
                    # Clocks and signals differ between ranks: they agree on what to do after this step.
                    late = time.monotonic() - saved > 60 * config.train.checkpoint_minutes
                    due, stop = dist.any_rank(late, stopping())
                    # What a loss saw at the start of an epoch is gone later: such runs resume at epochs only.
                    if (due or stop) and not isinstance(loss, LooksAhead):
                        keep()
                        saved = time.monotonic()
                    if stop:
                        raise KeyboardInterrupt
            dist.sync_buffers(encoder)
            entry = _epoch_entry(position, optimizer, loss, rate)
            if "distinct_centers" in entry:
                centers = f", {entry['distinct_centers']:.1f} centres per class"
            if config.train.evaluate_every and (position.epoch + 1) % config.train.evaluate_every == 0:
                entry |= check()
            position = Position(epoch=position.epoch + 1)
            _log(run, entry)  # before the checkpoint: a resumed run drops entries that it will write again
            keep()
            if config.train.tensorboard and dist.is_main():
                _to_tensorboard(run, entry)
            if any(dist.any_rank(stopping())):  # it came while the epoch was looked back at
                raise KeyboardInterrupt


def _rest_of_epoch(
    position: Position,
    learn: Callable[[Iterable[Batch]], Iterator[Step]],
    loss: nn.Module,
    feed: Feed,
    config: TrainConfig,
) -> Generator[tuple[Position, float, bool], None, None]:
    """Learn from what is left of the epoch of ``position``.

    After each batch: how far the run is, the loss of the batch, and whether the state is one to keep.
    """
    rows = row_batches(loss, feed.labels, config, position.epoch)
    remaining, counted = itertools.tee(itertools.islice(rows, position.batch, None))
    with closing(own_parts(feed, remaining, position.epoch)) as batches:
        for step, batch in zip(learn(batches), counted, strict=True):
            value = step.loss.item()
            position = position.after(len(batch), value)
            yield position, value, step.updated


def _refuse_infinite(value: float, position: Position, run: RunDir) -> None:
    if not math.isfinite(value):
        kept = f"; the last good state is in {run.checkpoints}" if find_checkpoints(run.checkpoints) else ""
        raise FloatingPointError(
            f"the loss became {value} in batch {position.batch} of epoch {position.epoch + 1}: most often a learning "
            f"rate is too high (train.lr, train.center_lr) or loss.options.scale too large{kept}"
        )


def _tell(update: Update, position: Position, items: int, epochs: int, pace: str) -> None:
    mean_loss = position.loss_sum / position.items
    told = f"epoch {position.epoch + 1}, loss {mean_loss:.3f}, {pace}"
    update(position.epoch * items + position.items, epochs * items, told)


def _log(run: RunDir, entry: dict[str, Any]) -> None:
    if dist.is_main():
        run.append_log(entry)


def _has_batch_statistics(encoder: Encoder) -> bool:
    modules = encoder.train().modules()
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training for module in modules)


def _of_each() -> str:
    return f" of each of {dist.world_size()} ranks" if dist.world_size() > 1 else ""


def _epoch_entry(position: Position, optimizer: torch.optim.Optimizer, loss: nn.Module, rate: float) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "epoch": position.epoch + 1,
        "loss": position.loss_sum / position.items,
        "items_per_second": round(rate, 1),
        "rates": {group["part"]: group["lr"] for group in optimizer.param_groups},
    }
    if isinstance(loss, SoftTripleLoss | ShardedSoftTripleLoss | SampledSoftTripleLoss):
        entry["distinct_centers"] = loss.distinct_centers().float().mean().item()
    return entry


def summary_writer() -> Any:
    """TensorBoard's class that writes numbers."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("train.tensorboard needs TensorBoard: pip install 'softtriple[tensorboard]'") from None
    return SummaryWriter


def _to_tensorboard(run: RunDir, entry: dict[str, Any]) -> None:
    with summary_writer()(str(run.path / "tensorboard")) as writer:
        for name, value in entry.items():
            if isinstance(value, int | float) and name != "epoch":
                writer.add_scalar(name, value, entry["epoch"])


def _half(precision: str, device: torch.device) -> torch.dtype | None:
    match precision:
        case "float32":
            return None
        case "auto":
            return torch.float16 if device.type == "cuda" else None
        case name:
            return torch.float16 if name == "float16" else torch.bfloat16


@runtime_checkable
class LooksAhead(Protocol):
    """A loss that looks at the embeddings of all training items before each epoch."""

    def start_epoch(self, embeddings: Tensor, labels: Tensor) -> None:
        """Take note of the embeddings."""


Labels = Int64[np.ndarray, " items"]
Rows = Integer[np.ndarray, " rows"]


def row_batches(loss: nn.Module, labels: Labels, config: TrainConfig, epoch: int) -> Iterator[Rows]:
    """The rows of each batch of ``epoch``."""
    per_class: int | None = getattr(loss, "per_class", None)
    if per_class is None:
        return shuffled(len(labels), config.batch_size, config.seed, epoch)
    num_classes = int(labels.max()) + 1
    classes_per_batch = min(max(config.batch_size // per_class, 2), num_classes)
    choose: Callable[[Tensor], Tensor] | None = getattr(loss, "choose_classes", None)
    if choose is None:
        return m_per_class(labels, classes_per_batch, per_class, config.seed, epoch)
    groups = _neighborhoods(choose, num_classes, classes_per_batch, stream("anchors", config.seed, epoch))
    count = max(len(labels) // (classes_per_batch * per_class), 1)
    return rows_of_classes(labels, (next(groups) for _ in range(count)), per_class, config.seed, epoch)


def own_parts(feed: Feed, row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Tensor, Tensor], None, None]:
    """Inputs and labels of this rank's part of each batch; in one process that is the whole batch.

    The parts of all ranks are the batch in its order, so that the sequence of batches does not depend on their number.
    A rank that a small last batch has nothing for gets its first row, without a label.
    """
    asked, known = itertools.tee(row_batches)
    with closing(feed.batches((_own(batch) for batch in asked), epoch)) as found:
        for (inputs, labels), batch in zip(found, known, strict=True):
            part = dist.share(len(batch))
            yield inputs, labels[: part.stop - part.start]


def _own(batch: Rows) -> Rows:
    part = batch[dist.share(len(batch))]
    return part if len(part) else batch[:1]


def _neighborhoods(
    choose: Callable[[Tensor], Tensor], num_classes: int, size: int, generator: np.random.Generator
) -> Iterator[Labels]:
    """Groups of about ``size`` classes: random anchors, each with the classes around it, none twice."""
    while True:
        anchors = torch.from_numpy(generator.permutation(num_classes))
        around = choose(anchors).cpu().numpy()
        per_batch = max(size // around.shape[1], 1)
        for start in range(0, num_classes, per_batch):
            yield np.unique(around[start : start + per_batch])[: max(size, around.shape[1])]


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """A function that tells whether Ctrl-C (or SIGTERM) came meanwhile; a second one ends the process at once."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
