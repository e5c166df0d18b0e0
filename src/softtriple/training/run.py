"""A run as a value: configuration, encoder, loss and report, just trained or loaded from its directory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config, DataConfig, with_settings
from softtriple.data import (
    Benchmark,
    ImageFiles,
    Split,
    VectorFile,
    absolute_spec,
    contiguous_labels,
    write_vectors,
)
from softtriple.data.benchmark import OnError
from softtriple.errors import UserError
from softtriple.files import naming_file
from softtriple.losses import Loss, as_loss, build_loss, has_option
from softtriple.metrics import Embeddings, Report
from softtriple.models import Encoder
from softtriple.models.features import Feeds, check_items, embed_share
from softtriple.models.weights import check_fit, read_shapes, read_tensors
from softtriple.progress import Reporter
from softtriple.search import Hit, Store, catalog, open_store
from softtriple.search.store import IndexKind
from softtriple.training.auto import CENTERS, CUSTOM
from softtriple.training.directory import RunDir
from softtriple.training.loading import QUIET, as_benchmark, divide, load_data
from softtriple.training.measure import embed_split, evaluate_benchmark

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


class Run:
    """A trained encoder with everything that belongs to it.

    ``report`` is on the test classes, ``validation`` on held-out training classes if there are any, ``log`` has an
    entry per epoch. ``directory`` is None for a run that was not written to disk.

    Example:
        >>> run = Run.load("runs/photos")  # doctest: +SKIP
        >>> run.encoder.embed(["photo.jpg"]).shape, run.report.recall[1]  # doctest: +SKIP
        ((1, 64), 0.91)
    """

    def __init__(
        self,
        *,
        config: Config,
        encoder: Encoder,
        report: Report | None = None,
        baselines: Mapping[str, Report] | None = None,
        validation: Report | None = None,
        log: Sequence[dict[str, Any]] = (),
        loss: Loss | None = None,
        benchmark: Benchmark | None = None,
        test_embeddings: Embeddings | None = None,
        directory: RunDir | None = None,
        reporter: Reporter = QUIET,
    ) -> None:
        self.config, self.encoder, self.validation, self.log = config, encoder, validation, tuple(log)
        self.directory, self._reporter = directory, reporter
        self._report, self._baselines, self._loss, self._benchmark = report, baselines, loss, benchmark
        if test_embeddings is not None:
            self.test_embeddings = test_embeddings  # else embedded when first asked for

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        backbone: nn.Module | None = None,
        loss: nn.Module | None = None,
        trust: bool = False,
        reporter: Reporter = QUIET,
    ) -> "Run":
        """The run in the directory ``path``; ``backbone`` and ``loss`` are needed if it was trained with your own.

        Nothing in the directory is executed, and no file outside it is opened. ``trust`` allows an encoder that does
        not hold its own architecture to be built by the name it gives, from a folder or a hub.
        """
        directory = RunDir(Path(path))
        config = directory.read_config()
        encoder = Encoder.load(path, backbone=backbone, trust=trust)
        run = cls(config=config, encoder=encoder, log=directory.read_epochs(), directory=directory, reporter=reporter)
        if loss is not None:
            run._loss = _restore(as_loss(loss, len(encoder.class_names), encoder.dim), directory)
        if (directory.path / "validation.json").is_file():
            run.validation = directory.read_report("validation.json")
        return run

    @property
    def report(self) -> Report:
        """The evaluation on the test classes."""
        if self._report is None:
            assert self.directory is not None
            self._report = self.directory.read_report("report.json")
        return self._report

    @property
    def baselines(self) -> Mapping[str, Report]:
        """Evaluations of untrained embeddings on the same items, by what they are; the one to beat first."""
        if self._baselines is None:
            self._baselines = {} if self.directory is None else self.directory.read_baseline()
        return self._baselines

    @property
    def baseline(self) -> Report | None:
        """The evaluation that training has to beat; None for runs of version 0.1, which did not measure it."""
        return next(iter(self.baselines.values()), None)

    @property
    def loss(self) -> Loss:
        """The loss with the centres it has learned."""
        if self._loss is None:
            assert self.directory is not None
            name = self.config.loss.name
            if name.startswith(CUSTOM):
                raise UserError(
                    f"{self.directory.path} was trained with a loss of your own ({name.removeprefix(CUSTOM)}). "
                    "Pass it again: Run.load(path, loss=your_loss)"
                )
            with torch.device("meta"):  # takes no memory, whatever sizes the files claim
                described = build_configured_loss(self.config, len(self.encoder.class_names))
            self._loss = _restore(described, self.directory)
        return self._loss

    def benchmark(self) -> Benchmark:
        """The data of the run: as passed to training, or loaded again from where they were."""
        if self._benchmark is None:
            if not self.config.dataset:
                raise UserError("this run was trained on data in memory, which only the caller can pass again")
            self._benchmark = load_data(self.config, self._reporter)
        return self._benchmark

    @cached_property
    def training_split(self) -> Split:
        """The items trained on; labels number ``encoder.class_names``."""
        train = self.benchmark().train
        rows, _ = divide(train, self.config)
        return replace(train.take(rows), labels=contiguous_labels(train.labels[rows])[0])

    @cached_property
    def test_embeddings(self) -> Embeddings:
        """Embeddings of the test items."""
        return self.embed_split(self.benchmark().test, self.benchmark().class_names)

    def embed_split(self, split: Split, class_names: Sequence[str] = ()) -> Embeddings:
        """Embeddings of the items of ``split``, from cached features where there are any."""
        return embed_split(self.encoder, self._feeds, split, class_names, self._reporter)

    def evaluate(self, data: "Benchmark | str | Config | None" = None) -> Report:
        """The report on the test classes of the run's data, or of other ``data``."""
        benchmark = self.benchmark() if data is None else as_benchmark(data, self._reporter)
        test = self.embed_split(benchmark.test, benchmark.class_names)
        gallery = None if benchmark.gallery is None else self.embed_split(benchmark.gallery, benchmark.class_names)
        names, seed = self.encoder.class_names, self.config.train.seed
        return evaluate_benchmark(benchmark, test, gallery, names, lambda: self.loss, seed=seed)

    def data_config(
        self, data: str, settings: Sequence[str] = (), *, on_error: OnError | None = None, whole: bool = False
    ) -> Config:
        """How to read ``data``: as the run read its own if it is the same source, with the run's columns if another.

        ``whole`` asks for all items of another source, without a split into train and test.
        """
        dataset, own = absolute_spec(data), self.config
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

    def write_embeddings(
        self, data: str, out: str | Path, *, settings: Sequence[str] = (), on_error: OnError | None = None
    ) -> int:
        """Write the embeddings of all items of ``data`` to a .npz or .parquet file; returns how many there are."""
        out = Path(out)
        if out.suffix not in (".npz", ".parquet"):
            raise UserError(f"{out}: embeddings are written to .npz or .parquet, not to {out.suffix or 'a bare name'}")
        benchmark = load_data(self.data_config(data, settings, on_error=on_error, whole=True), self._reporter)
        splits = [split for split in (benchmark.train, benchmark.test, benchmark.gallery) if split is not None]
        splits = [split for split in splits if len(split)]
        feeds = [self._feeds.evaluation(split) for split in splits]
        with self._reporter.task("embedding") as update:
            shares = [embed_share(self.encoder, feed, progress=update) for feed in feeds]
        with naming_file(out):  # only the first rank has more than its share
            out.parent.mkdir(parents=True, exist_ok=True)
            parts = [dist.rows_on_main(share, out.parent) for share in shares]
        labels = np.concatenate([split.labels for split in splits])
        if dist.is_main():
            paths = tuple(path for split in splits if isinstance(split.items, ImageFiles) for path in split.items.paths)
            content = VectorFile(
                vectors=torch.cat(parts).numpy(),
                labels=labels,
                paths=paths or None,
                class_names=benchmark.class_names,
            )
            write_vectors(out, content)
        return len(labels)

    def index(
        self,
        data: "str | Benchmark",
        store: str,
        *,
        part: catalog.Part = "all",
        index: IndexKind = "auto",
        again: bool = False,
        settings: Sequence[str] = (),
        on_error: OnError | None = None,
    ) -> catalog.Indexed:
        """Embed the items of ``data`` and put them into the store at the URI ``store``, which is created if missing."""
        entries = self._entries(data, part, settings, on_error)
        for entry in entries:
            check_items(self.encoder, entry.split)  # before a store is created for items that do not fit
        self.encoder.to(dist.device())
        with self._store(store, create=True) as opened:
            return catalog.index_items(self.encoder, entries, opened, self._reporter, index=index, again=again)

    def delete(
        self,
        data: "str | Benchmark",
        store: str,
        *,
        part: catalog.Part = "all",
        settings: Sequence[str] = (),
        on_error: OnError | None = None,
    ) -> int:
        """Remove the items of ``data`` from the store; returns how many were stored."""
        entries = self._entries(data, part, settings, on_error)
        with self._store(store) as opened:
            return catalog.delete_items(entries, opened)

    def search(
        self, queries: Sequence[str], store: str, *, k: int = 10, classes: Sequence[str] = (), exact: bool = False
    ) -> list[list[Hit]]:
        """The stored items most similar to each query: an image file, a text, or ``row:N`` of the test items."""
        rows = self.benchmark().test if any(map(catalog.is_row, queries)) else None
        with self._store(store) as opened:
            return catalog.search_store(self.encoder, queries, opened, rows=rows, k=k, classes=classes, exact=exact)

    def check_recall(self, store: str) -> float:
        """Share of the true 10 nearest neighbours that a search of the store finds."""
        with self._store(store) as opened:
            return catalog.check_recall(opened, self._reporter)

    def centers(self) -> Tensor | None:
        """The learned centres (classes, k, dim), or None if the loss has none."""
        if self._loss is None and self.config.loss.name.startswith(CUSTOM):
            return None
        centers = self.loss.centers
        return None if centers is None else centers.detach().float()

    def _entries(
        self, data: "str | Benchmark", part: catalog.Part, settings: Sequence[str], on_error: OnError | None
    ) -> list[catalog.Entries]:
        if isinstance(data, str):
            data = load_data(self.data_config(data, settings, on_error=on_error, whole=True), self._reporter)
        return catalog.benchmark_entries(data, part)

    @contextmanager
    def _store(self, uri: str, *, create: bool = False) -> Iterator[Store]:
        store = open_store(uri, fingerprint=self.encoder.fingerprint(), dim=self.encoder.dim, create=create)
        try:
            yield store
        finally:
            store.close()

    @cached_property
    def _feeds(self) -> Feeds:
        device = dist.device()
        self.encoder.to(device)
        frozen = 0 if self.config.model.trainable == "auto" else self.encoder.set_trainable(self.config.model.trainable)
        return Feeds(
            self.encoder,
            reporter=self._reporter,
            frozen=frozen,
            cache_bytes=self.config.data.cache_gigabytes * 1e9,
            workers=self.config.data.num_workers,
        )


def build_configured_loss(config: Config, num_classes: int) -> Loss:
    """The loss that the resolved configuration describes."""
    options = dict(config.loss.options)
    if has_option(config.loss.name, CENTERS):
        options.setdefault(CENTERS, config.loss.centers_per_class)
    assert config.model.dim != "auto"
    return build_loss(config.loss.name, num_classes, config.model.dim, **options)


def _restore(loss: Loss, directory: RunDir) -> Loss:
    """``loss`` with the parameters that training left in ``directory``."""
    file = directory.centers_file
    if not file.is_file():
        if loss.state_dict():
            raise UserError(f"{file} is missing, and with it what the loss of this run has learned")
        return loss
    check_fit(loss, read_shapes(file), str(file))
    state = read_tensors(file)
    try:
        loss.load_state_dict(state, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file}: does not fit the loss of this run ({reason})") from error
    return loss
