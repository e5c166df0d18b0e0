"""Batches for an encoder, from items or from cached features of its frozen stages.

A `Feed` knows at which stage of the encoder its batches enter: ``encoder.run_from(inputs, feed.first)`` works whether
the first stages run now or their output was cached. `Feeds` makes them for a run.
"""

import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, Num
from torch import Tensor

from softtriple import dist
from softtriple.data import (
    ImageCache,
    ImageFiles,
    Split,
    Vectors,
    View,
    batches,
    cache_directory,
    fingerprint,
    in_order,
    open_cache,
)
from softtriple.data.cache import cached, fits, map_rows, mark_used, write_rows
from softtriple.data.sampling import stream
from softtriple.errors import UserError, counted
from softtriple.models.allocation import reusing_memory
from softtriple.models.encoder import Encoder
from softtriple.models.preprocess import Preprocess
from softtriple.progress import Reporter

Rows = Integer[np.ndarray, " rows"]
Inputs = Num[Tensor, "batch ..."]
Progress = Callable[[int, int], None]

VERSION = 2  # part of the cache key; increase it when cached features change
EMBEDDING_BATCH = 64


def _silent(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, eq=False)
class Feed:
    """Batches of one split: ``batches(row_batches, epoch)`` yields inputs for stage ``first`` and their labels."""

    labels: Int64[np.ndarray, " items"]
    batches: Callable[[Iterable[Rows], int], Generator[tuple[Inputs, Tensor], None, None]]
    first: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, rows: Rows, labels: Int64[np.ndarray, " rows"]) -> "Feed":
        """A feed of some of the rows, with other labels."""
        numbers = torch.from_numpy(labels)

        def draw(row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Inputs, Tensor], None, None]:
            wanted, asked = itertools.tee(row_batches)
            with closing(self.batches((rows[batch] for batch in asked), epoch)) as drawn:
                for batch, (inputs, _) in zip(wanted, drawn, strict=True):
                    yield inputs, numbers[batch]

        return Feed(labels, draw, self.first)


@dataclass(frozen=True)
class Reading:
    """How to read a split: the view of its images, the seed of random augmentation, and an image cache."""

    view: View | None = None
    seed: int = 0
    cache: ImageCache | None = field(default=None, compare=False, repr=False)
    workers: int | None = field(default=None, compare=False, repr=False)

    @property
    def is_eval(self) -> bool:
        """Whether every epoch reads the same pixels."""
        return self.view is None or self.view.augment == "none"


class Feeds:
    """Feeds for the splits of a run; features of frozen stages are cached on disk if they fit ``cache_bytes``.

    ``frozen`` is the number of frozen stages of ``encoder``; ``augment``, ``seed`` and ``views`` are for training only.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        reporter: Reporter,
        frozen: int = 0,
        augment: str = "none",
        seed: int = 0,
        views: int = 1,
        cache_bytes: float = 0.0,
        workers: int | None = None,
    ) -> None:
        self._encoder, self._reporter, self.frozen = encoder, reporter, frozen
        self._augment, self._seed, self._views, self._cache_bytes = augment, seed, views, cache_bytes
        self._workers = workers
        self._caches: dict[tuple[tuple[str, ...], int], ImageCache | None] = {}

    def training(self, split: Split) -> Feed:
        """Augmented batches."""
        reading = self.reading(split, self._augment)
        views = self._views if reading.view is not None else 1
        # All seeds share the cached features; the seed of a run only chooses among the views.
        return self._cached(split, replace(reading, seed=0), views) or item_feed(self._encoder, split, reading)

    def evaluation(self, split: Split) -> Feed:
        """Batches without augmentation."""
        reading = self.reading(split, "none")
        return self._cached(split, reading, views=1) or item_feed(self._encoder, split, reading)

    def single_pass(self, split: Split) -> Feed:
        """Batches without augmentation that are read only once: existing caches are used, but none is made."""
        preprocess = self._encoder.preprocess
        view = preprocess.eval_view if isinstance(preprocess, Preprocess) else None
        reading = Reading(view, workers=self._workers)
        if self._caches_features(split):
            (file,) = _files(self._encoder, split, reading, self.frozen, views=1)
            if file.exists():
                return cached_feed(self._encoder, split, reading, frozen=self.frozen, views=1)
        if view is not None and view.resize is not None and isinstance(split.items, ImageFiles) and self._cache_bytes:
            cache = open_cache(split.items, view.resize, budget=0.0, notify=lambda _: None)
            reading = replace(reading, cache=cache)
        return item_feed(self._encoder, split, reading)

    def reading(self, split: Split, augment: str) -> Reading:
        """How to read ``split`` with ``augment``; first decodes and caches its images, if they fit the cache."""
        preprocess = self._encoder.preprocess
        if not isinstance(preprocess, Preprocess):
            return Reading(workers=self._workers)
        # Training may use a different image size than evaluation. Random boxes are cut from the larger of the two.
        view = preprocess.eval_view
        if augment != "none":
            resize = max(preprocess.resize, view.resize or 0) if augment == "resized-crop" else preprocess.resize
            view = View(size=preprocess.size, resize=resize, augment=augment)
        seed = 0 if augment == "none" else self._seed
        return Reading(view, seed, self._image_cache(split, view), self._workers)

    def _image_cache(self, split: Split, view: View) -> ImageCache | None:
        if not isinstance(split.items, ImageFiles) or not self._cache_bytes or view.resize is None:
            return None
        paths, side = split.items.paths, view.resize
        if (paths, side) not in self._caches:
            # Held-out images are part of the training half: do not decode and cache them twice.
            for cache in self._caches.values():
                if cache is not None and cache.short_side == side and cache.rows.keys() >= set(paths):
                    return cache
            with dist.main_first(), self._reporter.task("reading images") as update:
                self._caches[paths, side] = open_cache(
                    split.items, side,
                    budget=self._cache_bytes, notify=self._reporter.note, workers=self._workers, progress=update,
                )  # fmt: skip
        return self._caches[paths, side]

    def _caches_features(self, split: Split) -> bool:
        useful = self.frozen and self._cache_bytes and not isinstance(split.items, Vectors)
        return bool(useful) and self._encoder.backbone.cacheable

    def _cached(self, split: Split, reading: Reading, views: int) -> Feed | None:
        if not self._caches_features(split):
            return None
        # The first rank decides: free disk space may change between two looks at it.
        needed, fits_budget = dist.from_main(
            lambda: cache_size(self._encoder, split, reading, self.frozen, views, self._cache_bytes)
        )
        if not fits_budget:
            self._reporter.note(
                f"cached features of {counted(views, 'view')} would take {needed / 1e9:.1f} GB, more than"
                " data.cache_gigabytes or the free disk space: frozen layers run in every epoch instead"
            )
            return None
        with dist.main_first(), self._reporter.task(f"features of frozen layers, {counted(views, 'view')}") as update:
            return cached_feed(
                self._encoder,
                split,
                reading,
                frozen=self.frozen,
                views=views,
                seed=self._seed,
                notify=self._reporter.note,
                progress=update,
            )


def item_feed(encoder: Encoder, split: Split, reading: Reading) -> Feed:
    """A feed that reads the items in every epoch."""
    check_items(encoder, split)

    def prepare(batch: Any) -> Inputs:
        inputs = encoder.prepare(batch)
        return inputs.pin_memory() if encoder.device.type == "cuda" else inputs

    def draw(row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Inputs, Tensor], None, None]:
        read = batches(
            split, row_batches, reading.view,
            seed=reading.seed, epoch=epoch, cache=reading.cache, workers=reading.workers, prepare=prepare,
        )  # fmt: skip
        return cast(Generator[tuple[Inputs, Tensor], None, None], read)

    return Feed(split.labels, draw)


def check_items(encoder: Encoder, split: Split) -> None:
    """UserError unless ``encoder`` takes items like those of ``split``."""
    if encoder.takes != split.kind:
        raise UserError(
            f"the encoder ({encoder.config.backbone}) takes {encoder.takes}s, but the data are {split.kind}s"
        )
    if isinstance(split.items, Vectors) and split.items.values.shape[1] != encoder.config.in_features:
        width = split.items.values.shape[1]
        raise UserError(f"the encoder takes vectors of {encoder.config.in_features} numbers, but the data have {width}")


def cached_feed(
    encoder: Encoder,
    split: Split,
    reading: Reading,
    *,
    frozen: int,
    views: int,
    seed: int = 0,
    notify: Callable[[str], None] = lambda _: None,
    progress: Progress = _silent,
) -> Feed:
    """A feed of cached outputs of the first ``frozen`` stages, computed once for ``views`` views of each item.

    View v of an image is what `item_feed` reads in epoch v; in each epoch ``seed`` chooses one view of each row. The
    cache directory has one file per view: an interrupted run continues where it stopped, and runs that use the
    same features share them.
    """
    feed, rows = item_feed(encoder, split, reading), []
    for view, path in enumerate(_files(encoder, split, reading, frozen, views)):

        def show(done: int, total: int, view: int = view) -> None:
            progress(view * total + done, views * total)

        def write(file: Path, view: int = view, show: Progress = show) -> None:
            run = partial(_run_frozen, encoder.eval().fast(), frozen=frozen, reading=reading)
            write_rows(file, len(split), (outputs.numpy() for outputs in _in_order(encoder, feed, run, show, view)))

        rows.append(cached(path, write, map_rows, notify=notify))
        mark_used(path.parent)
        show(len(split), len(split))
    labels = torch.from_numpy(split.labels)

    def draw(row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Inputs, Tensor], None, None]:
        chosen = stream("view", seed, epoch).integers(views, size=len(split))
        for batch in row_batches:
            outputs = np.stack([rows[chosen[row]][row] for row in batch])
            yield torch.from_numpy(outputs).float(), labels[batch]

    return Feed(split.labels, draw, first=frozen)


def cache_size(
    encoder: Encoder, split: Split, reading: Reading, frozen: int, views: int, budget: float
) -> tuple[int, bool]:
    """Bytes that `cached_feed` stores, and whether they fit ``budget`` and the free disk space."""
    ((example, _),) = item_feed(encoder, split, reading).batches([np.zeros(1, dtype=np.int64)], 0)
    one = _run_frozen(encoder, example.to(encoder.device), frozen=frozen, reading=reading)
    view = one.numel() * one.element_size() * len(split)
    if views * view > budget:
        return views * view, False
    missing = sum(not path.exists() for path in _files(encoder, split, reading, frozen, views))
    return views * view, fits(missing * view, budget, cache_directory())


def embed_feed(
    encoder: Encoder, feed: Feed, *, half: torch.dtype | None = None, progress: Progress = _silent
) -> Float[Tensor, "items dim"]:
    """The unit embedding of every item, in order; ``half`` as in `embed_batches`."""
    rows = [torch.empty(0, encoder.dim)]
    done = 0
    for embeddings in embed_batches(encoder, feed, in_order(len(feed), EMBEDDING_BATCH), half):
        rows.append(embeddings)
        done += len(embeddings)
        progress(done, len(feed))
    return torch.cat(rows)


def embed_batches(
    encoder: Encoder, feed: Feed, row_batches: Iterable[Rows], half: torch.dtype | None = None
) -> Generator[Float[Tensor, "batch dim"], None, None]:
    """The unit embeddings of each batch of rows; with ``half`` the backbone computes in that type, never the head."""
    network = encoder.eval().fast()
    with reusing_memory(), closing(feed.batches(row_batches, 0)) as batches:
        for inputs, _ in batches:
            with torch.no_grad():
                with torch.autocast(encoder.device.type, dtype=half, enabled=half is not None):
                    features = network.features(inputs.to(encoder.device), feed.first)
                embeddings = network.project(features.float()).cpu()
            yield embeddings


@torch.no_grad()
def feature_rows(encoder: Encoder, feed: Feed) -> Float[Tensor, "items features"]:
    """The pooled backbone features of every item, in order, before layer norm and head."""
    run = partial(encoder.eval().fast().features, first=feed.first)
    return torch.cat([outputs.float().cpu() for outputs in _in_order(encoder, feed, run)])


def embed_together(encoder: Encoder, feed: Feed, *, progress: Progress = _silent) -> Float[Tensor, "items dim"]:
    """`embed_feed` divided over the ranks; the result is bit-identical on every rank."""
    return dist.gather_rows(embed_share(encoder, feed, progress=progress))


def embed_share(encoder: Encoder, feed: Feed, *, progress: Progress = _silent) -> Float[Tensor, "share dim"]:
    """This rank's rows of `embed_feed`; ranks divide whole batches among themselves."""
    shared = dist.share(-(-len(feed) // EMBEDDING_BATCH))
    rows = np.arange(shared.start * EMBEDDING_BATCH, min(shared.stop * EMBEDDING_BATCH, len(feed)))
    part = feed if len(rows) == len(feed) else feed.only(rows, feed.labels[rows])
    return embed_feed(encoder, part, progress=progress)


def _in_order(
    encoder: Encoder, feed: Feed, run: Callable[[Tensor], Tensor], progress: Progress = _silent, epoch: int = 0
) -> Iterator[Tensor]:
    """The output of ``run`` for each batch of ``feed``."""
    done = 0
    with reusing_memory(), closing(feed.batches(in_order(len(feed), EMBEDDING_BATCH), epoch)) as batches:
        for inputs, _ in batches:
            yield run(inputs.to(encoder.device))
            done += len(inputs)
            progress(done, len(feed))


@torch.no_grad()
def _run_frozen(encoder: Encoder, inputs: Inputs, *, frozen: int, reading: Reading) -> Tensor:
    """Pooled features if the whole backbone is frozen, else a feature map.

    Feature maps of augmented views are stored in half precision, whose rounding error is far smaller than the effect of
    the augmentation. Evaluation features keep full precision, so that cached and direct evaluation agree.
    """
    if frozen == encoder.num_stages:
        return encoder.features(inputs).cpu().contiguous()
    outputs = encoder.backbone.run(inputs, 0, frozen).cpu().contiguous()
    return outputs if reading.is_eval else outputs.half()


def _files(encoder: Encoder, split: Split, reading: Reading, frozen: int, views: int) -> list[Path]:
    folder = cache_directory() / f"trunk-{_key(encoder, split, reading, frozen)}"
    return [folder / f"view-{view:03}.npy" for view in range(views)]


def _key(encoder: Encoder, split: Split, reading: Reading, frozen: int) -> str:
    stored = encoder.config.pooling if frozen == encoder.num_stages else "map"
    digest = hashlib.sha256(f"{VERSION} {encoder.config.backbone} {frozen} {stored} {reading}".encode())
    digest.update(repr(encoder.preprocess).encode())
    if reading.is_eval:
        digest.update(b"float32")
    for module in encoder.backbone.first_modules(frozen):
        for name, tensor in module.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    digest.update(fingerprint(split.items).encode())
    return digest.hexdigest()[:16]
