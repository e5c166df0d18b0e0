"""The data of a run: loaded as its configuration says, and divided into what is trained on and what is held out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from softtriple import dist
from softtriple.config import Config, DataConfig, with_settings
from softtriple.data import (
    Benchmark,
    ImageFiles,
    Split,
    absolute_spec,
    find_unreadable,
    hold_out_classes,
    load_benchmark,
)
from softtriple.data.benchmark import OnError
from softtriple.data.corrections import apply_labels, exclude_items, read_exclusions, read_labels
from softtriple.data.images import ImageError
from softtriple.errors import UserError
from softtriple.models.features import Rows
from softtriple.progress import Reporter

QUIET = Reporter(quiet=True)
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


def check_lists(config: Config) -> None:
    """UserError unless the items to leave out and the corrected labels, if any are given, can be read."""
    if config.data.exclude is not None:
        read_exclusions(Path(config.data.exclude))
    if config.data.labels is not None:
        if not config.dataset:
            raise UserError("data.labels corrects data that are read from files; these are in memory")
        read_labels(Path(config.data.labels))


def load_data(config: Config, reporter: Reporter = QUIET, *, check_images: bool = True) -> Benchmark:
    """The benchmark that the configuration names, without the items it excludes or, if it says so, cannot read.

    Reading every image takes a while: ``check_images=False`` leaves that to the caller.
    """
    data = config.data
    options = {"split": data.split, "test_share": data.test_share}
    options |= {"path": data.path, "text": data.text, "label": data.label}
    # Not every source has files that may be unreadable; all of them stop by default.
    options |= {"on_error": None if data.on_error == "stop" else data.on_error}
    with dist.main_first():  # some sources are drawn or unpacked once and cached
        benchmark = load_benchmark(config.dataset, **options)
    if data.exclude is not None:
        benchmark = exclude_items(benchmark, Path(data.exclude))
    if data.labels is not None:
        benchmark = apply_labels(benchmark, read_labels(Path(data.labels)), data.labels)
    for note in benchmark.notes:
        reporter.note(note)
    if config.data.on_error == "stop" or not check_images:
        return benchmark
    skipped = list(benchmark.skipped)
    return replace(
        benchmark,
        train=_readable(benchmark.train, reporter, skipped),
        test=_readable(benchmark.test, reporter, skipped),
        gallery=None if benchmark.gallery is None else _readable(benchmark.gallery, reporter, skipped),
        skipped=tuple(skipped),
    )


@contextmanager
def advising_to_skip() -> Iterator[None]:
    """An unreadable image of the data ends in an error that says how to go on without it."""
    try:
        yield
    except ImageError as error:
        raise ImageError(error.path, f"{error.reason}. To leave out such files: --on-error skip") from error


def read_alike(
    own: Config, data: str, settings: Sequence[str] = (), *, on_error: OnError | None = None, whole: bool = False
) -> Config:
    """How to read ``data``: as ``own`` reads its own if it is the same source, with its columns if another.

    ``whole`` asks for all items of another source, without a split into train and test.
    """
    dataset = absolute_spec(data)
    if dataset == own.dataset:
        chosen = replace(own.data, on_error=own.data.on_error if on_error is None else on_error)
    else:
        table = Path(dataset).suffix in TABLES
        chosen = DataConfig(
            split="none" if whole else None,
            path=own.data.path if table else None,
            text=own.data.text if table else None,
            label=own.data.label if table else None,
            on_error=on_error or "stop",
        )
    return with_settings(Config(dataset=dataset, data=chosen), settings)


def as_benchmark(data: "Benchmark | str | Config", reporter: Reporter = QUIET) -> Benchmark:
    """A benchmark from a value, a source string or a configuration that names one."""
    if isinstance(data, Benchmark):
        return data
    return load_data(data if isinstance(data, Config) else Config(dataset=data), reporter)


def divide(split: Split, config: Config) -> tuple[Rows, Split | None]:
    """The rows to train on, and the split of training classes held out for validation."""
    if config.train.hold_out in (0, "auto"):
        return np.arange(len(split)), None
    _, held_out = hold_out_classes(split, float(config.train.hold_out), seed=config.train.seed)
    return np.flatnonzero(~np.isin(split.labels, held_out.labels)), held_out


def _readable(split: Split, reporter: Reporter, skipped: list[str]) -> Split:
    if not isinstance(split.items, ImageFiles):
        return split
    with reporter.task("checking images") as update:
        unreadable = find_unreadable(split.items, progress=update)
    for error in unreadable.values():
        reporter.note(f"skipped: {error}")
        skipped.append(str(error))
    if unreadable and len(unreadable) == len(split):
        raise UserError(f"none of {len(split)} images can be read; the first: {unreadable[0]}")
    if unreadable:
        reporter.note(f"skipped: {len(unreadable)} of {len(split)} images")
    return split.take(np.array([row for row in range(len(split)) if row not in unreadable], dtype=np.int64))
