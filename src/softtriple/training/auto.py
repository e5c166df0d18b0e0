"""What "auto" means: choices that follow from the data and the machine, made once and printed."""

import inspect
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, ImageArray, Split
from softtriple.losses import LOSSES, HDCLoss
from softtriple.models import BACKBONES, Encoder
from softtriple.models.features import Reading, pixel_feed
from softtriple.progress import Reporter, duration

DIM = 64  # the smaller of the two that the paper compares
MOST_CENTERS = 10  # the paper's K for classes of sixty images
CENTERS_PER_ITEM = 0.4  # the paper's two centres for classes of about five images

# All layers are trained on a CPU if that takes no longer; else only the head, on cached features.
PATIENCE_SECONDS = 20 * 60


def resolve(config: Config, benchmark: Benchmark, reporter: Reporter) -> Config:
    """The configuration with every choice made that the data alone decides."""
    backbone = config.model.backbone
    if backbone == "auto":
        backbone = _backbone(benchmark, config.model.hidden)
        reporter.note(f"backbone: {backbone}")
    pretrained = starts_from_weights(backbone)
    settings = [f"model.backbone={backbone}"]
    if config.model.dim == "auto":
        settings.append(f"model.dim={DIM - DIM % heads_of(config.loss.name)}")
    if config.data.augment == "auto":
        settings.append(f"data.augment={_augment(benchmark)}")
    if config.model.freeze_batch_norm == "auto":
        settings.append(f"model.freeze_batch_norm={'statistics' if pretrained else 'off'}")
    if config.train.lr == "auto":
        # A linear map of given features is a head: on held-out classes 1e-4 was better for eight of nine losses.
        settings.append(f"train.lr={1e-4 if pretrained or backbone == 'linear' else 1e-3}")
    if config.model.trainable == "auto" and backbone.startswith("st:"):
        settings.append("model.trainable=head")
        reporter.note("trainable: head, on cached features (the whole model with --set model.trainable=all)")
    elif config.model.trainable == "auto" and not pretrained:
        settings.append("model.trainable=all")
    if config.loss.centers_per_class == "auto" and has_centers(config.loss.name):
        sizes = np.unique(benchmark.train.labels, return_counts=True)[1]
        settings.append(f"loss.centers_per_class={centers_for(sizes)}")
        reporter.note(f"centres per class: {centers_for(sizes)}, for classes of {np.median(sizes):g} items")
    elif config.loss.centers_per_class != "auto" and not has_centers(config.loss.name):
        raise ValueError(
            f"loss.centers_per_class = {config.loss.centers_per_class}: {config.loss.name} has no such option"
        )
    return with_settings(config, settings)


def centers_for(class_sizes: Int64[np.ndarray, " classes"]) -> int:
    """Centres per class: 10 where classes are large, 2 at about five items per class, never more than items.

    Example:
        >>> centers_for(np.array([60, 58, 59])), centers_for(np.array([5, 6, 5])), centers_for(np.array([1, 1]))
        (10, 2, 1)
    """
    return int(np.clip(round(CENTERS_PER_ITEM * float(np.median(class_sizes))), 1, MOST_CENTERS))


def heads_of(loss_name: str) -> Literal[1, 3]:
    """At how many depths a loss taps the encoder."""
    return 3 if LOSSES.get(loss_name) is HDCLoss else 1


def has_centers(loss_name: str) -> bool:
    """Whether a loss lets one choose how many centres a class has."""
    return loss_name in LOSSES and "centers_per_class" in inspect.signature(LOSSES[loss_name]).parameters


def starts_from_weights(backbone: str) -> bool:
    """Whether a backbone comes with published weights."""
    has_weights = backbone in BACKBONES and BACKBONES[backbone].load_weights is not None
    return backbone.startswith(("timm:", "st:")) or has_weights


def choose_head_init(config: Config, encoder: Encoder, items: int) -> Config:
    """Start the head from the principal directions of features that published weights give, where there are enough.

    A random head throws part of those features away: on held-out classes of CUB it stayed 4.5 points of R@1 behind.
    """
    if config.model.head_init != "auto":
        return config
    enough = encoder.dim <= min(items - 1, encoder.backbone.num_features)
    pca = starts_from_weights(config.model.backbone) and heads_of(config.loss.name) == 1 and enough
    return with_settings(config, [f"model.head_init={'pca' if pca else 'random'}"])


def choose_trainable(
    config: Config, encoder: Encoder, split: Split, reading: Reading, device: torch.device, reporter: Reporter
) -> Config:
    """Decide by the clock what to train of a network with published weights, and say what the other would take."""
    if config.model.trainable != "auto":
        return config
    if device.type != "cpu":
        reporter.note("training all layers, on the GPU")
        return with_settings(config, ["model.trainable=all"])
    forward, training = _items_per_second(encoder, split, reading)
    all_layers = len(split) * config.train.epochs / training
    head = len(split) * config.train.views / forward
    chosen = "all" if all_layers <= PATIENCE_SECONDS else "head"
    reporter.note(
        f"trainable: {chosen} (all layers: about {duration(all_layers)} here; head on cached features: about "
        f"{duration(head)}; choose with --set model.trainable=head|last:N|all)"
    )
    return with_settings(config, [f"model.trainable={chosen}"])


def _items_per_second(encoder: Encoder, split: Split, reading: Reading) -> tuple[float, float]:
    rows = np.arange(min(32, len(split)))
    ((inputs, _),) = pixel_feed(encoder, split, reading).batches([rows], 0)
    encoder.eval()

    def forward() -> None:
        with torch.no_grad():
            encoder(inputs)

    def forward_and_backward() -> None:
        encoder(inputs).sum().backward()
        encoder.zero_grad(set_to_none=True)

    return len(rows) / _seconds(forward), len(rows) / _seconds(forward_and_backward)


def _seconds(function: Callable[[], None]) -> float:
    function()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _backbone(benchmark: Benchmark, hidden: tuple[int, ...]) -> str:
    match benchmark.kind:
        case "vector":
            return "mlp" if hidden else "linear"
        case "image":
            return "conv-small" if isinstance(benchmark.train.items, ImageArray) else "efficientnet-lite0"
        case "text":
            return "text"


def _augment(benchmark: Benchmark) -> str:
    if benchmark.kind != "image":
        return "none"
    return "affine" if isinstance(benchmark.train.items, ImageArray) else "crop"
