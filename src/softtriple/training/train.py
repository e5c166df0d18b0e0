"""From data to a trained run: `train` is what the command line calls, and what a notebook calls."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config, setting_names, with_values
from softtriple.data import Benchmark, Split, absolute_spec, contiguous_labels, make_benchmark
from softtriple.errors import UserError, counted, did_you_mean
from softtriple.files import naming_file, write_text
from softtriple.losses import Loss, as_loss, check_loss, is_shardable, sample_classes, shard
from softtriple.metrics import Calibration, Embeddings, Report, calibrate, evaluate
from softtriple.models import Encoder, StagedNetwork, check_backbone, check_trainable
from softtriple.models.backbones.module import module_name
from softtriple.models.features import Feed, Feeds, Rows, feature_rows
from softtriple.models.heads import closed_form_head
from softtriple.progress import Reporter
from softtriple.training.auto import (
    CUSTOM,
    check_compile,
    check_dims,
    resolve,
    resolve_compile,
    resolve_dim,
    resolve_hold_out,
    resolve_precision,
    resolve_training,
)
from softtriple.training.baseline import measure_baseline, measure_encoder
from softtriple.training.building import build_configured_loss, build_encoder, build_network, training_feeds
from softtriple.training.calibrating import calibration_split, unseen_embeddings
from softtriple.training.card import write_card
from softtriple.training.checkpoint import find_checkpoints
from softtriple.training.choose import class_splits, instance_splits
from softtriple.training.continuing import check_start, continued_config, keep_centers
from softtriple.training.directory import RunDir
from softtriple.training.fit import fit
from softtriple.training.loading import advising_to_skip, check_lists, correct_data, divide, load_data
from softtriple.training.measure import embed_split, evaluate_benchmark, evaluate_prefixes
from softtriple.training.plan import check_budget, choose_trainable
from softtriple.training.run import Run
from softtriple.training.start import (
    HeadProblem,
    choose,
    choose_network_share,
    head_start,
    initialize_backbone,
    initialize_centers,
    set_between,
    trained_values,
)
from softtriple.training.tracking import check_trackers, tracking
from softtriple.training.trials import write_gains

Data = str | os.PathLike[str] | Benchmark | tuple[Any, Any]


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


def train(
    data: Data,
    *,
    backbone: str | nn.Module | None = None,
    loss: str | nn.Module | None = None,
    out: str | Path | None = None,
    config: Config | None = None,
    resume: bool = False,
    reporter: Reporter | None = None,
    **settings: Any,
) -> Run:
    """Train an encoder on ``data``, evaluate it on classes it has not seen, and return the run.

    Args:
        data: a source as on the command line (``"photos/"``, ``"cub:PATH"``, ``"glyphs"``), a `Benchmark`, or a tuple
            of items (arrays, paths or texts) and labels.
        backbone: a name, or any module from images (or vectors, or token ids) to features.
        loss: a name, or any module called as ``loss(embeddings, labels)``.
        out: the run directory; None writes nothing to disk.
        config: settings to start from; default: those of the run to resume, or of ``start``.
        resume: continue the run in ``out``.
        reporter: where progress goes; default: standard error.
        settings: single settings by their last name: ``epochs=20, dim=128, split="instances"``.

    With several ranks, all must call it; they share the work, and only the first writes files.
    """
    reporter = reporter or Reporter(quiet=not dist.is_main())
    data = os.fspath(data) if isinstance(data, os.PathLike) else data
    directory = None if out is None else RunDir(Path(out))
    if resume and directory is None:
        raise UserError("resume=True needs the run directory to continue: out=")
    if config is None and resume and directory is not None and directory.config_file.is_file():
        config = directory.read_config()
    elif config is None:
        config = continued_config(settings["start"], data) if settings.get("start") else Config()
    config = configure(config, data, backbone, loss, settings)
    check_data(config, data)
    check(config, directory, resume=resume)
    opened = directory.opened(resume=resume) if directory is not None and dist.is_main() else nullcontext()
    with opened, advising_to_skip():
        dist.barrier()
        prepared = prepare(
            config,
            data=data,
            backbone=backbone if isinstance(backbone, nn.Module) else None,
            loss=loss if isinstance(loss, nn.Module) else None,
            directory=directory,
            reporter=reporter,
        )
        return train_prepared(prepared, directory=directory, reporter=reporter)


def configure(
    config: Config,
    data: Data,
    backbone: str | nn.Module | None,
    loss: str | nn.Module | None,
    settings: dict[str, Any],
) -> Config:
    """``config`` with the arguments of `train` applied; a module is recorded by the name of its class."""
    names = setting_names()
    values = {}
    for name, value in settings.items():
        if name not in names:
            raise UserError(f"there is no setting {name!r}; {did_you_mean(name, names)}")
        values[names[name]] = value
    if values.get("train.start") is not None:
        values["train.start"] = str(Path(values["train.start"]).absolute())
    values["dataset"] = absolute_spec(data) if isinstance(data, str) else ""
    for name, given in (("model.backbone", backbone), ("loss.name", loss)):
        if given is not None:
            values[name] = module_name(given) if isinstance(given, nn.Module) else given
    config = with_values(config, values)
    files = {"data.exclude": config.data.exclude, "data.labels": config.data.labels}
    return with_values(
        config, {name: str(Path(file).expanduser().absolute()) for name, file in files.items() if file is not None}
    )


def check(config: Config, directory: RunDir | None, *, resume: bool) -> None:
    """UserError for everything that can be known to be wrong before data are read or weights loaded."""
    if directory is not None and dist.is_main():
        directory.check(resume=resume)
    check_dims(config)
    if not config.loss.name.startswith(CUSTOM):
        centers = None if config.loss.centers_per_class == "auto" else config.loss.centers_per_class
        check_loss(
            config.loss.name, config.loss.options, centers_per_class=centers, sample_rate=config.loss.sample_rate
        )
    if not config.model.backbone.startswith(CUSTOM) and config.model.backbone != "auto":
        check_backbone(config.model.backbone, weights=config.model.weights)
    if config.model.trainable != "auto":
        check_trainable(config.model.trainable)
    if not resume:
        check_budget(config)
        check_start(config)
        check_lists(config)
    check_trackers(config.train.track, directory)
    check_compile(config, dist.device())


def check_data(config: Config, data: object) -> None:
    """UserError if ``data`` are neither a source nor values, or for settings that have no effect on values."""
    if isinstance(data, str):
        return
    if not isinstance(data, Benchmark) and not (isinstance(data, tuple) and len(data) == 2):
        raise UserError(
            f"data are a {type(data).__name__}; expected a source such as 'photos/', a Benchmark, or a tuple of items "
            "and labels"
        )
    unused = ["path", "text", "label", *(["split", "test_share"] if isinstance(data, Benchmark) else [])]
    for name in unused:
        if (value := getattr(config.data, name)) is not None:
            raise UserError(f"data.{name} = {value!r} has no effect on a {type(data).__name__}; leave it out")


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


def train_prepared(prepared: Prepared, *, directory: RunDir | None, reporter: Reporter) -> Run:
    """Train what `prepare` built, evaluate it and, with a ``directory``, write everything to disk."""
    config, benchmark, encoder, feeds = prepared.config, prepared.benchmark, prepared.encoder, prepared.feeds
    if directory is not None and dist.is_main():
        directory.write_data(benchmark, config.data.exclude, config.data.labels)
    device = dist.device()
    encoder.to(device)
    loss = sample_classes(shard(prepared.loss), config.loss.sample_rate, config.train.seed).to(device)
    if config.model.head_init != "random" and config.train.start is None:
        initialize_backbone(encoder, benchmark.train)  # before its features are computed, and cached
    training = feeds.training(benchmark.train).only(prepared.rows, prepared.labels)
    baselines = {} if directory is None else directory.read_reports(directory.baseline_file)
    start: dict[str, Tensor] = {}
    resuming = directory is not None and bool(find_checkpoints(directory.checkpoints))
    if not (resuming and baselines and config.train.interpolate == 1):  # else the checkpoint has the result
        # Features of the augmented views if they are cached, else of the evaluation view.
        seen = training if training.first else feeds.evaluation(benchmark.train).only(prepared.rows, prepared.labels)
        features = feature_rows(encoder, seen)
        baselines = baselines or _measure_baseline(prepared, features, directory)
        config = _start(prepared, encoder.head_input(features), training, loss, device, directory, reporter)
        start = trained_values(encoder)
    if directory is not None and dist.is_main():
        directory.write_config(config)

    def embed(split: Split) -> Embeddings:
        return embed_split(encoder, feeds, split, benchmark.class_names, reporter)

    def embed_held_out() -> Tensor:
        assert prepared.held_out is not None
        return embed(prepared.held_out).vectors

    def evaluate_epoch() -> dict[str, float]:
        # Nothing is chosen by the test classes, which are only monitored: held-out classes are for that.
        name, split, gallery = "test", benchmark.test, benchmark.gallery
        if prepared.held_out is not None:
            name, split, gallery = "validation", prepared.held_out, None
        items = None if gallery is None else embed(gallery)
        report = evaluate(embed(split), gallery=items, recall_at=(1,), kmeans_restarts=0, bootstrap=0)
        return {f"{name}_recall@1": report.recall[1], f"{name}_map_at_r": report.map_at_r}

    with tracking(config, directory, reporter) as tracker:
        log = fit(
            config.train, encoder, loss, training,
            directory=directory, evaluate=evaluate_epoch, device=device, reporter=reporter,
            track=tracker.log,
        )  # fmt: skip
        if config.train.interpolate == "auto":
            assert prepared.held_out is not None
            config = choose_network_share(config, encoder, start, prepared.held_out.labels, embed_held_out, reporter)
            if directory is not None and dist.is_main():
                directory.write_config(config)
        else:
            set_between(encoder, start, trained_values(encoder), config.train.interpolate)
        loss = _whole(loss, prepared.loss, directory)
        if directory is not None and dist.is_main():
            encoder.save(directory.encoder)
            directory.write_loss(loss)
        test = embed(benchmark.test)
        gallery = None if benchmark.gallery is None else embed(benchmark.gallery)
        report = evaluate_benchmark(benchmark, test, gallery, encoder.class_names, lambda: loss, seed=config.train.seed)
        prefixes = evaluate_prefixes(benchmark, test, gallery, config.model.dims[:-1], seed=config.train.seed)
        tracker.finish(report)
    validation, embedded = None, {"test classes": test}
    if prepared.held_out is not None:
        embedded["validation classes"] = embed(prepared.held_out)
        validation = evaluate(embedded["validation classes"], recall_at=benchmark.recall_at, seed=config.train.seed)
    source, _ = calibration_split(benchmark, prepared.held_out)
    calibration = _calibrate(source, embedded[source], encoder.class_names)
    if directory is not None and dist.is_main():
        write_text(directory.report_file, report.to_json() + "\n")
        if validation is not None:
            write_text(directory.validation_file, validation.to_json() + "\n")
        if prefixes:
            directory.write_reports(directory.prefixes_file, prefixes)
        if calibration is not None:
            directory.write_calibration(calibration)
    run = Run(
        config=config, encoder=encoder, loss=loss, report=report, baselines=baselines, prefixes=prefixes,
        validation=validation, log=log, calibration=calibration, benchmark=benchmark, test_embeddings=test,
        directory=directory, reporter=reporter,
    )  # fmt: skip
    if directory is not None and dist.is_main():
        write_card(run, directory.card_file)
    return run


def _measure_baseline(prepared: Prepared, features: Tensor, directory: RunDir | None) -> dict[str, Report]:
    """Reports of untrained embeddings on the test items, or of the run that training starts from."""
    encoder, feeds, benchmark, train = prepared.encoder, prepared.feeds, prepared.benchmark, prepared.config.train
    if train.start is None:
        reports = measure_baseline(encoder, feeds, benchmark, features, seed=train.seed)
    else:
        reports = {f"{Path(train.start).name}, as it was": measure_encoder(encoder, feeds, benchmark, seed=train.seed)}
    if directory is not None and dist.is_main():
        directory.write_reports(directory.baseline_file, reports)
    return reports


def _start(
    prepared: Prepared,
    features: Tensor,
    training: Feed,
    loss: Loss,
    device: torch.device,
    directory: RunDir | None,
    reporter: Reporter,
) -> Config:
    """Choose the initial head and the length of training, and initialise head and centres."""
    config, encoder, benchmark, labels = prepared.config, prepared.encoder, prepared.benchmark, prepared.labels
    if config.train.start is not None:
        initialize_centers(loss, encoder, features, labels)
        kept = keep_centers(loss, encoder.class_names, config.train.start)
        new = counted(len(encoder.class_names) - kept, "class")
        reporter.note(f"starts from {config.train.start}: centres of {counted(kept, 'class')} kept, {new} new")
        return replace(config, train=replace(config.train, interpolate=1.0))
    # Hold out what the test set holds out: other classes, or other items of the same classes.
    same_classes = np.isin(benchmark.test.labels, benchmark.train.labels).all()
    splits = (instance_splits if same_classes else class_splits)(labels)

    def build_trial_loss(num_classes: int) -> Loss:
        return shard(build_configured_loss(config, num_classes))

    problem = HeadProblem(
        encoder, features, labels, training, splits, build_trial_loss, device, config.model.dims or (encoder.dim,)
    )
    config = choose(config, problem, reporter)
    if problem.gains and directory is not None and dist.is_main():
        write_gains(directory.trials_file, problem.gains)
    if config.model.head_init != "random":
        encoder.set_head(*closed_form_head(features, torch.from_numpy(labels), encoder.dim, head_start(config)))
        initialize_centers(loss, encoder, features, labels)
    return config


def _benchmark(config: Config, data: Data | None, reporter: Reporter) -> Benchmark:
    if isinstance(data, tuple):
        items, labels = data
        data = make_benchmark(items, labels, split=config.data.split, test_share=config.data.test_share)
    return correct_data(data, config.data, reporter) if isinstance(data, Benchmark) else load_data(config, reporter)


def _calibrate(source: str, embedded: Embeddings, trained: Sequence[str]) -> Calibration | None:
    """The calibration on classes that were not trained on, if there are enough of them."""
    unseen = unseen_embeddings(embedded, trained)
    return None if unseen is None else dist.from_main(lambda: calibrate(unseen, source=source))


def _whole(loss: Loss, whole: Loss, directory: RunDir | None) -> Loss:
    """The loss of a single process: without sampling and, on the first rank, with the centres of all ranks."""
    part = loss.shard
    if part is None:
        return loss
    folder = Path(tempfile.gettempdir()) if directory is None else directory.checkpoints
    with naming_file(folder):
        whole.centers = nn.Parameter(dist.rows_on_main(part.centers.detach(), folder))
    return whole
