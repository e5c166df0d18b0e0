"""Epoch after epoch: batches, rates, the log, checkpoints, and a stop that loses nothing."""

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import torch
from torch import nn

from softtriple import dist
from softtriple.config import Config, TrainConfig
from softtriple.feeds import Feed
from softtriple.losses import SampledSoftTripleLoss, ShardedSoftTripleLoss, SoftTripleLoss
from softtriple.models import Encoder
from softtriple.progress import Reporter, Update
from softtriple.training.batching import LooksAhead, own_parts, row_batches
from softtriple.training.checkpoint import Position, find_checkpoints, load_checkpoint, save_checkpoint
from softtriple.training.embedding import embed_together
from softtriple.training.interrupt import asked_to_stop
from softtriple.training.loop import Batch, FromStage, Step, train_epoch
from softtriple.training.memory import estimate_memory
from softtriple.training.optim import build_optimizer, set_rates
from softtriple.training.run import RunDir

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
