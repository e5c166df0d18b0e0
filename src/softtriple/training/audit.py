"""The audit of a data source or of a run: its items, their features, and what is wrong with them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from softtriple.config import Config
from softtriple.data import Benchmark, ImageArray, ImageFiles, ImageList, Items, Split, Texts, Vectors
from softtriple.data.benchmark import item_ids
from softtriple.data.inspection import Inspection, inspect_items, pixel_features
from softtriple.errors import UserError
from softtriple.metrics import Report, evaluate
from softtriple.metrics.audit import Findings, audit_items
from softtriple.models.features import feature_rows
from softtriple.progress import Reporter
from softtriple.training.auto import resolve, resolve_dim, starts_from_features
from softtriple.training.building import build_encoder, build_network, training_feeds
from softtriple.training.loading import QUIET, load_data
from softtriple.training.run import Run
from softtriple.training.start import initialize_backbone


@dataclass(frozen=True)
class Leak:
    """Groups of copies across train and test, and the evaluation of the test items with and without theirs."""

    groups: tuple[int, ...]  # places in ``Findings.duplicates``
    rows: tuple[int, ...]  # the test items in them
    with_copies: Report | None
    without_copies: Report | None  # None if nothing is left to evaluate


@dataclass(frozen=True, eq=False)
class Audit:
    """All items of a benchmark in one split, where each comes from, and what was found; rows are those of ``items``."""

    benchmark: Benchmark
    items: Split
    places: tuple[tuple[str, int], ...]  # split and row in it, of each item
    findings: Findings
    leak: Leak
    features: str  # what the items were compared by
    notes: tuple[str, ...] = ()

    @cached_property
    def ids(self) -> list[str]:
        """The id of each item in a store."""
        return item_ids(self.items.items, Counter())


def audit(source: "str | Config | Benchmark | Run", *, reporter: Reporter = QUIET) -> Audit:
    """Audit the data that a source string, a configuration, a benchmark or a run stands for.

    Data without a run are compared by the features that training would start from. The items of a run are compared by
    the features of its backbone, never by its head, which has seen their labels.
    """
    run = source if isinstance(source, Run) else None
    config = source if isinstance(source, Config) else Config(dataset=source if isinstance(source, str) else "")
    if run is not None:
        benchmark = run.benchmark()
    else:
        benchmark = source if isinstance(source, Benchmark) else load_data(config, reporter, check_images=False)
    items, places = _joined(benchmark)
    with reporter.task("looking at items") as update:
        seen = inspect_items(items.items, workers=config.data.num_workers, progress=update)
    readable = np.array([row for row in range(len(items)) if row not in seen.unreadable], dtype=np.int64)
    if len(np.unique(items.labels[readable])) < 2:
        raise UserError(f"{benchmark.name}: an audit compares classes, and needs readable items of at least 2")
    parts = _parts(benchmark, places, readable)
    names, features = (
        _run_features(run, parts) if run is not None else starting_features(config, benchmark, parts, reporter)
    )
    with reporter.task("comparing items") as update:
        labels = torch.from_numpy(items.labels[readable])
        found = audit_items(features, labels, _only(seen, readable), progress=update)
    findings = _renumbered(found, readable.tolist(), seen)
    position = {int(row): place for place, row in enumerate(readable)}
    leak = _leak(findings, places, items.labels, position, features if run is None else _embedded(run, parts))
    notes = () if run is None else _run_notes(run)
    return Audit(benchmark, items, tuple(places), findings, leak, names, notes)


def _joined(benchmark: Benchmark) -> tuple[Split, list[tuple[str, int]]]:
    places = [(name, row) for name, split in benchmark.splits.items() for row in range(len(split))]
    splits = list(benchmark.splits.values())
    return Split(
        _chained([split.items for split in splits]), np.concatenate([split.labels for split in splits])
    ), places


def _chained(parts: Sequence[Items]) -> Items:
    match parts[0]:
        case ImageFiles():
            return ImageFiles(tuple(path for part in parts if isinstance(part, ImageFiles) for path in part.paths))
        case ImageList():
            return ImageList(tuple(image for part in parts if isinstance(part, ImageList) for image in part.pixels))
        case Texts():
            return Texts(tuple(text for part in parts if isinstance(part, Texts) for text in part.values))
        case Vectors():
            return Vectors(np.concatenate([part.values for part in parts if isinstance(part, Vectors)]))
        case ImageArray():
            return ImageArray(np.concatenate([part.pixels for part in parts if isinstance(part, ImageArray)]))


def _parts(benchmark: Benchmark, places: Sequence[tuple[str, int]], readable: np.ndarray) -> list[Split]:
    """The readable items of each split; whole splits stay as they are, so that cached features are found."""
    rows: dict[str, list[int]] = {name: [] for name in benchmark.splits}
    for row in readable.tolist():
        name, place = places[row]
        rows[name].append(place)
    splits = benchmark.splits
    return [
        splits[name] if len(own) == len(splits[name]) else splits[name].take(np.array(own))
        for name, own in rows.items()
        if own
    ]


def starting_features(
    config: Config, benchmark: Benchmark, parts: Sequence[Split], reporter: Reporter
) -> tuple[str, Tensor]:
    """What training would start from, and its name; pixels for images without a network that knows anything."""
    config = resolve(config, benchmark, QUIET)
    backbone = config.model.backbone
    items = [part.items for part in parts]
    if not starts_from_features(backbone):
        drawn = [one for one in items if isinstance(one, ImageArray | ImageList)]
        if len(drawn) == len(items):
            return "pixels, 16×16", torch.from_numpy(np.concatenate([pixel_features(one) for one in drawn]))
    if benchmark.kind == "vector":
        values = [one.values for one in items if isinstance(one, Vectors)]
        return "the vectors themselves", torch.from_numpy(np.concatenate(values))
    network = build_network(config, benchmark)
    config = resolve_dim(config, network.num_features, len(benchmark.train))
    encoder = build_encoder(config, benchmark, (), network)
    feeds = training_feeds(config, encoder, reporter)
    feeds.frozen = encoder.set_trainable("head")
    initialize_backbone(encoder, parts[0])
    rows = [encoder.head_input(feature_rows(encoder, feeds.evaluation(part))) for part in parts]
    return f"features of {backbone}", torch.cat(rows)


def _run_features(run: Run, parts: Sequence[Split]) -> tuple[str, Tensor]:
    return f"features of the run's backbone, {run.config.model.backbone}", torch.cat(
        [run.features(part) for part in parts]
    )


def _embedded(run: Run, parts: Sequence[Split]) -> Tensor:
    return torch.cat([run.embed_split(part).vectors.cpu() for part in parts])


def _run_notes(run: Run) -> tuple[str, ...]:
    if run.config.model.trainable == "head" or run.config.model.backbone == "linear":
        return ()
    return (
        "The backbone of this run was trained on the labels of its training items: wrong labels among them are harder "
        "to see. To audit with untrained features, name the data instead of the run.",
    )


def _only(seen: Inspection, rows: np.ndarray) -> Inspection:
    """What was seen of ``rows``, renumbered."""
    numbers = {int(row): place for place, row in enumerate(rows)}
    return Inspection(
        tuple(seen.digests[row] for row in rows),
        None if seen.thumbnails is None else seen.thumbnails[rows],
        {},
        {numbers[row]: reason for row, reason in seen.odd.items() if row in numbers},
    )


def _renumbered(found: Findings, rows: Sequence[int], seen: Inspection) -> Findings:
    """``found`` with the rows of all items, and the unreadable ones."""
    return replace(
        found,
        suspects=tuple(replace(one, row=rows[one.row]) for one in found.suspects),
        duplicates=tuple(replace(group, rows=tuple(rows[row] for row in group.rows)) for group in found.duplicates),
        outliers=tuple(replace(one, row=rows[one.row]) for one in found.outliers),
        unreadable=seen.unreadable,
        odd=seen.odd,
    )


def _leak(
    findings: Findings,
    places: Sequence[tuple[str, int]],
    labels: np.ndarray,
    position: dict[int, int],
    embedded: Tensor,
) -> Leak:
    """Copies across train and the rest, and what they change in retrieval among the items that are not trained on."""
    groups: list[int] = []
    rows: set[int] = set()
    for number, group in enumerate(findings.duplicates):
        tested = [row for row in group.rows if places[row][0] != "train"]
        if 0 < len(tested) < len(group.rows):
            groups.append(number)
            rows |= set(tested)
    if not groups:
        return Leak((), (), None, None)
    test = [row for row in position if places[row][0] != "train"]
    reports: list[Report | None] = []
    for chosen in (test, [row for row in test if row not in rows]):
        vectors = embedded[[position[row] for row in chosen]]
        try:
            reports.append(
                evaluate(vectors, torch.from_numpy(labels[chosen]), recall_at=(1,), kmeans_restarts=0, bootstrap=0)
            )
        except UserError:  # no class has two items
            reports.append(None)
    with_copies, without_copies = reports
    return Leak(tuple(groups), tuple(sorted(rows)), with_copies, without_copies)
