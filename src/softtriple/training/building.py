"""What a resolved configuration describes, built: network, encoder, batches and loss."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from softtriple.config import Config, ModelConfig
from softtriple.data import Benchmark, Vectors
from softtriple.errors import UserError
from softtriple.losses import Loss, build_loss, has_option
from softtriple.models import Encoder, EncoderConfig, StagedNetwork, build_backbone
from softtriple.models.backbones.module import module_backbone
from softtriple.models.features import Feeds
from softtriple.models.weights import is_url
from softtriple.progress import Reporter
from softtriple.training.auto import CENTERS, CUSTOM, PREFIXES
from softtriple.training.directory import RunDir


def build_network(config: Config, benchmark: Benchmark, module: nn.Module | None = None) -> StagedNetwork:
    """The backbone that the configuration names, or ``module`` as one, for the items of ``benchmark``."""
    described = encoder_config(config.model, None, benchmark)
    if module is not None:
        return module_backbone(module, None, described.in_features)
    if described.backbone in ("linear", "mlp") and benchmark.kind != "vector":
        raise UserError(f"{described.backbone} takes vectors, but the data are {benchmark.kind}s")
    return build_backbone(described.backbone, weights=described.weights, **described.backbone_options)


def build_encoder(config: Config, benchmark: Benchmark, class_names: Sequence[str], network: StagedNetwork) -> Encoder:
    """The encoder that the resolved configuration describes, on ``network``."""
    assert config.model.dim != "auto"
    described = encoder_config(config.model, config.model.dim, benchmark)
    if described.weights is not None and not is_url(described.weights):
        described = replace(described, weights=None)  # a path of this machine, which others need not see
    encoder = Encoder(described, class_names, backbone=network)
    assert config.model.freeze_batch_norm != "auto"
    encoder.freeze_batch_norm(config.model.freeze_batch_norm)
    if config.train.start is not None:
        RunDir(Path(config.train.start)).restore_encoder(encoder)
    return encoder


def training_feeds(config: Config, encoder: Encoder, reporter: Reporter) -> Feeds:
    """The batches of a run, read as the configuration says."""
    return Feeds(
        encoder,
        reporter=reporter,
        augment=config.data.augment,
        seed=config.train.seed,
        views=config.train.views,
        cache_bytes=config.data.cache_gigabytes * 1e9,
        workers=config.data.num_workers,
    )


def encoder_config(model: ModelConfig, dim: int | None, benchmark: Benchmark) -> EncoderConfig:
    """What the resolved configuration says of the encoder for the items of ``benchmark``; no head if no ``dim``."""
    items = benchmark.train.items
    assert model.pooling != "auto"
    return EncoderConfig(
        backbone=model.backbone,
        dim=dim,
        pooling=model.pooling,
        layer_norm=bool(model.layer_norm),
        pretrained=not model.backbone.startswith(CUSTOM),
        weights=model.weights,
        input_size=model.input_size,
        eval_size=model.eval_size,
        hidden=model.hidden or None,
        in_features=items.values.shape[1] if isinstance(items, Vectors) else None,
    )


def build_configured_loss(config: Config, num_classes: int) -> Loss:
    """The loss that the resolved configuration describes."""
    options = dict(config.loss.options)
    if has_option(config.loss.name, CENTERS):
        options.setdefault(CENTERS, config.loss.centers_per_class)
    if config.model.dims:
        options[PREFIXES] = config.model.dims[:-1]
    assert config.model.dim != "auto"
    return build_loss(config.loss.name, num_classes, config.model.dim, **options)
