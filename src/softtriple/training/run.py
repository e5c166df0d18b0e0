"""A run as a value: configuration, encoder, loss and report, just trained or loaded from its directory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softtriple import dist
from softtriple.config import Config
from softtriple.data import Benchmark, Split, contiguous_labels
from softtriple.data.benchmark import OnError
from softtriple.errors import UserError
from softtriple.losses import Loss, as_loss
from softtriple.metrics import Calibration, Embeddings, Report, calibrate
from softtriple.metrics.calibration import check_rates
from softtriple.models import Encoder
from softtriple.models.features import Feeds, check_items, feature_rows
from softtriple.progress import Reporter
from softtriple.search import Store, catalog, open_store
from softtriple.search.store import IndexKind
from softtriple.training import adding
from softtriple.training.answers import Answer, SameClass, Unknown, center_decisions, make_answer, unit_centers
from softtriple.training.auto import CUSTOM, Precision, embedding_type
from softtriple.training.building import build_configured_loss, training_feeds
from softtriple.training.calibrating import calibration_split, embed_unseen, gallery_size, too_few, unseen_embeddings
from softtriple.training.directory import RunDir
from softtriple.training.embedding import check_vector_file, write_embeddings
from softtriple.training.loading import QUIET, advising_to_skip, divide, load_data, read_alike
from softtriple.training.measure import embed_split, evaluate_benchmark


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
        prefixes: Mapping[int, Report] | None = None,
        validation: Report | None = None,
        calibration: Calibration | None = None,
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
        self._added: adding.Centers = {}  # classes added after training: the last of ``encoder.class_names``
        self._prefixes = prefixes
        if calibration is not None or directory is None:
            self.calibration = calibration  # else read on first access
        if test_embeddings is not None:
            self.test_embeddings = test_embeddings  # else computed on first access

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
        """The run in the directory ``path``; pass ``backbone`` and ``loss`` if it was trained with modules of your own.

        Nothing in the directory is executed, and no file outside it is opened. ``trust`` allows an encoder without its
        own architecture to be built by name, from a folder or a hub.
        """
        directory = RunDir(Path(path))
        config = directory.read_config()
        encoder = Encoder.load(path, backbone=backbone, trust=trust)
        run = cls(config=config, encoder=encoder, log=directory.read_epochs(), directory=directory, reporter=reporter)
        if loss is not None:
            run._loss = directory.restore_loss(as_loss(loss, len(encoder.class_names), encoder.dim))
        run._name_added(adding.read_added(directory, encoder.dim))
        if directory.validation_file.is_file():
            run.validation = directory.read_report(directory.validation_file)
        return run

    @property
    def report(self) -> Report:
        """The evaluation on the test classes."""
        if self._report is None:
            assert self.directory is not None
            self._report = self.directory.read_report(self.directory.report_file)
        return self._report

    @property
    def baselines(self) -> Mapping[str, Report]:
        """Evaluations of untrained embeddings on the same items by name; the first is the one to beat."""
        if self._baselines is None:
            self._baselines = (
                {} if self.directory is None else self.directory.read_reports(self.directory.baseline_file)
            )
        return self._baselines

    @property
    def prefixes(self) -> Mapping[int, Report]:
        """Evaluations of truncated embeddings by width, if several widths were trained (``model.dims``)."""
        if self._prefixes is None:
            stored = {} if self.directory is None else self.directory.read_reports(self.directory.prefixes_file)
            self._prefixes = {int(width): report for width, report in stored.items() if width.isdecimal()}
        return self._prefixes

    @property
    def baseline(self) -> Report | None:
        """The evaluation that training has to beat; None for runs of version 0.1, which did not measure it."""
        return next(iter(self.baselines.values()), None)

    @cached_property
    def calibration(self) -> Calibration | None:
        """The threshold and the probabilities that `search` uses; None if the run is not calibrated."""
        assert self.directory is not None
        return self.directory.read_calibration()

    @property
    def loss(self) -> Loss:
        """The trained loss, with its centres."""
        if self._loss is None:
            assert self.directory is not None
            name = self.config.loss.name
            if name.startswith(CUSTOM):
                raise UserError(
                    f"{self.directory.path} was trained with a loss of your own ({name.removeprefix(CUSTOM)}). "
                    "Pass it again: Run.load(path, loss=your_loss)"
                )
            with torch.device("meta"):  # takes no memory, even if the files state huge sizes
                described = build_configured_loss(self.config, self._num_trained)
            self._loss = self.directory.restore_loss(described)
        if len(self.encoder.class_names) > self._loss.num_classes:
            self._loss = adding.extended(self._loss, self._num_trained, self._added)
        return self._loss

    def benchmark(self) -> Benchmark:
        """The data of the run: as passed to training, or loaded again from where they were."""
        if self._benchmark is None:
            if not self.config.dataset:
                raise UserError("this run was trained on data in memory; pass them as an argument")
            self._benchmark = load_data(self._own_lists(self.config), self._reporter)
        return self._benchmark

    @cached_property
    def training_split(self) -> Split:
        """The training items; labels index ``encoder.class_names``."""
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

    def features(self, split: Split) -> Tensor:
        """The input of the head for the items of ``split``."""
        return self.encoder.head_input(feature_rows(self.encoder, self._feeds.evaluation(split)))

    def evaluate(self, data: "Benchmark | str | Config | None" = None) -> Report:
        """The report on the test classes of the run's data, or of other ``data``."""
        benchmark = self._load(data)
        test = self.embed_split(benchmark.test, benchmark.class_names)
        gallery = None if benchmark.gallery is None else self.embed_split(benchmark.gallery, benchmark.class_names)
        names, seed = self.encoder.class_names, self.config.train.seed
        return evaluate_benchmark(benchmark, test, gallery, names, lambda: self.loss, seed=seed)

    def data_config(
        self, data: str, settings: Sequence[str] = (), *, on_error: OnError | None = None, whole: bool = False
    ) -> Config:
        """How to read ``data``: with the run's settings if it is the same source, else with its columns only.

        ``whole`` loads all items of another source, without a split into train and test.
        """
        return self._own_lists(read_alike(self.config, data, settings, on_error=on_error, whole=whole))

    def write_embeddings(
        self,
        data: str,
        out: str | Path,
        *,
        precision: Precision = "auto",
        settings: Sequence[str] = (),
        on_error: OnError | None = None,
    ) -> int:
        """Write the embeddings of all items of ``data`` to a .npz or .parquet file; returns how many there are.

        After an interruption, the same call continues where it stopped.
        """
        out = Path(out)
        check_vector_file(out)
        benchmark = load_data(self.data_config(data, settings, on_error=on_error, whole=True), self._reporter)
        half = embedding_type(self.encoder.config.backbone, precision, dist.device(), self._reporter)
        with advising_to_skip():
            return write_embeddings(self.encoder, self._feeds, benchmark, out, self._reporter, half=half)

    def index(
        self,
        data: "str | Benchmark",
        store: str,
        *,
        part: catalog.Part = "all",
        index: IndexKind = "auto",
        again: bool = False,
        add_classes: bool = False,
        precision: Precision = "auto",
        settings: Sequence[str] = (),
        on_error: OnError | None = None,
    ) -> catalog.Indexed:
        """Embed the items of ``data`` and put them into the store at the URI ``store``, which is created if missing.

        With ``add_classes``, classes that were not trained on get centres too, computed from their embeddings.
        """
        if add_classes:
            adding.check_can_add(self.loss)
        entries = self._entries(data, part, settings, on_error)
        for entry in entries:
            check_items(self.encoder, entry.split)  # before a store is created for items that do not fit
        half = embedding_type(self.encoder.config.backbone, precision, dist.device(), self._reporter)
        self.encoder.to(dist.device())
        with advising_to_skip(), self._store(store, create=True) as opened:
            indexed = catalog.index_items(
                self.encoder, entries, opened, self._reporter, index=index, again=again, half=half
            )
            return replace(indexed, added_classes=self._add_classes(entries, opened)) if add_classes else indexed

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

    def calibrate(
        self, data: "Benchmark | str | Config | None" = None, *, far: float | None = None, frr: float | None = None
    ) -> Calibration:
        """Choose the threshold for a wanted rate, on classes that were not trained on, and write it to the run.

        ``far`` and ``frr`` are the wanted false-accept and false-reject rate; without either, both are equal. The
        classes are the run's held-out training classes if there are enough, its test classes, or those of ``data``.
        """
        check_rates(far, frr)
        if data is None:
            benchmark = self.benchmark()
            source, split = calibration_split(benchmark, divide(benchmark.train, self.config)[1])
            whole = self.test_embeddings if split is benchmark.test else self.embed_split(split, benchmark.class_names)
            unseen = unseen_embeddings(whole, self.encoder.class_names)
        else:
            benchmark = self._load(data, whole=True)
            source, unseen = benchmark.name, embed_unseen(benchmark, self.encoder.class_names, self.embed_split)
        if unseen is None:
            raise too_few(source)
        self.calibration = dist.from_main(lambda: calibrate(unseen, source=source, far=far, frr=frr))
        if self.directory is not None and dist.is_main():
            self.directory.write_calibration(self.calibration)
        return self.calibration

    def search(
        self,
        queries: Sequence[str],
        store: str,
        *,
        k: int = 10,
        classes: Sequence[str] = (),
        exact: bool = False,
        min_score: float | None = None,
        unknown: Unknown | None = None,
    ) -> list[Answer]:
        """The stored items most similar to each query: an image file, a text, or ``row:N`` of the test items.

        If the run is calibrated, an answer has a probability for each hit, and ``known`` says whether the query is like
        anything in the store. ``unknown="reject"`` returns no hits if it is not; hits below ``min_score`` are left out.
        """
        calibration = self.calibration
        if unknown is not None and calibration is None:
            raise UserError(
                "this run has no calibration to tell unknown queries by; make one: softtriple calibrate RUN"
            )
        rows = self.benchmark().test if any(map(catalog.is_row, queries)) else None
        with self._store(store) as opened:
            vectors = catalog.embed_queries(self.encoder, queries, rows)
            results = catalog.search_store(opened, vectors, k=k, classes=classes, exact=exact)
            size = None if calibration is None else gallery_size(calibration, opened.classes(), classes)
        centers = None if self.directory and not self.directory.centers_file.is_file() else self.centers()
        decisions = center_decisions(vectors, unit_centers(centers), self.encoder.class_names)
        return [
            make_answer(hits, size, decision, min_score=min_score, unknown=unknown or "flag")
            for hits, decision in zip(results, decisions, strict=True)
        ]

    def same(self, a: Any, b: Any) -> SameClass:
        """Whether two items (image files, texts, ``row:N`` of the test items, images or vectors) have the same class.

        The class need not be a training class. The probability is for pairs of which half have the same class.
        """
        if self.calibration is None:
            raise UserError("this run has no calibration to judge pairs by; make one: run.calibrate()")
        rows = self.benchmark().test if any(isinstance(item, str) and catalog.is_row(item) for item in (a, b)) else None
        first, second = (
            catalog.embed_queries(self.encoder, [item], rows) if isinstance(item, str) else self.encoder.embed([item])
            for item in (a, b)
        )
        score = float(first[0] @ second[0])
        probability = self.calibration.pairs.probability(score)
        return SameClass(probability >= 0.5, probability, score)

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

    def _load(self, data: "Benchmark | str | Config | None", *, whole: bool = False) -> Benchmark:
        """``data``, or the run's own; ``whole`` as in `data_config`."""
        if data is None:
            return self.benchmark()
        data = self.data_config(data, whole=whole) if isinstance(data, str) else data
        return data if isinstance(data, Benchmark) else load_data(data, self._reporter)

    def _own_lists(self, config: Config) -> Config:
        return config if self.directory is None else self.directory.with_own_lists(config)

    def _entries(
        self, data: "str | Benchmark", part: catalog.Part, settings: Sequence[str], on_error: OnError | None
    ) -> list[catalog.Entries]:
        if isinstance(data, str):
            data = load_data(self.data_config(data, settings, on_error=on_error, whole=True), self._reporter)
        return catalog.benchmark_entries(data, part)

    def _add_classes(self, entries: Sequence[catalog.Entries], store: Store) -> int:
        """Add centres for the classes of stored ``entries`` that were not trained on; returns their number."""
        trained = self.encoder.class_names[: self._num_trained]
        names, vectors = catalog.stored_vectors(entries, store, without=trained)
        if not names:
            return 0
        new = adding.find_centers(adding.check_can_add(self.loss), torch.from_numpy(vectors), names)
        added = dict(sorted({**self._added, **new}.items()))
        if self.directory is not None:
            adding.write_added(self.directory, added)
        self._loss = adding.extended(self.loss, self._num_trained, added)
        self._name_added(added)
        return len(new)

    def _name_added(self, added: adding.Centers) -> None:
        self.encoder.class_names = (*self.encoder.class_names[: self._num_trained], *added)
        self._added = added

    @property
    def _num_trained(self) -> int:
        return len(self.encoder.class_names) - len(self._added)

    @contextmanager
    def _store(self, uri: str, *, create: bool = False) -> Iterator[Store]:
        store = open_store(uri, fingerprint=self.encoder.fingerprint(), dim=self.encoder.dim, create=create)
        try:
            yield store
        finally:
            store.close()

    @cached_property
    def _feeds(self) -> Feeds:
        self.encoder.to(dist.device())
        feeds = training_feeds(self.config, self.encoder, self._reporter)
        if self.config.model.trainable != "auto":
            feeds.frozen = self.encoder.set_trainable(self.config.model.trainable)
        return feeds
