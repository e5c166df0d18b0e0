"""HDC, hard-aware deeply cascaded embedding (Yuan et al., ICCV 2017): deeper heads learn from harder pairs.

The embedding concatenates the unit vectors of three heads at increasing depth of the backbone. Each head has a
contrastive loss over the hardest share of the pairs in a batch.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config, LossConfig
from softtriple.data import Benchmark, contiguous_labels
from softtriple.errors import UserError
from softtriple.losses.base import Labels, Loss, Vectors, require_count, require_nonnegative, require_positive
from softtriple.losses.pairs import squared_distances
from softtriple.models import Encoder, EncoderConfig, StagedNetwork, build_backbone
from softtriple.models.backbones.module import module_name
from softtriple.models.description import Pooling
from softtriple.models.encoder import pool
from softtriple.models.inputs import example_input
from softtriple.progress import Reporter
from softtriple.training import Run
from softtriple.training.auto import (
    CUSTOM,
    resolve,
    resolve_compile,
    resolve_hold_out,
    resolve_precision,
    resolve_training,
)
from softtriple.training.building import encoder_config, training_feeds
from softtriple.training.directory import RunDir
from softtriple.training.loading import divide, load_data
from softtriple.training.prepare import Prepared
from softtriple.training.train import train_prepared

HEADS = 3
# The authors average their 14×14 maps by 5×5 with stride 3, which gives 4×4 cells.
GRID = 4
CHANNELS, HIDDEN = 128, 1024

# Number of stages before each of the two shallow heads: after 4a and 4d in BN-Inception, as published, and after blocks
# of the same resolution in the other networks.
TAPS = {
    "bn-inception": (6, 9),
    "efficientnet-lite0": (5, 6),
    "efficientnet-lite1": (5, 6),
    "efficientnet-lite2": (5, 6),
    "conv-small": (2, 3),
}


def train_hdc(config: Config, directory: RunDir, reporter: Reporter) -> Run:
    """Train HDC in ``directory``, or resume it; ``config.loss.options`` are the options of `HDCLoss`."""
    model = config.model
    if model.head_init == "pca":
        raise UserError("model.head_init = 'pca': HDC has no linear head; use random")
    with directory.opened(resume=directory.path.exists()):
        benchmark = load_data(config, reporter)
        # HDC is not in the table of losses: `resolve` treats it like a module passed by the caller.
        config = directory.resume_config(replace(config, model=replace(model, head_init="random")))
        custom = resolve(replace(config, loss=LossConfig(name=f"{CUSTOM}HDCLoss")), benchmark, reporter)
        if custom.model.trainable == "auto":
            raise UserError("model.trainable = 'auto': for HDC choose all or head")
        sizes = np.unique(benchmark.train.labels, return_counts=True)[1]
        custom = resolve_hold_out(custom, len(sizes))
        resolved = resolve_precision(resolve_training(custom, sizes, reporter), dist.device(), reporter)
        resolved = resolve_compile(resolved, int(sizes.sum()), dist.device(), reporter)
        config = replace(resolved, loss=config.loss)
        return train_prepared(_prepare(config, benchmark, reporter), directory=directory, reporter=reporter)


def _prepare(config: Config, benchmark: Benchmark, reporter: Reporter) -> Prepared:
    model, seed = config.model, config.train.seed
    assert model.dim != "auto"
    assert model.freeze_batch_norm != "auto"
    rows, held_out = divide(benchmark.train, config)
    labels, classes = contiguous_labels(benchmark.train.labels[rows])
    torch.manual_seed(seed)
    described = encoder_config(model, model.dim, benchmark)
    encoder = build_hdc_encoder(described, [benchmark.class_names[label] for label in classes])
    encoder.freeze_batch_norm(model.freeze_batch_norm)
    feeds = training_feeds(config, encoder, reporter)
    feeds.frozen = encoder.set_trainable(model.trainable)
    loss = HDCLoss(len(classes), model.dim, **config.loss.options)
    return Prepared(config, benchmark, encoder, loss, rows, labels, held_out, feeds)


def build_hdc_encoder(config: EncoderConfig, class_names: Sequence[str] = ()) -> Encoder:
    """An encoder with three heads on the backbone of ``config``; each head has a third of ``config.dim``."""
    backbone, head = _parts(config)
    return Encoder(replace(config, backbone=module_name(backbone)), class_names, backbone=backbone, head=head)


def load_hdc_encoder(folder: str | os.PathLike[str], config: EncoderConfig) -> Encoder:
    """Load an encoder that was built by `build_hdc_encoder` from ``config``."""
    backbone, head = _parts(replace(config, pretrained=False, weights=None))
    return Encoder.load(folder, backbone=backbone, head=head)


class Tap(NamedTuple):
    """The input size of a shallow head."""

    channels: int
    cells: int


class TappedBackbone(StagedNetwork):
    """A backbone as one stage whose output concatenates two inner feature maps, in cells, and the pooled last one."""

    def __init__(
        self, network: StagedNetwork, shallow: tuple[int, int], pooling: Pooling, in_features: int | None
    ) -> None:
        super().__init__(stage_names=("network",), num_features=0, preprocess=network.preprocess)
        self.network, self.shallow, self.pooling = network, shallow, pooling
        self.taps: list[Tap] = []
        with torch.no_grad():
            x = example_input(network.preprocess, in_features)
            network.eval()
            for count in shallow:
                inner = network.run(x, 0, count)
                self.taps.append(Tap(inner.shape[1], in_cells(inner).shape[1] // inner.shape[1]))
            network.train()
        self.num_features = sum(tap.channels * tap.cells for tap in self.taps) + network.num_features

    def run_stage(self, index: int, x: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
        """The cells of the two inner maps and the pooled features of the last, concatenated."""
        rows, first = [], 0
        for count in self.shallow:
            x, first = self.network.run(x, first, count), count
            rows.append(in_cells(x))
        return torch.cat([*rows, pool(self.network.run(x, first), self.pooling)], dim=1)


def in_cells(x: Float[Tensor, "batch channels ..."]) -> Float[Tensor, "batch features"]:
    """A feature map averaged over a grid of cells and flattened; a vector is a map with one cell."""
    return x if x.ndim == 2 else F.adaptive_avg_pool2d(x, GRID).flatten(1)


class TappedHeads(nn.Module):
    """Two shallow heads with the authors' layers, and a linear head on the pooled features of the last map.

    Shallow maps have local features, so their heads are small networks that see positions. The authors' dropout is left
    out: on held-out classes of glyphs, R@1 after four epochs was 38 without and 11 with it. The input is the output of
    a `TappedBackbone`.
    """

    def __init__(self, shallow: Sequence[Tap], features: int, dim: int) -> None:
        super().__init__()
        part = dim // (len(shallow) + 1)
        self.widths = [*(tap.channels * tap.cells for tap in shallow), features]
        self.heads = nn.ModuleList([*(_shallow_head(tap, part) for tap in shallow), nn.Linear(features, part)])

    def forward(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        """The unit vectors of the heads, concatenated."""
        parts = features.split_with_sizes(self.widths, dim=1)
        return torch.cat([F.normalize(f(part), dim=-1) for f, part in zip(self.heads, parts, strict=True)], dim=1)


def _shallow_head(tap: Tap, dim: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Unflatten(1, (tap.channels, tap.cells)),
        nn.Conv1d(tap.channels, CHANNELS, 1),  # a 1×1 convolution of the map, whose cells are in a row
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(CHANNELS * tap.cells, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, dim),
    )


def _parts(config: EncoderConfig) -> tuple[TappedBackbone, TappedHeads]:
    if config.dim is None or config.dim % HEADS:
        raise UserError(f"HDC has {HEADS} heads of equal width: dim = {config.dim} must be a multiple of {HEADS}")
    network = build_backbone(
        config.backbone, pretrained=config.pretrained, weights=config.weights, **config.backbone_options
    )
    stages = len(network.stage_names)
    shallow = TAPS.get(config.backbone, (stages, stages))  # without inner stages all heads get the same features
    if config.backbone == "mlp":  # its last three layers, or the input if there are fewer
        shallow = max(stages - 2, 0), max(stages - 1, 0)
    backbone = TappedBackbone(network, shallow, config.pooling, config.in_features)
    return backbone, TappedHeads(backbone.taps, network.num_features, config.dim)


class HDCLoss(Loss):
    """Sum over the heads of a contrastive loss on all pairs of a batch, each head on its hardest share of them.

    Positive pairs are ranked by decreasing and negative pairs by increasing distance, separately, so that pairs without
    a loss are ranked as well. A head's loss is the sum over the pairs it keeps, divided by the number of those with a
    loss.

    Args:
        num_classes, validate: as for every ``Loss``.
        embedding_size: width of all heads together; each has a third of it.
        shares: share of the ranked pairs that each head keeps, from the first head to the last.
        cascade: a head ranks only the pairs that the previous head has kept, as published; in the authors' code every
            head ranks all pairs.
        margin: squared distance beyond which a negative pair has no loss.
        negative_factor: weight of negative pairs.
        per_class: examples per class that a batch should contain.

    The part of each head is normalised. A batch with a single example has the value 0.
    """

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        shares: Sequence[float] = (1.0, 0.5, 0.2),
        cascade: bool = True,
        margin: float = 1.0,
        negative_factor: float = 10.0,
        per_class: int = 10,
        validate: bool = True,
    ) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        if len(shares) != HEADS or not all(0 < share <= 1 for share in shares):
            raise UserError(f"shares = {shares!r} must be {HEADS} numbers above 0 and at most 1, one for each head")
        if embedding_size % HEADS:
            raise UserError(
                f"embedding_size = {embedding_size} does not divide into {HEADS} equal heads: "
                f"choose a multiple of {HEADS}"
            )
        self.per_class = require_count("per_class", per_class)
        self.shares, self.cascade = shares, cascade
        self.margin = require_positive("margin", margin)
        self.negative_factor = require_nonnegative("negative_factor", negative_factor)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Sum of the losses of the heads, whose unit vectors are concatenated in ``embeddings``."""
        embeddings, labels = self.check_batch(embeddings, labels)
        first, second = torch.triu_indices(len(labels), len(labels), offset=1, device=labels.device)
        same = labels[first] == labels[second]
        kinds = [same.nonzero().flatten(), (~same).nonzero().flatten()]
        total = embeddings.new_zeros(())
        for head, share in zip(embeddings.chunk(HEADS, dim=1), self.shares, strict=True):
            squared = squared_distances(F.normalize(head, dim=-1))[first, second]
            losses = torch.where(same, squared, self.negative_factor * F.relu(self.margin - squared))
            hardness = torch.where(same, squared, -squared).detach()
            hard = [pairs[hardness[pairs].topk(math.ceil(share * len(pairs))).indices] for pairs in kinds]
            kept = losses[torch.cat(hard)]
            total = total + kept.sum() / (kept > 0).sum().clamp_min(1)
            if self.cascade:
                kinds = hard
        return total
