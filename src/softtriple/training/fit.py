"""Epoch after epoch: batches, rates, the log, checkpoints, and a stop that loses nothing."""

import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
from torch import nn

from softtriple import dist
from softtriple.config import Config
from softtriple.feeds import Feed
from softtriple.losses import SampledSoftTripleLoss, ShardedSoftTripleLoss, SoftTripleLoss
from softtriple.models import Encoder
from softtriple.progress import Reporter
from softtriple.training.batching import LooksAhead, own_parts, row_batches
from softtriple.training.checkpoint import Position, load_checkpoint, save_checkpoint
from softtriple.training.embedding import embed_together
from softtriple.training.interrupt import asked_to_stop
from softtriple.training.loop import FromStage, train_epoch
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
    reporter.note(f"memory{_of_each()}: about {estimate_memory(encoder, loss, config.train.batch_size)}")
    position = load_checkpoint(run.checkpoints, encoder, loss, optimizer)
    if dist.is_main():
        run.forget_log_after(position)
    if position != Position():
        reporter.note(f"resumed after epoch {position.epoch} of {config.train.epochs}, batch {position.batch}")

    model = dist.data_parallel(FromStage(encoder, feed.first))
    if dist.world_size() > 1 and device.type == "cpu" and _has_batch_statistics(encoder):
        reporter.note("batch norm: each rank normalises by its own part of a batch, which one process would not do")

    def keep() -> None:
        save_checkpoint(run.checkpoints, position, encoder, loss, optimizer)

    with reporter.task("training") as update, asked_to_stop() as stopping:
        centers = ""
        while position.epoch < config.train.epochs:
            set_rates(optimizer, position.epoch, config.train)
            if position.batch == 0 and isinstance(loss, LooksAhead):
                loss.start_epoch(embed_together(encoder, feed, device=device), torch.from_numpy(feed.labels))
            rows = row_batches(loss, feed.labels, config.train, position.epoch)
            remaining, counted = itertools.tee(itertools.islice(rows, position.batch, None))
            start = saved = time.monotonic()
            seen_before, rate = position.items, 0.0
            with closing(own_parts(feed, remaining, position.epoch)) as batches:
                steps = train_epoch(
                    model,
                    loss,
                    batches,
                    optimizer,
                    accumulate=config.train.accumulate,
                    device=device,
                    half=_half(config, device),
                )
                for step, batch in zip(steps, counted, strict=True):
                    position = _advance(position, step.loss.item(), len(batch), run)
                    rate = (position.items - seen_before) / (time.monotonic() - start)
                    done, total = position.epoch * len(feed) + position.items, config.train.epochs * len(feed)
                    mean_loss = position.loss_sum / position.items
                    told = f"epoch {position.epoch + 1}, loss {mean_loss:.3f}, {rate:.0f} items/s{centers}"
                    update(done, total, told)
                    if not step.updated:
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
                centers = f", {entry['distinct_centers']:.1f} centres a class"
            if config.train.evaluate_every and (position.epoch + 1) % config.train.evaluate_every == 0:
                entry |= check()
            position = Position(epoch=position.epoch + 1)
            _log(run, entry)  # before the checkpoint: a resumed run drops entries that it will write again
            keep()
            if config.train.tensorboard and dist.is_main():
                _to_tensorboard(run, entry)


def _advance(position: Position, value: float, items: int, run: RunDir) -> Position:
    epoch, batch = position.epoch + 1, position.batch + 1
    if not math.isfinite(value):
        raise FloatingPointError(
            f"the loss became {value} in batch {batch} of epoch {epoch}: most often a learning rate is too high "
            f"(train.lr, train.center_lr) or loss.options.scale too large; the last good state is in {run.path}"
        )
    if batch % BATCHES_BETWEEN_LOG_LINES == 0:
        _log(run, {"epoch": epoch, "batch": batch, "loss": value})
    return Position(position.epoch, batch, position.items + items, position.loss_sum + value * items)


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


def _to_tensorboard(run: RunDir, entry: dict[str, Any]) -> None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("train.tensorboard needs TensorBoard: pip install softtriple[tensorboard]") from None
    with SummaryWriter(str(run.path / "tensorboard")) as writer:
        for name, value in entry.items():
            if isinstance(value, int | float) and name != "epoch":
                writer.add_scalar(name, value, entry["epoch"])


def _half(config: Config, device: torch.device) -> torch.dtype | None:
    match config.train.precision:
        case "float32":
            return None
        case "auto":
            return torch.float16 if device.type == "cuda" else None
        case name:
            return torch.float16 if name == "float16" else torch.bfloat16
