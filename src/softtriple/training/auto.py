"""What "auto" resolves to: decisions that follow from the data and the machine, made once, printed and recorded."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64

from softtriple.config import Config
from softtriple.data import Benchmark, ImageArray
from softtriple.errors import UserError
from softtriple.losses import has_option
from softtriple.models import BACKBONES
from softtriple.progress import Reporter

FEATURE_DIM = 512  # the larger of the two widths that the paper compares, if there are as many features
# Principal components of fewer items than this lose what other classes differ in: all features are kept, up to a limit.
FEW_ITEMS = 2 * FEATURE_DIM
WIDEST = 2048
# Texts keep one in three features, of TF-IDF projections and of sentence models alike: on held-out training classes of
# two sets of texts that is 2 to 5 points of R@1 above all or most of them (docs/results.md).
TEXT_SHARE = 3
SCRATCH_DIM = 64  # the smaller one, for networks trained from scratch
# Networks trained on random crops see things larger than in a centre crop, and so recognise more in larger images
# (Touvron et al., NeurIPS 2019). On held-out training classes of CUB: R@1 +0.7, MAP@R +0.9 (docs/results.md).
LARGER_INPUT = {"efficientnet-lite0": 256}
# For a head on features of images, and on vectors. On held-out training classes it costs narrow classes nothing, and
# gains more for broad ones than the paper's 0.1 (docs/centers.md). Intents are narrow: texts keep 0.1 and few centres.
HEAD_GAMMA = 0.5
MOST_TEXT_CENTERS = 3
HEAD_STEPS = 460  # ten epochs of the training half of CUB
MOST_CENTERS = 10  # the paper's K for classes of about sixty images
CENTERS_PER_ITEM = 0.4  # the paper's two centres for classes of about five images

NETWORK_EPOCHS = 50  # the paper's, for networks from scratch
# Published weights are changed for a few epochs only, and part of the way back: on held-out training classes of CUB,
# what longer training gains for its own classes it loses for others (docs/results.md). Classes that are held out decide
# how far; with fewer than these there are not enough to hold any out.
TUNED_EPOCHS = 6
TUNED_SHARE = 0.5
HELD_OUT, FEWEST_HELD_OUT, FEWEST_TO_HOLD_OUT = 0.125, 5, 20
HEAD_RATE = 4e-4
COMPILED_STEPS = 2000  # fewer do not earn back the minutes that compiling takes

Precision = Literal["auto", "float32", "bfloat16"]  # of embedding

CENTERS = "centers_per_class"
PREFIXES = "prefixes"
CUSTOM = "module:"  # before the class of a backbone or loss that the caller passed, and only the caller can pass again


def resolve(config: Config, benchmark: Benchmark, reporter: Reporter) -> Config:
    """The configuration with every decision made that the kind of data decides."""
    data, model = config.data, config.model
    if model.backbone == "auto":
        model = replace(model, backbone=_backbone(benchmark, model.hidden))
        reporter.note(f"backbone: {model.backbone}")
    pretrained = starts_from_weights(model.backbone)
    photographs = pretrained and benchmark.kind == "image"
    if benchmark.kind != "image" and data.augment not in ("auto", "none"):
        reporter.note(f"data.augment = {data.augment!r} has no effect on {benchmark.kind}s, which are not images")
        data = replace(data, augment="none")
    if data.augment == "auto" and not photographs:  # that of photographs depends on what is trained
        data = replace(data, augment=_augment(benchmark))
    unset = model.input_size is None and model.eval_size is None
    if photographs and unset and config.train.choose == "on" and model.backbone in LARGER_INPUT:
        larger = LARGER_INPUT[model.backbone]
        fixed = model.trainable in ("auto", "head")
        model = replace(model, input_size=larger) if fixed else replace(model, eval_size=larger)
    if model.pooling == "auto":
        model = replace(model, pooling="average+max" if photographs else "average")
    if model.layer_norm == "auto":
        model = replace(model, layer_norm=photographs)
    if model.freeze_batch_norm == "auto":
        model = replace(model, freeze_batch_norm="statistics" if pretrained else "off")
    if model.trainable == "auto" and benchmark.kind == "text" and model.backbone != "mlp":
        model = replace(model, trainable="head")
        if pretrained:
            reporter.note("trainable: head, on cached features (--set model.trainable=all trains the whole model)")
    elif model.trainable == "auto" and (not pretrained or model.backbone.startswith(CUSTOM)):
        model = replace(model, trainable="all")
    return replace(config, data=data, model=model)


def resolve_dim(config: Config, num_features: int, items: int) -> Config:
    """Resolve the width of the embedding and where the head starts, once the backbone is built."""
    model = config.model
    has_features = starts_from_features(model.backbone)
    if model.dims:
        model = replace(model, dim=model.dims[-1])
    if model.dim == "auto":
        widest = WIDEST if items < FEW_ITEMS else FEATURE_DIM
        if is_text(model.backbone):
            widest = min(FEATURE_DIM, -(-num_features // TEXT_SHARE))
        model = replace(model, dim=min(num_features, widest) if has_features else SCRATCH_DIM)
    assert model.dim != "auto"
    if model.head_init == "auto":
        model = replace(model, head_init="whitened" if has_features and model.dim <= num_features else "random")
    return replace(config, model=model)


def resolve_training(config: Config, class_sizes: Int64[np.ndarray, " classes"], reporter: Reporter) -> Config:
    """Resolve the budget, which depends on whether a head on fixed features is trained, or a network."""
    data, model, training, loss = config.data, config.model, config.train, config.loss
    head = trains_head_only(config)
    tuned = tunes_weights(config)
    if data.augment == "auto":
        data = replace(data, augment="resized-crop" if tuned else "crop")
    if training.batch_size == "auto":
        training = replace(training, batch_size=128 if head else 32)
    if training.epochs == "auto":
        assert training.batch_size != "auto"
        steps = -(-int(class_sizes.sum()) // training.batch_size)
        network = TUNED_EPOCHS if tuned else NETWORK_EPOCHS
        training = replace(training, epochs=max(10, min(100, -(-HEAD_STEPS // steps))) if head else network)
    if training.schedule == "auto":
        smooth = (head or tuned) and training.milestones == "auto"
        training = replace(training, schedule="cosine" if smooth else "step")
    if training.milestones == "auto":
        epochs = training.epochs
        assert epochs != "auto"
        shares = (0.4, 0.8) if training.schedule == "step" else ()
        training = replace(training, milestones=tuple(round(share * epochs) for share in shares))
    if training.lr == "auto":
        rate = 1e-4 if starts_from_weights(model.backbone) else 1e-3
        training = replace(training, lr=(1.6e-3 if model.backbone == "text" else HEAD_RATE) if head else rate)
    if training.head_lr == "auto":
        training = replace(training, head_lr=HEAD_RATE if tuned else training.lr)
    if training.interpolate == "auto" and tuned and not training.hold_out:
        training = replace(training, interpolate=TUNED_SHARE)
    if loss.centers_per_class == "auto" and not loss.name.startswith(CUSTOM) and has_option(loss.name, CENTERS):
        most, options = MOST_CENTERS, loss.options
        if head and is_text(model.backbone):
            most = MOST_TEXT_CENTERS
        elif head and has_option(loss.name, "gamma"):
            options = {"gamma": HEAD_GAMMA, **options}
        loss = replace(loss, centers_per_class=min(centers_for(class_sizes), most), options=options)
        gamma = f" with gamma {options['gamma']:g}" if "gamma" in options else ""
        sizes = f"classes of {np.median(class_sizes):g} items"
        reporter.note(f"centres per class: {loss.centers_per_class}{gamma}, for {sizes}")
    return replace(config, data=data, loss=loss, train=training)


def resolve_precision(config: Config, device: torch.device, reporter: Reporter) -> Config:
    """Resolve the precision that the encoder trains in, by what the device has instructions for, never by a timing.

    Without AVX512-BF16 or AMX a CPU computes bfloat16 many times slower than float32. Networks trained from scratch and
    heads on fixed features are small: they gain little, and stay in float32.
    """
    if config.train.precision != "auto":
        return config
    precision: Literal["float32", "bfloat16", "float16"]
    if device.type == "cuda":
        precision = "bfloat16" if has_bfloat16(device) else "float16"
    elif trains_head_only(config) or not starts_from_weights(config.model.backbone):
        precision = "float32"
    else:
        precision = "bfloat16" if has_bfloat16(device) else "float32"
        has = "has" if precision == "bfloat16" else "has no"
        reporter.note(f"precision: {precision} (this processor {has} bfloat16 instructions)")
    return replace(config, train=replace(config.train, precision=precision))


def embedding_type(backbone: str, precision: Precision, device: torch.device, reporter: Reporter) -> torch.dtype | None:
    """The type that ``backbone`` computes in where items are only embedded; None is float32.

    "auto" is bfloat16 for pretrained networks where the device has instructions for it, and never depends on a timing.
    """
    if precision == "auto":
        precision = "bfloat16" if starts_from_weights(backbone) and has_bfloat16(device) else "float32"
    if precision == "float32":
        return None
    reporter.note("precision: bfloat16 (--precision float32 is slower and more exact)")
    return torch.bfloat16


def resolve_compile(config: Config, items: int, device: torch.device, reporter: Reporter) -> Config:
    """Resolve whether the network is compiled, by the device and the number of steps, never by a timing.

    On a CPU it does not pay: convolutions and matrix products take the time, and they stay the same library calls.
    """
    train = config.train
    if train.compile != "auto":
        return config
    assert train.epochs != "auto"
    assert train.batch_size != "auto"
    steps = train.epochs * -(-items // train.batch_size)
    pays = device.type == "cuda" and config.model.trainable != "head" and steps >= COMPILED_STEPS
    chosen: Literal["on", "off"] = "on" if pays and missing_for_compile(device) is None else "off"
    if chosen == "on":
        reporter.note(f"compile: on, for {steps} steps on the GPU; the first steps take minutes")
    return replace(config, train=replace(train, compile=chosen))


def check_compile(config: Config, device: torch.device) -> None:
    """UserError if the network is to be compiled and there is no compiler."""
    missing = missing_for_compile(device)
    if config.train.compile == "on" and missing is not None:
        raise UserError(f"train.compile = 'on' needs {missing}; or turn it off: --set train.compile=off")


def missing_for_compile(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine, and how to get it; None if nothing."""
    name = os.environ.get("CXX") or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    if shutil.which(name) is None:
        return f"the C++ compiler {name}, which is not installed (set CXX to use another one)"
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton, which is not installed (pip install triton)"
    return None


def has_bfloat16(device: torch.device) -> bool:
    """Whether ``device`` has instructions for bfloat16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # Older versions of PyTorch do not tell.
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def trains_head_only(config: Config) -> bool:
    """Whether what is trained is a linear head on features that do not change and are worth starting from."""
    fixed = config.model.trainable == "head" or config.model.backbone == "linear"
    return fixed and config.model.head_init != "random"


def tunes_weights(config: Config) -> bool:
    """Whether layers with published weights are trained, and not by the paper's protocol."""
    backbone = config.model.backbone
    published = starts_from_weights(backbone) and not backbone.startswith(CUSTOM)
    return published and not trains_head_only(config) and config.train.choose == "on"


def resolve_hold_out(config: Config, num_classes: int) -> Config:
    """Resolve the share of the training classes that are held out, once it is known what is trained."""
    train = config.train
    if train.hold_out != "auto":
        return config
    needed = tunes_weights(config) and train.interpolate == "auto" and train.start is None
    share = max(HELD_OUT, FEWEST_HELD_OUT / num_classes) if needed and num_classes >= FEWEST_TO_HOLD_OUT else 0.0
    return replace(config, train=replace(train, hold_out=share))


def centers_for(class_sizes: Int64[np.ndarray, " classes"]) -> int:
    """Centres per class: 10 for large classes, 2 for about five items per class, never more than items.

    Example:
        >>> centers_for(np.array([60, 58, 59])), centers_for(np.array([5, 6, 5])), centers_for(np.array([1, 1]))
        (10, 2, 1)
    """
    return int(np.clip(round(CENTERS_PER_ITEM * float(np.median(class_sizes))), 1, MOST_CENTERS))


def is_text(backbone: str) -> bool:
    """Whether a backbone is for texts."""
    return backbone == "text" or backbone.startswith("st:")


def starts_from_weights(backbone: str) -> bool:
    """Whether a backbone comes with weights to start from."""
    has_weights = backbone in BACKBONES and BACKBONES[backbone].load_weights is not None
    return backbone.startswith(("timm:", "hf:", "st:", CUSTOM)) or has_weights


def starts_from_features(backbone: str) -> bool:
    """Whether there are features to start from: of published weights, given vectors, or TF-IDF of texts."""
    return starts_from_weights(backbone) or backbone in ("linear", "text")


def check_dims(config: Config) -> None:
    """UserError for widths that cannot be trained together."""
    model, loss = config.model, config.loss.name
    if PREFIXES in config.loss.options:
        raise UserError(f"loss.options.{PREFIXES}: set all widths by model.dims instead, such as --dims 64,128,512")
    if not model.dims:
        return
    told = ",".join(map(str, model.dims))
    if len(model.dims) < 2 or any(a >= b for a, b in pairwise(model.dims)):
        raise UserError(f"model.dims = {told}: expected at least two widths that grow, such as 64,128,512")
    if model.dim not in ("auto", model.dims[-1]):
        raise UserError(f"model.dims = {told}, but model.dim = {model.dim}; remove it, or make it {model.dims[-1]}")
    if loss.startswith(CUSTOM) or not has_option(loss, PREFIXES):
        raise UserError(f"model.dims = {told}: only the loss softtriple trains several widths, not {loss}")


def _backbone(benchmark: Benchmark, hidden: tuple[int, ...]) -> str:
    match benchmark.kind:
        case "vector":
            return "mlp" if hidden else "linear"
        case "image":
            return "conv-small" if isinstance(benchmark.train.items, ImageArray) else "efficientnet-lite0"
        case "text":
            return "text"


def _augment(benchmark: Benchmark) -> Literal["none", "crop", "affine"]:
    if benchmark.kind != "image":
        return "none"
    return "affine" if isinstance(benchmark.train.items, ImageArray) else "crop"
