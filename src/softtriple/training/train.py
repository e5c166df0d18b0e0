"""The one place that knows everything: a configuration becomes data, encoder, loss, optimiser, a run, a report."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config
from softtriple.data import (
    Benchmark,
    ImageCache,
    ImageFiles,
    Split,
    Vectors,
    View,
    contiguous_labels,
    find_unreadable,
    hold_out_classes,
    load_benchmark,
    open_cache,
    shuffled,
)
from softtriple.files import appearing_file, explained, write_whole
from softtriple.losses import LOSSES, SoftTripleLoss, build_loss, sample_classes, shard
from softtriple.metrics import Report
from softtriple.metrics.evaluate import Embeddings, evaluate
from softtriple.models import Encoder, EncoderConfig, Preprocess
from softtriple.models.features import Feed, Reading, Rows, embed_together, pixel_feed, trunk_feed, trunk_fits
from softtriple.models.weights import read_tensors, write_tensors
from softtriple.progress import Reporter
from softtriple.training.auto import choose_head_init, choose_trainable, has_centers, heads_of, resolve
from softtriple.training.checkpoint import find_shard
from softtriple.training.fit import fit, summary_writer
from softtriple.training.run import RunDir


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run ends with; ``validation`` is on classes held out of the training half, where any were."""

    run: RunDir
    config: Config
    benchmark: Benchmark
    learned: Split  # what was trained on; its labels number the classes of the loss
    encoder: Encoder
    loss: nn.Module
    test: Embeddings
    report: Report
    validation: Report | None = None


def train(config: Config, run: RunDir, reporter: Reporter, *, resume: bool = False) -> Outcome:
    """Train and evaluate as ``config`` says, in ``run``; with ``resume`` from where an earlier start stopped.

    Over several ranks each calls it. They all take part, and the first one alone writes and has the whole loss.
    """
    if config.train.tensorboard:
        summary_writer()  # if it is missing, that is said now and not after the first epoch
    with run.opened(resume=resume) if dist.is_main() else nullcontext():
        dist.barrier()
        benchmark = load_data(config, reporter)
        config = resolve(config, benchmark, reporter)
        learned, held_out = _divide(benchmark.train, config)
        labels, classes = contiguous_labels(benchmark.train.labels[learned])

        torch.manual_seed(config.train.seed)
        device = dist.device()
        encoder = build_encoder(config, benchmark, tuple(benchmark.class_names[label] for label in classes))
        readers = Readers(config, encoder, reporter)
        config = _settle(config, run, encoder, benchmark.train, readers, device, reporter)
        whole = _build_loss(config, num_classes=len(classes))
        loss = sample_classes(shard(whole), config.loss.sample_rate, config.train.seed)

        encoder.to(device)
        loss.to(device)
        feeds = Feeds(config, encoder, readers, frozen=encoder.set_trainable(config.model.trainable))
        training = feeds.training(benchmark.train).only(learned, labels)
        if config.model.head_init == "pca":
            encoder.initialize_head_from_pca(_features(encoder, training, device))

        def embedded(split: Split) -> Embeddings:
            return embed_split(encoder, feeds.still(split), benchmark, device, reporter)

        def check() -> dict[str, float]:
            # On the test classes only to look at them, never to choose by: that is what held-out classes are for.
            name, split, gallery = "test", benchmark.test, benchmark.gallery
            if held_out is not None:
                name, split, gallery = "validation", held_out, None
            found, items = embedded(split), None if gallery is None else embedded(gallery)
            report = evaluate(found, gallery=items, recall_at=(1,), kmeans_restarts=0, bootstrap=0)
            return {f"{name}_recall@1": report.recall[1], f"{name}_map_at_r": report.map_at_r}

        fit(config, run, encoder, loss, training, check, device, reporter)
        loss = _made_whole(loss, whole, run)
        if dist.is_main():
            encoder.save(run.encoder)
            _save_centers(loss, run)

        test = embedded(benchmark.test)
        gallery = None if benchmark.gallery is None else embedded(benchmark.gallery)
        report = evaluate(test, gallery=gallery, recall_at=benchmark.recall_at, seed=config.train.seed)
        report = replace(report, accuracy=accuracy(test, encoder.class_names, lambda: loss))
        _write(run.report_file, report)
        validation = None
        if held_out is not None:
            validation = evaluate(embedded(held_out), recall_at=benchmark.recall_at, seed=config.train.seed)
            _write(run.path / "validation.json", validation)
        numbered = replace(benchmark.train.take(learned), labels=labels)
        return Outcome(run, config, benchmark, numbered, encoder, loss, test, report, validation)


def load_data(config: Config, reporter: Reporter) -> Benchmark:
    """The benchmark that the configuration names, without its unreadable images if it says to skip them."""
    data = config.data
    options = {"split": data.split, "test_share": data.test_share}
    options |= {"path": data.path, "text": data.text, "label": data.label}
    # Not every source has files that may be unreadable, and all of them stop by themselves.
    options |= {"on_error": None if data.on_error == "stop" else data.on_error}
    with dist.main_first():  # some are drawn or unpacked once and kept
        benchmark = load_benchmark(config.dataset, **options)
    for note in benchmark.notes:
        reporter.note(note)
    if config.data.on_error == "stop":
        return benchmark
    return replace(
        benchmark,
        train=_readable(benchmark.train, reporter),
        test=_readable(benchmark.test, reporter),
        gallery=None if benchmark.gallery is None else _readable(benchmark.gallery, reporter),
    )


def build_encoder(config: Config, benchmark: Benchmark, class_names: tuple[str, ...]) -> Encoder:
    """The encoder that the configuration describes, for the items of ``benchmark``."""
    items, model = benchmark.train.items, config.model
    described = EncoderConfig(
        backbone=model.backbone,
        dim=None if model.dim == "auto" else model.dim,
        heads=heads_of(config.loss.name),
        pooling=model.pooling,
        layer_norm=model.layer_norm,
        weights=model.weights,
        input_size=model.input_size,
        hidden=model.hidden or None,
        in_features=items.values.shape[1] if isinstance(items, Vectors) else None,
    )
    encoder = Encoder(described, class_names)
    encoder.freeze_batch_norm(model.freeze_batch_norm if model.freeze_batch_norm != "auto" else "off")
    return encoder


class Readers:
    """How the splits of a run are read; makes the cache of resized images once, where that fits."""

    def __init__(self, config: Config, encoder: Encoder, reporter: Reporter) -> None:
        self._config, self._preprocess, self.reporter = config, encoder.preprocess, reporter
        self._caches: dict[tuple[str, ...], ImageCache | None] = {}

    def reading(self, split: Split, *, augmented: bool) -> Reading:
        """How ``split`` is read, for training or as it is."""
        if not isinstance(self._preprocess, Preprocess):
            return Reading()
        augment: Any = self._config.data.augment if augmented else "none"
        view = View(size=self._preprocess.size, resize=self._preprocess.resize, augment=augment)
        return Reading(view, self._config.train.seed if augmented else 0, self._cache(split, view))

    def _cache(self, split: Split, view: View) -> ImageCache | None:
        budget = self._config.data.cache_gigabytes * 1e9
        if not isinstance(split.items, ImageFiles) or not budget or view.resize is None:
            return None
        paths = split.items.paths
        if paths not in self._caches:
            # Held-out images are among those of the training half, and need not be decoded and kept twice.
            for cache in self._caches.values():
                if cache is not None and cache.rows.keys() >= set(paths):
                    return cache
            with dist.main_first(), self.reporter.task("reading images") as update:
                self._caches[paths] = open_cache(
                    split.items, view.resize, budget=budget, notify=self.reporter.note, progress=update
                )
        return self._caches[paths]


class Feeds:
    """Feeds for the splits of a run: from the kept outputs of a frozen trunk where there is one and they fit."""

    def __init__(self, config: Config, encoder: Encoder, readers: Readers, frozen: int) -> None:
        self._config, self._encoder, self._readers, self._frozen = config, encoder, readers, frozen

    def training(self, split: Split) -> Feed:
        """Augmented batches."""
        reading = self._readers.reading(split, augmented=True)
        views = self._config.train.views if reading.view is not None else 1
        # Kept outputs are the same for every seed of a run, which only draws among them.
        return self._kept(split, replace(reading, seed=0), views) or pixel_feed(self._encoder, split, reading)

    def still(self, split: Split) -> Feed:
        """Batches as they are, for evaluation."""
        reading = self._readers.reading(split, augmented=False)
        return self._kept(split, reading, views=1) or pixel_feed(self._encoder, split, reading)

    def _kept(self, split: Split, reading: Reading, views: int) -> Feed | None:
        if not self._frozen or isinstance(split.items, Vectors):
            return None
        reporter = self._readers.reporter
        budget = self._config.data.cache_gigabytes * 1e9
        # Ranks must agree, and the free disk changes while they look at it.
        needed, fit_in = dist.from_main(
            lambda: trunk_fits(self._encoder, split, reading, frozen=self._frozen, views=views, budget=budget)
        )
        if not fit_in:
            reporter.note(
                f"the outputs of the frozen layers for {views} views would take {needed / 1e9:.1f} GB, more than "
                "data.cache_gigabytes or the free disk: they are computed anew in each epoch"
            )
            return None
        with dist.main_first(), reporter.task(f"frozen layers, {views} views") as update:
            return trunk_feed(
                self._encoder,
                split,
                reading,
                frozen=self._frozen,
                views=views,
                seed=self._config.train.seed,
                progress=update,
            )


def embed_split(
    encoder: Encoder, feed: Feed, benchmark: Benchmark, device: torch.device, reporter: Reporter
) -> Embeddings:
    """The embeddings of what ``feed`` gives, with the names of their classes."""
    with reporter.task("embedding") as update:
        vectors = embed_together(encoder, feed, device=device, progress=update)
    return Embeddings(vectors, torch.from_numpy(feed.labels), class_names=benchmark.class_names)


def accuracy(found: Embeddings, trained: tuple[str, ...], get_loss: Callable[[], nn.Module]) -> float | None:
    """Share of items whose most similar class is their own, by the loss that the first rank gets.

    None where there are classes that were not trained on, and for a loss that knows no similarity to a class.

    Example:
        >>> loss = LOSSES["softmax-norm"](num_classes=2, embedding_size=2)
        >>> loss.centers = nn.Parameter(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        >>> vectors = torch.tensor([[1.0, 0.1], [0.1, 1.0], [0.9, 1.0], [1.0, 0.9]])
        >>> found = Embeddings(vectors, torch.tensor([0, 1, 1, 1]), class_names=("cat", "dog"))
        >>> accuracy(found, ("cat", "dog"), lambda: loss)
        0.75
    """
    number = {name: number for number, name in enumerate(trained)}
    expected = [number.get(found.class_name(label)) for label in found.labels.tolist()]
    if None in expected:
        return None
    return dist.from_main(lambda: _share_predicted(get_loss(), found.vectors, torch.tensor(expected)))


def read_loss(run: RunDir, config: Config, num_classes: int) -> nn.Module:
    """The loss as ``train`` left it in a run."""
    loss = _build_loss(config, num_classes)
    state = read_tensors(run.centers_file) if run.centers_file.is_file() else {}
    try:
        loss.load_state_dict(state, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{run.centers_file}: not what the loss of the run has learned ({reason})") from error
    return loss


def _share_predicted(loss: nn.Module, vectors: Tensor, expected: Tensor) -> float | None:
    predict = getattr(loss, "predict", None)
    if predict is None:
        return None
    device = next(loss.parameters()).device
    with torch.no_grad():
        predicted = torch.cat([predict(part.to(device)).cpu() for part in torch.split(vectors, 1024)])
    return float((predicted == expected).double().mean())


def _readable(split: Split, reporter: Reporter) -> Split:
    if not isinstance(split.items, ImageFiles):
        return split
    with reporter.task("looking for unreadable images") as update:
        unreadable = find_unreadable(split.items, progress=update)
    for error in unreadable.values():
        reporter.note(f"left out: {error}")
    if len(unreadable) == len(split):
        raise ValueError(f"none of {len(split)} images can be read; the first is {unreadable[0]}")
    if unreadable:
        reporter.note(f"left out: {len(unreadable)} of {len(split)} images")
    return split.take(np.array([row for row in range(len(split)) if row not in unreadable], dtype=np.int64))


def _divide(split: Split, config: Config) -> tuple[Rows, Split | None]:
    """The rows to train on, and what is held out of training to choose by."""
    if not config.train.hold_out:
        return np.arange(len(split)), None
    _, held_out = hold_out_classes(split, config.train.hold_out, seed=config.train.seed)
    return np.flatnonzero(~np.isin(split.labels, held_out.labels)), held_out


def _settle(
    config: Config,
    run: RunDir,
    encoder: Encoder,
    split: Split,
    readers: Readers,
    device: torch.device,
    reporter: Reporter,
) -> Config:
    """Make the last choice, which takes a measurement, once: a resumed run keeps the one it started with."""
    reading = readers.reading(split, augmented=True)
    return dist.from_main(lambda: _settle_alone(config, run, encoder, split, reading, device, reporter))


def _settle_alone(
    config: Config,
    run: RunDir,
    encoder: Encoder,
    split: Split,
    reading: Reading,
    device: torch.device,
    reporter: Reporter,
) -> Config:
    if config.model.trainable == "auto" and run.config_file.exists():
        settled = run.read_config()
        config = replace(config, model=replace(config.model, trainable=settled.model.trainable))
    elif config.model.trainable == "auto":
        config = choose_trainable(config, encoder, split, reading, device, reporter)
    config = choose_head_init(config, encoder, len(split))
    run.write_config(config)
    return config


def _build_loss(config: Config, num_classes: int) -> nn.Module:
    options = dict(config.loss.options)
    if has_centers(config.loss.name):
        options.setdefault("centers_per_class", config.loss.centers_per_class)
    assert config.model.dim != "auto"
    constructor = LOSSES.get(config.loss.name)
    # Centres that will be split over ranks need not exist as a whole anywhere.
    splits = dist.world_size() > 1 and isinstance(constructor, type) and issubclass(constructor, SoftTripleLoss)
    with torch.device("meta" if splits else "cpu"):
        return build_loss(config.loss.name, num_classes, config.model.dim, **options)


def _made_whole(loss: nn.Module, whole: nn.Module, run: RunDir) -> nn.Module:
    """The loss as one process has it, on the first rank: with the centres of all ranks, and without draws."""
    part = find_shard(loss)
    if part is None:
        return loss
    assert isinstance(whole, SoftTripleLoss)
    with explained(run.checkpoints):
        whole.centers = nn.Parameter(dist.rows_on_main(part.centers.detach(), run.checkpoints))
    return whole


def _write(path: Path, report: Report) -> None:
    if dist.is_main():
        write_whole(path, report.to_json() + "\n")


@torch.no_grad()
def _features(encoder: Encoder, feed: Feed, device: torch.device) -> Tensor:
    encoder.eval()
    rows = shuffled(len(feed), 64, seed=0, epoch=0)
    found = feed.batches(rows, 0)
    return torch.cat([encoder.features_from(inputs.to(device), feed.first).cpu() for inputs, _ in found])


def _save_centers(loss: nn.Module, run: RunDir) -> None:
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in loss.state_dict().items()}
    if tensors:
        with appearing_file(run.centers_file) as temporary:
            write_tensors(temporary, tensors)
