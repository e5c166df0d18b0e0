"""How much of a pretrained network to train: by the device, or by measured speed within a budget of minutes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from softtriple.config import Config, ModelConfig
from softtriple.data import Split
from softtriple.errors import UserError, counted
from softtriple.models import Encoder
from softtriple.models.allocation import reusing_memory
from softtriple.models.features import Reading, item_feed
from softtriple.progress import Reporter, duration
from softtriple.training.auto import LARGER_INPUT, TUNED_EPOCHS, resolve_precision
from softtriple.training.fit import PRECISIONS

NATIVE_INPUT = {"efficientnet-lite0": 224}  # for training layers, and the larger one for evaluation
FEWEST_EPOCHS = 4  # of all layers; a budget for fewer is better spent on the head
# Pixels in training that halve its time, if a budget is short, and in evaluation after it. Of 224 and 256, held-out
# training classes of CUB preferred 224 after training on 160.
SMALL_INPUT, SMALL_EVAL = 160, 224


def check_budget(config: Config) -> None:
    """UserError for a budget that has nothing to decide."""
    if config.train.minutes is not None and config.model.trainable != "auto":
        raise UserError(
            f"train.minutes = {config.train.minutes:g}: a time budget chooses how much of a pretrained network to "
            f"train, but here model.trainable = {config.model.trainable!r}; set train.epochs instead"
        )


class Plan(NamedTuple):
    """A way to spend the time for training; a head has no ``input_size`` of its own."""

    trainable: Literal["head", "all"]
    input_size: int | None
    epochs: int
    seconds: float

    def __str__(self) -> str:
        if self.trainable == "head":
            return f"head on cached features, about {duration(self.seconds)}"
        epochs = counted(self.epochs, "epoch")
        return f"all layers at {self.input_size} pixels for {epochs}, about {duration(self.seconds)}"


def plan_training(
    items: int,
    size: int,
    candidates: Sequence[int],
    views: int,
    epochs: int,
    forward: float,
    training: float,
    seconds: float,
) -> list[Plan]:
    """Ways to train within ``seconds``, the best first, given images per second of both passes at ``size`` pixels.

    All layers if there is time for enough epochs, on images of the first of the ``candidates`` that is small enough.
    The head on cached features comes last, however long it takes.
    """
    plans = []
    for pixels in candidates:
        affordable = min(epochs, int(seconds / _epoch_seconds(items, size, pixels, training)))
        if affordable >= min(FEWEST_EPOCHS, epochs):
            plans.append(Plan("all", pixels, affordable, affordable * _epoch_seconds(items, size, pixels, training)))
    return [*plans, Plan("head", None, epochs, items * views / forward)]


def _epoch_seconds(items: int, size: int, pixels: int, training: float) -> float:
    """Seconds of an epoch on images of ``pixels``, given images per second at ``size``."""
    return items / (training * (size / pixels) ** 2)


def choose_trainable(
    config: Config, encoder: Encoder, split: Split, reading: Reading, device: torch.device, reporter: Reporter
) -> Config:
    """Decide what to train of a network with published weights: by ``train.minutes`` if given, else by the device.

    Without a budget a CPU trains the head on cached features. The plan is recorded, not the budget, so that the run
    does the same work when it is resumed or repeated on another machine.
    """
    model, train = config.model, config.train
    if model.trainable != "auto":
        return config
    assert reading.view is not None  # other kinds with weights are decided by `resolve`
    size = reading.view.size
    own_size = model.input_size not in (None, LARGER_INPUT.get(model.backbone)) or model.eval_size is not None
    native = size if own_size else NATIVE_INPUT.get(model.backbone, size)
    if train.minutes is None and device.type == "cpu":
        reporter.note("trainable: head, on cached features (--minutes 60 trains as many layers as an hour allows)")
        return replace(config, model=replace(model, trainable="head"))
    if train.minutes is None:
        reporter.note("trainable: all, on the GPU")
        return replace(config, model=_with_all_layers(model, size, native))
    epochs = TUNED_EPOCHS if train.epochs == "auto" else train.epochs
    whole = replace(config, model=replace(model, trainable="all"))
    half = PRECISIONS[resolve_precision(whole, device, Reporter(quiet=True)).train.precision]
    speeds = _items_per_second(encoder, split, reading, device, half)
    candidates = [native, SMALL_INPUT] if native > SMALL_INPUT and not own_size else [native]
    plans = plan_training(len(split), size, candidates, train.views, epochs, *speeds, 60 * train.minutes)
    best, *others = plans
    reporter.note(f"plan: {best}" + "".join(f"; or {other}" for other in others))
    if best.input_size is None:
        least = min(FEWEST_EPOCHS, epochs) * _epoch_seconds(len(split), size, candidates[-1], speeds[1])
        reporter.note(f"training all layers at {candidates[-1]} pixels would take at least {duration(least)}")
        return replace(config, model=replace(model, trainable="head"), train=replace(train, minutes=None))
    train = replace(train, epochs=best.epochs, minutes=None)
    return replace(config, model=_with_all_layers(model, size, best.input_size), train=train)


def _with_all_layers(model: ModelConfig, size: int, pixels: int) -> ModelConfig:
    """``model`` with all layers trained, on images of ``pixels``, of which evaluation sees larger ones."""
    model = replace(model, trainable="all")
    if pixels == size:
        return model
    larger = SMALL_EVAL if pixels == SMALL_INPUT else LARGER_INPUT.get(model.backbone)
    return replace(model, input_size=pixels, eval_size=larger)


def _items_per_second(
    encoder: Encoder, split: Split, reading: Reading, device: torch.device, half: torch.dtype | None
) -> tuple[float, float]:
    """Speed of the forward pass that features are cached by, and of training, each in its own precision."""
    rows = np.arange(min(32, len(split)))
    ((inputs, _),) = item_feed(encoder, split, reading).batches([rows], 0)
    inputs, network = inputs.to(device), encoder.to(device).eval().fast()

    def forward() -> None:
        with torch.no_grad():
            network(inputs).cpu()

    def forward_and_backward() -> None:
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            embeddings = network(inputs)
        embeddings.sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        encoder.zero_grad(set_to_none=True)

    with reusing_memory():
        return len(rows) / _seconds(forward), len(rows) / _seconds(forward_and_backward)


def _seconds(function: Callable[[], None]) -> float:
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
