"""The data of a run: loaded as its configuration says, and divided into what is trained on and what is held out."""

from dataclasses import replace

import numpy as np

from softtriple import dist
from softtriple.config import Config
from softtriple.data import Benchmark, ImageFiles, Split, find_unreadable, hold_out_classes, load_benchmark
from softtriple.errors import UserError
from softtriple.models.features import Rows
from softtriple.progress import Reporter

QUIET = Reporter(quiet=True)


def load_data(config: Config, reporter: Reporter = QUIET) -> Benchmark:
    """The benchmark that the configuration names, without its unreadable images if it says to skip them."""
    data = config.data
    options = {"split": data.split, "test_share": data.test_share}
    options |= {"path": data.path, "text": data.text, "label": data.label}
    # Not every source has files that may be unreadable; all of them stop by default.
    options |= {"on_error": None if data.on_error == "stop" else data.on_error}
    with dist.main_first():  # some sources are drawn or unpacked once and cached
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


def as_benchmark(data: "Benchmark | str | Config", reporter: Reporter = QUIET) -> Benchmark:
    """A benchmark from a value, a source string or a configuration that names one."""
    if isinstance(data, Benchmark):
        return data
    return load_data(data if isinstance(data, Config) else Config(dataset=data), reporter)


def divide(split: Split, config: Config) -> tuple[Rows, Split | None]:
    """The rows to train on, and the split of training classes held out for validation."""
    if not config.train.hold_out:
        return np.arange(len(split)), None
    _, held_out = hold_out_classes(split, config.train.hold_out, seed=config.train.seed)
    return np.flatnonzero(~np.isin(split.labels, held_out.labels)), held_out


def _readable(split: Split, reporter: Reporter) -> Split:
    if not isinstance(split.items, ImageFiles):
        return split
    with reporter.task("checking images") as update:
        unreadable = find_unreadable(split.items, progress=update)
    for error in unreadable.values():
        reporter.note(f"skipped: {error}")
    if unreadable and len(unreadable) == len(split):
        raise UserError(f"none of {len(split)} images can be read; the first: {unreadable[0]}")
    if unreadable:
        reporter.note(f"skipped: {len(unreadable)} of {len(split)} images")
    return split.take(np.array([row for row in range(len(split)) if row not in unreadable], dtype=np.int64))
