"""From data to a trained run: `train` is what the command line calls, and what a notebook calls."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config
from softtriple.data import Split
from softtriple.errors import UserError, counted
from softtriple.files import naming_file, write_text
from softtriple.losses import Loss, sample_classes, shard
from softtriple.metrics import Calibration, Embeddings, Report, calibrate, evaluate
from softtriple.models.features import Feed, feature_rows
from softtriple.models.heads import closed_form_head
from softtriple.progress import Reporter
from softtriple.training.arguments import Data, check, check_data, configure
from softtriple.training.auto import trains_head_only
from softtriple.training.baseline import measure_baseline, measure_encoder
from softtriple.training.building import build_configured_loss
from softtriple.training.calibrating import calibration_split, unseen_embeddings
from softtriple.training.card import write_card
from softtriple.training.checkpoint import find_checkpoints
from softtriple.training.choose import class_splits, instance_splits
from softtriple.training.continuing import continued_config, keep_centers
from softtriple.training.directory import RunDir
from softtriple.training.fit import fit
from softtriple.training.loading import advising_to_skip
from softtriple.training.measure import embed_split, evaluate_benchmark, evaluate_prefixes
from softtriple.training.prepare import Prepared, prepare
from softtriple.training.run import Run
from softtriple.training.start import (
    HeadProblem,
    choose,
    choose_network_share,
    head_start,
    initialize_backbone,
    initialize_centers,
    linear_head,
    set_between,
    trained_values,
)
from softtriple.training.tracking import tracking
from softtriple.training.trials import write_gains


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
    # Hold out what the test set holds out: other classes, or other items of the same classes.
    same_classes = np.isin(benchmark.test.labels, benchmark.train.labels).all()
    splits = (instance_splits if same_classes else class_splits)(labels)

    def build_trial_loss(num_classes: int) -> Loss:
        return shard(build_configured_loss(config, num_classes))

    given = linear_head(encoder) if config.train.start is not None and trains_head_only(config) else None
    widths = config.model.dims or (encoder.dim,)
    problem = HeadProblem(encoder, features, labels, training, splits, build_trial_loss, device, widths, given)
    config = choose(config, problem, reporter)
    if problem.gains and directory is not None and dist.is_main():
        write_gains(directory.trials_file, problem.gains)
    if config.train.start is not None:
        if given is not None:
            encoder.set_head(*given)  # which trials have changed
        initialize_centers(loss, encoder, features, labels)
        kept = keep_centers(loss, encoder.class_names, config.train.start)
        new = counted(len(encoder.class_names) - kept, "class")
        reporter.note(f"starts from {config.train.start}: centres of {counted(kept, 'class')} kept, {new} new")
    elif config.model.head_init != "random":
        encoder.set_head(*closed_form_head(features, torch.from_numpy(labels), encoder.dim, head_start(config)))
        initialize_centers(loss, encoder, features, labels)
    return config


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
