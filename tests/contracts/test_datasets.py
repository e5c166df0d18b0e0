"""What holds for every source of data, on miniatures of each."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.data import miniatures

from softtriple.data import Benchmark, ImageArray, View, batches, load_benchmark, shuffled
from softtriple.data.sources import EMBEDDED, SCHEMES, glyphs
from softtriple.data.sources.layout import Counts


class Source(NamedTuple):
    make: Callable[[Path], Path] | None
    spec: str = "{}"
    counts: Counts | None = None  # of the miniature, in place of the published ones


SOURCES = {
    "class folders": Source(miniatures.class_folders),
    "train and test folders": Source(miniatures.train_test_folders),
    "csv table of images": Source(miniatures.csv_table),
    "parquet table of texts": Source(miniatures.text_table),
    "npz of vectors": Source(miniatures.vector_npz),
    "cub": Source(miniatures.cub, "cub:{}", Counts(6, 6, 0, 2, 2)),
    "cars196 with annotations": Source(miniatures.cars_mat, "cars196:{}", Counts(6, 6, 0, 2, 2)),
    "cars196 as folders": Source(miniatures.cars_folders, "cars196:{}", Counts(6, 6, 0, 2, 2)),
    "sop": Source(miniatures.sop, "sop:{}", Counts(6, 4, 0, 3, 2)),
    "inshop": Source(miniatures.inshop, "inshop:{}", Counts(6, 2, 4, 3, 2)),
    "omniglot": Source(miniatures.omniglot, "omniglot:{}", Counts(12, 12, 0, 4, 4)),
    "omniglot by alphabet": Source(miniatures.omniglot, "omniglot-alphabets:{}", Counts(12, 12, 0, 2, 2)),
    "glyphs": Source(None, "glyphs"),
    "digits": Source(None, "digits"),
}


@pytest.fixture(params=SOURCES)
def load(request, tmp_path, tmp_path_factory, monkeypatch) -> Callable[[], Benchmark]:
    # One cache for the whole session: the glyphs, of one script, are drawn once.
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path_factory.getbasetemp() / "glyphs"))
    monkeypatch.setattr(glyphs, "SCRIPTS", {"Georgian": glyphs.SCRIPTS["Georgian"]})
    source = SOURCES[request.param]
    spec = source.spec if source.make is None else source.spec.format(source.make(tmp_path / "data"))
    return lambda: load_benchmark(spec, expected=source.counts)


def first_batches(benchmark: Benchmark, epoch: int = 0):
    size = benchmark.train.items.pixels.shape[1] if isinstance(benchmark.train.items, ImageArray) else 24
    view = View(size=size, resize=size, augment="crop") if benchmark.kind == "image" else None
    rows = list(shuffled(len(benchmark.train), 4, seed=1, epoch=epoch))[:3]
    return list(batches(benchmark.train, rows, view, seed=1, epoch=epoch)), size


def test_every_scheme_is_covered():
    covered = {source.spec.partition(":")[0] for source in SOURCES.values() if ":" in source.spec or not source.make}
    assert covered == SCHEMES.keys() | EMBEDDED.keys()


def test_labels_index_the_names(load):
    benchmark = load()
    for split in filter(None, (benchmark.train, benchmark.test, benchmark.gallery)):
        assert len(split) == len(split.labels) > 0
        assert split.labels.dtype == np.int64
        assert split.labels.min() >= 0
        assert split.labels.max() < len(benchmark.class_names)
        if split.fine_labels is not None:
            assert split.fine_labels.max() < len(benchmark.fine_names)
            # A fine label is a mode of one class.
            assert len(np.unique(np.stack([split.labels, split.fine_labels]), axis=1).T) == len(
                np.unique(split.fine_labels)
            )
    assert len(set(benchmark.class_names)) == len(benchmark.class_names)


def test_no_test_class_is_trained_on(load):
    benchmark = load()
    shared = np.intersect1d(benchmark.train.labels, benchmark.test.labels)
    # Ten digits are too few for that; what is split by instance says so.
    assert not shared.size or any("test classes are trained on" in note for note in benchmark.notes)
    assert bool(shared.size) == (benchmark.name == "digits")
    if benchmark.gallery is not None:
        assert set(benchmark.test.labels) <= set(benchmark.gallery.labels)


def test_the_first_note_counts(load):
    benchmark = load()
    assert f"train {len(benchmark.train)} " in benchmark.notes[0]
    assert f" {len(benchmark.test)} " in benchmark.notes[0]


def test_two_loads_are_equal(load):
    one, two = load(), load()
    assert one.class_names == two.class_names
    assert one.notes == two.notes
    np.testing.assert_array_equal(one.train.labels, two.train.labels)
    for (left, _), (right, _) in zip(first_batches(one)[0], first_batches(two)[0], strict=True):
        assert left == right if isinstance(left, list) else torch.equal(left, right)


def test_batches_have_the_promised_shapes(load):
    benchmark = load()
    found, size = first_batches(benchmark)
    for inputs, labels in found:
        assert labels.dtype == torch.int64
        assert len(inputs) == len(labels)
        match benchmark.kind:
            case "image":
                assert inputs.dtype == torch.uint8
                assert inputs.shape[1:] == (size, size, 3)
            case "vector":
                assert inputs.dtype == torch.float32
                assert inputs.ndim == 2
            case "text":
                assert all(isinstance(text, str) for text in inputs)


def test_the_fingerprint_is_stable(load):
    assert load().fingerprint() == load().fingerprint()


def test_nothing_is_skipped_or_incomplete(load):
    benchmark = load()
    assert not benchmark.skipped
    assert not benchmark.incomplete


def test_another_epoch_has_another_order(load):
    benchmark = load()
    orders = [np.concatenate(list(shuffled(len(benchmark.train), 4, seed=1, epoch=e))) for e in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(len(benchmark.train)))
