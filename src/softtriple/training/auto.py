"""What "auto" resolves to: decisions that follow from the data and the machine, made once, printed and recorded."""

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int64

from softtriple.config import Config
from softtriple.data import Benchmark, ImageArray, Split
from softtriple.losses import has_option
from softtriple.models import BACKBONES, Encoder
from softtriple.models.features import Reading, item_feed
from softtriple.progress import Reporter, duration

DIM = 64  # the smaller of the two that the paper compares
MOST_CENTERS = 10  # the paper's K for classes of about sixty images
CENTERS_PER_ITEM = 0.4  # the paper's two centres for classes of about five images

# On a CPU all layers are trained if that takes no longer than this; otherwise only the head, on cached features.
PATIENCE_SECONDS = 20 * 60

CENTERS = "centers_per_class"
CUSTOM = "module:"  # before the class of a backbone or loss that the caller passed, and only the caller can pass again


def resolve(config: Config, benchmark: Benchmark, reporter: Reporter) -> Config:
    """The configuration with every decision made that the data alone decide."""
    model, training, loss = config.model, config.train, config.loss
    if model.backbone == "auto":
        model = replace(model, backbone=_backbone(benchmark, model.hidden))
        reporter.note(f"backbone: {model.backbone}")
    pretrained = starts_from_weights(model.backbone)
    if model.dim == "auto":
        model = replace(model, dim=DIM)
    if model.freeze_batch_norm == "auto":
        model = replace(model, freeze_batch_norm="statistics" if pretrained else "off")
    if model.trainable == "auto" and model.backbone.startswith("st:"):
        model = replace(model, trainable="head")
        reporter.note("trainable: head, on cached features (--set model.trainable=all trains the whole model)")
    elif model.trainable == "auto" and (not pretrained or model.backbone.startswith(CUSTOM)):
        model = replace(model, trainable="all")
    if training.lr == "auto":
        # A linear map of given features is a head: on held-out classes 1e-4 was better for eight of nine losses.
        training = replace(training, lr=1e-4 if pretrained or model.backbone == "linear" else 1e-3)
    if (
        loss.centers_per_class == "auto"
        and not loss.name.startswith(CUSTOM)
        and has_option(loss.name, "centers_per_class")
    ):
        sizes = np.unique(benchmark.train.labels, return_counts=True)[1]
        loss = replace(loss, centers_per_class=centers_for(sizes))
        reporter.note(f"centres per class: {loss.centers_per_class}, for classes of {np.median(sizes):g} items")
    data = config.data
    if data.augment == "auto":
        data = replace(data, augment=_augment(benchmark))
    return replace(config, data=data, model=model, loss=loss, train=training)


def centers_for(class_sizes: Int64[np.ndarray, " classes"]) -> int:
    """Centres per class: 10 for large classes, 2 for about five items per class, never more than items.

    Example:
        >>> centers_for(np.array([60, 58, 59])), centers_for(np.array([5, 6, 5])), centers_for(np.array([1, 1]))
        (10, 2, 1)
    """
    return int(np.clip(round(CENTERS_PER_ITEM * float(np.median(class_sizes))), 1, MOST_CENTERS))


def starts_from_weights(backbone: str) -> bool:
    """Whether a backbone comes with weights to start from."""
    has_weights = backbone in BACKBONES and BACKBONES[backbone].load_weights is not None
    return backbone.startswith(("timm:", "st:", CUSTOM)) or has_weights


def choose_head_init(config: Config, encoder: Encoder, items: int) -> Config:
    """Start the head from the principal components of features that published weights give, if there are enough.

    A random head throws part of those features away: on held-out classes of CUB it stayed 4.5 points of R@1 behind.
    """
    if config.model.head_init != "auto":
        return config
    enough = encoder.dim <= min(items - 1, encoder.backbone.num_features)
    pca = starts_from_weights(config.model.backbone) and enough
    return replace(config, model=replace(config.model, head_init="pca" if pca else "random"))


def choose_trainable(
    config: Config, encoder: Encoder, split: Split, reading: Reading, device: torch.device, reporter: Reporter
) -> Config:
    """Decide by measured speed what to train of a network with published weights, and say what the other would take."""
    if config.model.trainable != "auto":
        return config
    if device.type != "cpu":
        reporter.note("trainable: all layers, on the GPU")
        return replace(config, model=replace(config.model, trainable="all"))
    forward, training = _items_per_second(encoder, split, reading)
    all_layers = len(split) * config.train.epochs / training
    head = len(split) * config.train.views / forward
    chosen = "all" if all_layers <= PATIENCE_SECONDS else "head"
    reporter.note(
        f"trainable: {chosen} (all layers: about {duration(all_layers)} here; head on cached features: about "
        f"{duration(head)}; choose with --set model.trainable=head|last:N|all)"
    )
    return replace(config, model=replace(config.model, trainable=chosen))


def _items_per_second(encoder: Encoder, split: Split, reading: Reading) -> tuple[float, float]:
    """Speed of the forward pass, and of forward and backward together."""
    rows = np.arange(min(32, len(split)))
    ((inputs, _),) = item_feed(encoder, split, reading).batches([rows], 0)
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
