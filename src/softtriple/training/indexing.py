"""Index, search and measure the data of a run directory: what the verbs ``index`` and ``search`` do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from softtriple.config import Config
from softtriple.models import Encoder
from softtriple.progress import Reporter
from softtriple.search import Hit, Store, catalog, open_store
from softtriple.search.catalog import Indexed, Part
from softtriple.search.store import IndexKind
from softtriple.training.run import RunDir
from softtriple.training.train import load_data


def index_data(
    run: Path,
    data: Config,
    uri: str,
    reporter: Reporter,
    *,
    part: Part = "all",
    index: IndexKind = "auto",
    again: bool = False,
) -> Indexed:
    """Embed the items of ``data`` and put them into the store at ``uri``, which is created if it does not exist."""
    encoder = Encoder.load(run).to("cuda" if torch.cuda.is_available() else "cpu")
    benchmark = load_data(data, reporter)
    catalog.check_fits(encoder, benchmark.train)  # before a store is created
    entries = catalog.benchmark_entries(benchmark, part)
    with _opened(run, uri, dim=encoder.dim, create=True) as store:
        return catalog.index_items(encoder, entries, store, reporter, index=index, again=again)


def delete_data(run: Path, data: Config, uri: str, reporter: Reporter, *, part: Part = "all") -> int:
    """Remove the items of ``data`` from the store; returns how many were stored."""
    entries = catalog.benchmark_entries(load_data(data, reporter), part)
    with _opened(run, uri) as store:
        return catalog.delete_items(entries, store)


def search(
    run: Path,
    queries: Sequence[str],
    uri: str,
    reporter: Reporter,
    *,
    k: int = 10,
    classes: Sequence[str] = (),
    exact: bool = False,
) -> list[list[Hit]]:
    """The stored items most similar to each query: an image file, a text, or ``row:N`` of the run's test items."""
    with _opened(run, uri) as store:
        rows = None
        if any(map(catalog.is_row, queries)):
            rows = load_data(RunDir(run).read_config(), reporter).test
        return catalog.search_store(Encoder.load(run), queries, store, rows=rows, k=k, classes=classes, exact=exact)


def check_recall(run: Path, uri: str, reporter: Reporter) -> float:
    """`softtriple.search.catalog.check_recall` of the store at ``uri``."""
    with _opened(run, uri) as store:
        return catalog.check_recall(store, reporter)


@contextmanager
def _opened(run: Path, uri: str, *, dim: int | None = None, create: bool = False) -> Iterator[Store]:
    store = open_store(uri, fingerprint=catalog.fingerprint(run), dim=dim, create=create)
    try:
        yield store
    finally:
        store.close()
