"""From a configuration and data to everything a run needs before its first step."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int64
from torch import nn

from softtriple import dist
from softtriple.config import Config
from softtriple.data import Benchmark, Split, contiguous_labels, make_benchmark
from softtriple.errors import UserError, counted
from softtriple.losses import Loss, as_loss, is_shardable
from softtriple.models import Encoder, StagedNetwork
from softtriple.models.features import Feeds, Rows
from softtriple.progress import Reporter
from softtriple.training.arguments import Data
from softtriple.training.auto import (
    resolve,
    resolve_compile,
    resolve_dim,
    resolve_hold_out,
    resolve_precision,
    resolve_training,
)
from softtriple.training.building import build_configured_loss, build_encoder, build_network, training_feeds
from softtriple.training.directory import RunDir
from softtriple.training.loading import correct_data, divide, load_data
from softtriple.training.plan import check_budget, choose_trainable


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything a run needs before its first step; ``labels`` are the classes of the training ``rows``."""

    config: Config  # resolved: nothing in it is "auto"
    benchmark: Benchmark
    encoder: Encoder
    loss: Loss
    rows: Rows
    labels: Int64[np.ndarray, " rows"]
    held_out: Split | None
    feeds: Feeds


def prepare(
    config: Config,
    *,
    data: Data | None = None,
    backbone: nn.Module | None = None,
    loss: nn.Module | None = None,
    directory: RunDir | None = None,
    reporter: Reporter,
) -> Prepared:
    """Load the data, resolve the configuration and build encoder and loss, ready for `train_prepared`."""
    if directory is not None:
        config = dist.from_main(lambda: directory.resume_config(config))
    benchmark = _benchmark(config if directory is None else directory.with_own_lists(config), data, reporter)
    if directory is not None:
        directory.check_data(benchmark)
    _check_classes(benchmark, len(np.unique(benchmark.train.labels)))
    config = resolve(config, benchmark, reporter)
    check_budget(config)
    torch.manual_seed(config.train.seed)
    network, size = build_network(config, benchmark, backbone), config.model.input_size
    config = resolve_dim(config, network.num_features, len(benchmark.train))
    config = dist.from_main(lambda: _choose_trainable(config, benchmark, network, reporter))
    config = resolve_hold_out(config, len(np.unique(benchmark.train.labels)))
    rows, held_out = divide(benchmark.train, config)
    labels, classes = contiguous_labels(benchmark.train.labels[rows])
    _check_classes(benchmark, len(classes))
    config = resolve_training(config, np.unique(labels, return_counts=True)[1], reporter)
    if config.model.input_size != size:
        network = build_network(config, benchmark, backbone)
    encoder = build_encoder(config, benchmark, [benchmark.class_names[label] for label in classes], network)
    feeds = training_feeds(config, encoder, reporter)
    config = resolve_precision(config, dist.device(), reporter)
    config = resolve_compile(config, len(rows), dist.device(), reporter)
    if loss is not None:
        whole = as_loss(loss, len(classes), encoder.dim)
    else:
        # If centres are split over ranks, no rank needs memory for all of them.
        splits = dist.world_size() > 1 and is_shardable(config.loss.name)
        with torch.device("meta" if splits else "cpu"):
            whole = build_configured_loss(config, len(classes))
    feeds.frozen = encoder.set_trainable(config.model.trainable)
    return Prepared(config, benchmark, encoder, whole, rows, labels, held_out, feeds)


def _check_classes(benchmark: Benchmark, count: int) -> None:
    if count < 2:
        raise UserError(
            f"{benchmark.name}: only {counted(count, 'class')} to train on; a metric needs at least 2 to tell "
            "apart. Add classes, lower data.test_share, or split each class instead: --set data.split=instances"
        )


def _choose_trainable(config: Config, benchmark: Benchmark, network: StagedNetwork, reporter: Reporter) -> Config:
    """`choose_trainable`, which may have to measure how fast ``network`` is."""
    if config.model.trainable != "auto":
        return config
    with torch.random.fork_rng(devices=[]):  # drawing this head must not change the final one
        encoder = build_encoder(config, benchmark, (), network)
    reading = training_feeds(config, encoder, reporter).reading(benchmark.train, "crop")
    return choose_trainable(config, encoder, benchmark.train, reading, dist.device(), reporter)


def _benchmark(config: Config, data: Data | None, reporter: Reporter) -> Benchmark:
    if isinstance(data, tuple):
        items, labels = data
        data = make_benchmark(items, labels, split=config.data.split, test_share=config.data.test_share)
    return correct_data(data, config.data, reporter) if isinstance(data, Benchmark) else load_data(config, reporter)
