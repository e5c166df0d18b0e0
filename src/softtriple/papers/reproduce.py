"""One command for each table and figure of the paper: ``reproduce("table1", "cub:CUB_200_2011", Path("runs/cub"))``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softtriple.config import Config, with_settings
from softtriple.data import ImageFiles
from softtriple.papers.ablations import make_centers, make_recall_by_k
from softtriple.papers.hidden_modes import make_hidden_modes
from softtriple.papers.illustration import make_illustration, write_toy_set
from softtriple.papers.neighbors import make_retrieved
from softtriple.papers.published import read_published
from softtriple.papers.recipes import PROTOCOLS
from softtriple.papers.results import Result, write_result
from softtriple.papers.runs import Study
from softtriple.papers.sheets import to_text
from softtriple.papers.tables import make_table
from softtriple.progress import Reporter
from softtriple.training.train import load_data


class Target(NamedTuple):
    """How a target is made, and the settings that are not the user's because its rows differ in them."""

    make: Callable[[Study, Sequence[str] | None], Result]
    varies: tuple[str, ...] = ("loss.name",)
    shows_one_seed: bool = False


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
    """A target that was made: its table for a terminal, its numbers for programs, and its files."""

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
    """Make a table or figure of the paper in ``out``; runs that are finished there are read, others trained.

    ``data`` is any data; only ``illustration`` brings its own. ``rows`` are those to run; ``settings`` change every
    run. ``protocol`` is for photographs: "full" is the paper's, "head" trains the head alone on cached features;
    without it the device decides. Where nothing could be run the files are written all the same; then ValueError says
    why.
    """
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; choose from {', '.join(TARGETS)}")
    if seeds < 1 or (seeds > 1 and TARGETS[target].shows_one_seed):
        raise ValueError(f"--seeds {seeds}: {target} takes {'1' if TARGETS[target].shows_one_seed else '1 or more'}")
    _check_settings(target, settings)
    if target != "illustration" and data is None:
        raise ValueError(f"{target} needs --data, such as cub:PATH or glyphs")
    if target == "illustration":
        if data is not None:
            raise ValueError(f"--data {data}: illustration draws its own data")
        data = write_toy_set(out / "toy.npz")
    assert data is not None
    study = _study(data, out, seeds, protocol, tuple(settings), reporter)
    result = TARGETS[target].make(study, rows)
    files = write_result(result, out, target)
    if result.lacking:
        raise ValueError(f"{target}: nothing could be run: {result.lacking}")
    return Reproduced(to_text(result.sheet), result.numbers, files)


def _check_settings(target: str, settings: Sequence[str]) -> None:
    """ValueError for settings that do not exist, or that are not a user's to change here."""
    with_settings(Config(), settings)
    elsewhere = {"dataset": "--data gives it", "train.seed": "--seeds gives the number of them"}
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if name in elsewhere:
            raise ValueError(f"--set {setting}: {elsewhere[name]}")
        if name in TARGETS[target].varies:
            raise ValueError(
                f"--set {setting}: {target} compares runs that differ in it; choose among them with --rows"
            )


def _study(
    data: str, out: Path, seeds: int, protocol: str | None, settings: tuple[str, ...], reporter: Reporter
) -> Study:
    config = with_settings(Config(dataset=data), settings)
    notes: tuple[str, ...] = ()
    lacking, photographs = "", True
    try:
        benchmark = load_data(config, Reporter(quiet=True))
        notes, photographs = benchmark.notes, isinstance(benchmark.train.items, ImageFiles)
    except FileNotFoundError as error:
        sources = {table.data.name: table.data.source for table in read_published().values()}
        source = sources.get(data.partition(":")[0])
        lacking = f"{error}{f' (to be had from {source})' if source else ''}"
    if not photographs and protocol is not None:
        raise ValueError(f"--protocol {protocol}: {data} holds no photographs, so that its encoder starts from scratch")
    if protocol not in (None, *PROTOCOLS) or protocol == "scratch":
        raise ValueError(f"unknown protocol {protocol!r}; choose from head, full")
    if not photographs:
        protocol = "scratch"
    elif protocol is None:
        protocol = "full" if torch.cuda.is_available() else "head"
    advice = "; --set model.weights=FILE gives one, --protocol head needs none" if protocol == "full" else ""
    return Study(
        data=data,
        out=out,
        reporter=reporter,
        seeds=seeds,
        protocol=protocol,
        settings=settings,
        notes=notes,
        lacking=lacking,
        advice=advice,
    )
