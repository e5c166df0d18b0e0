"""Every table and figure of the paper by name: ``reproduce("table1", "cub:CUB_200_2011", Path("runs/cub"))``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softtriple.config import Config, with_settings
from softtriple.data import Benchmark, ImageFiles
from softtriple.errors import UserError, did_you_mean
from softtriple.papers.hidden_modes import make_hidden_modes
from softtriple.papers.published import read_published
from softtriple.papers.runs import Study
from softtriple.papers.sheets import Result, to_text, write_result
from softtriple.papers.studies import (
    make_centers,
    make_illustration,
    make_recall_by_k,
    make_retrieved,
    write_toy_set,
)
from softtriple.papers.tables import make_table
from softtriple.progress import Reporter
from softtriple.training.loading import load_data


class Target(NamedTuple):
    """How to make a target, and the settings in which its rows differ, which the user cannot change."""

    make: Callable[[Study, Sequence[str] | None], Result]
    varies: tuple[str, ...] = ("loss.name",)
    shows_one_seed: bool = False


PHOTOGRAPHS = ("paper", "full", "head")  # protocols for them
_CENTERS = ("loss.name", "loss.centers_per_class", "loss.options.tau")
TARGETS: dict[str, Target] = {
    **{name: Target(partial(make_table, table)) for name, table in read_published().items()},
    "centers": Target(make_centers, _CENTERS),
    "recall-vs-k": Target(make_recall_by_k, _CENTERS),
    "retrieved": Target(make_retrieved, shows_one_seed=True),
    "illustration": Target(make_illustration, shows_one_seed=True),
    "hidden-modes": Target(make_hidden_modes, _CENTERS),
}


@dataclass(frozen=True)
class Reproduced:
    """A finished target: its table for a terminal, its numbers for programs, and its files."""

    text: str
    numbers: dict[str, Any]
    files: tuple[Path, ...]


def reproduce(
    target: str,
    data: str | None,
    out: Path,
    *,
    seeds: int = 1,
    rows: Sequence[str] | None = None,
    protocol: str | None = None,
    settings: Sequence[str] = (),
    reporter: Reporter,
) -> Reproduced:
    """Make a table or figure of the paper in ``out``; finished runs there are reused, others are trained.

    ``data`` is any data source; ``illustration`` has its own. ``rows`` selects rows; ``settings`` apply to every run.
    ``protocol`` is for photographs: "paper" as published, "full" for all layers of efficientnet-lite0, or "head" on its
    cached features; the default depends on the device. If nothing can be run, the files are still written, and
    UserError says why.
    """
    if target not in TARGETS:
        raise UserError(f"unknown target {target!r}; {did_you_mean(target, TARGETS)}")
    one_seed = TARGETS[target].shows_one_seed
    if seeds < 1 or (one_seed and seeds > 1):
        raise UserError(f"--seeds {seeds}: {target} takes {'exactly' if one_seed else 'at least'} 1")
    _check_settings(target, settings)
    if target == "illustration":
        if data is not None:
            raise UserError(f"--data {data}: illustration has its own data; omit --data")
        data = write_toy_set(out / "toy.npz")
    if data is None:
        raise UserError(f"{target} needs --data, such as --data cub:PATH or --data glyphs")
    benchmark, lacking = _load(data, settings, out)
    protocol = choose_protocol(data, benchmark, protocol, on_gpu=torch.cuda.is_available())
    study = Study(
        data=data,
        out=out,
        reporter=reporter,
        seeds=seeds,
        protocol=protocol,
        settings=tuple(settings),
        benchmark=benchmark,
        lacking=lacking,
        advice=". Pass the file with --set model.weights=FILE, or use --protocol full." if protocol == "paper" else "",
    )
    result = TARGETS[target].make(study, rows)
    files = write_result(result, out, target)
    if result.lacking:
        raise UserError(f"{target}: nothing could be run: {result.lacking}")
    return Reproduced(to_text(result.sheet), result.numbers, files)


def choose_protocol(data: str, benchmark: Benchmark | None, protocol: str | None, *, on_gpu: bool) -> str:
    """``protocol``; by default, for photographs, "paper" on a GPU and "head" on a CPU, else "scratch"."""
    if protocol not in (None, *PHOTOGRAPHS):
        raise UserError(f"unknown protocol {protocol!r}; {did_you_mean(protocol, PHOTOGRAPHS)}")
    if benchmark is None or isinstance(benchmark.train.items, ImageFiles):
        return protocol or ("paper" if on_gpu else "head")
    if protocol is not None:
        raise UserError(f"--protocol {protocol} is for photographs, and {data} has none; omit it to train from scratch")
    return "scratch"


def _check_settings(target: str, settings: Sequence[str]) -> None:
    with_settings(Config(), settings)
    elsewhere = {"dataset": "use --data instead", "train.seed": "use --seeds N, which runs seeds 0 to N - 1"}
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in elsewhere:
            raise UserError(f"--set {setting}: {elsewhere[name]}")
        if name in TARGETS[target].varies:
            raise UserError(f"--set {setting}: the rows of {target} differ in {name}; choose rows with --rows")


def _load(data: str, settings: Sequence[str], out: Path) -> tuple[Benchmark | None, str]:
    """The data, or why they are missing: published numbers and finished runs can be shown without them."""
    try:
        return load_data(with_settings(Config(dataset=data), settings)), ""
    except UserError as error:
        sources = {table.data.name: table.data.source for table in read_published().values()}
        source = sources.get(data.partition(":")[0])
        if source is None and not any(out.glob("*/seed-*/report.json")):
            raise
        return None, f"{error}{f' (available from {source})' if source else ''}"
