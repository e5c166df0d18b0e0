"""The data of a run: loading them by its configuration, and holding out training classes."""

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
from softtriple.data.sources.table import SUFFIXES
from softtriple.errors import UserError
from softtriple.models.features import Rows
from softtriple.progress import Reporter

QUIET = Reporter(quiet=True)


def check_lists(config: Config) -> None:
    """UserError if the list of items to leave out, or the list of corrected labels, cannot be read."""
    if config.data.exclude is not None:
        read_exclusions(Path(config.data.exclude))
    if config.data.labels is not None:
        read_labels(Path(config.data.labels))


def load_data(config: Config, reporter: Reporter = QUIET, *, check_images: bool = True) -> Benchmark:
    """The benchmark of the configuration, with its corrections; see `correct_data`."""
    data = config.data
    options = {"split": data.split, "test_share": data.test_share}
    options |= {"path": data.path, "text": data.text, "label": data.label}
    # Stopping is the default of all sources; some have no such option, because they have no files.
    options |= {"on_error": None if data.on_error == "stop" else data.on_error}
    with dist.main_first():  # some sources are drawn or unpacked once and cached
        benchmark = load_benchmark(config.dataset, **options)
    return correct_data(benchmark, data, reporter, check_images=check_images)


def correct_data(benchmark: Benchmark, data: DataConfig, reporter: Reporter, *, check_images: bool = True) -> Benchmark:
    """``benchmark`` without excluded items, with corrected labels and, if on_error is "skip", only readable images.

    Checking every image takes a while: ``check_images=False`` leaves it to the caller.
    """
    if data.exclude is not None:
        benchmark = exclude_items(benchmark, Path(data.exclude))
    if data.labels is not None:
        benchmark = apply_labels(benchmark, read_labels(Path(data.labels)), data.labels)
    for note in benchmark.notes:
        reporter.note(note)
    if data.on_error == "stop" or not check_images:
        return benchmark
    skipped = list(benchmark.skipped)
    readable = {name: _readable(split, data.num_workers, reporter, skipped) for name, split in benchmark.splits.items()}
    return benchmark.with_splits(readable, skipped=tuple(skipped))


@contextmanager
def advising_to_skip() -> Iterator[None]:
    """Add to an error about an unreadable image how to leave out such files."""
    try:
        yield
    except ImageError as error:
        raise ImageError(error.path, f"{error.reason}. To leave out such files: --on-error skip") from error


def read_alike(
    own: Config, data: str, settings: Sequence[str] = (), *, on_error: OnError | None = None, whole: bool = False
) -> Config:
    """How to read ``data``: with the settings of ``own`` if it is the same source, else with its columns only.

    ``whole`` loads all items of another source, without a split into train and test.
    """
    dataset = absolute_spec(data)
    if dataset == own.dataset:
        chosen = replace(own.data, on_error=own.data.on_error if on_error is None else on_error)
    else:
        table = Path(dataset).suffix in SUFFIXES
        chosen = DataConfig(
            split="none" if whole else None,
            path=own.data.path if table else None,
            text=own.data.text if table else None,
            label=own.data.label if table else None,
            on_error=on_error or "stop",
        )
    return with_settings(Config(dataset=dataset, data=chosen), settings)


def divide(split: Split, config: Config) -> tuple[Rows, Split | None]:
    """The rows to train on, and the training classes held out for validation, if any."""
    if config.train.hold_out in (0, "auto"):
        return np.arange(len(split)), None
    _, held_out = hold_out_classes(split, float(config.train.hold_out), seed=config.train.seed)
    return np.flatnonzero(~np.isin(split.labels, held_out.labels)), held_out


def _readable(split: Split, workers: int | None, reporter: Reporter, skipped: list[str]) -> Split:
    """``split`` without unreadable images, which are added to ``skipped``."""
    if not isinstance(split.items, ImageFiles):
        return split
    with reporter.task("checking images") as update:
        unreadable = find_unreadable(split.items, workers=workers, progress=update)
    for error in unreadable.values():
        reporter.note(f"skipped: {error}")
        skipped.append(str(error))
    if unreadable and len(unreadable) == len(split):
        raise UserError(f"none of the {len(split)} images can be read; the first error: {unreadable[0]}")
    if unreadable:
        reporter.note(f"skipped: {len(unreadable)} of {len(split)} images")
    return split.take(np.array([row for row in range(len(split)) if row not in unreadable], dtype=np.int64))
