"""What an encoder is fed: batches from pixels, vectors or texts, or from the kept outputs of its frozen trunk.

A feed says at which stage of the encoder its batches go in, so that training and evaluation need not know whether the
first stages are computed now or were computed once: ``encoder.run_from(inputs, feed.first)`` serves both.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64, Integer, Num
from torch import Tensor

from softtriple import dist
from softtriple.data import (
    ImageArray,
    ImageCache,
    ImageFiles,
    Split,
    Texts,
    Vectors,
    View,
    batches,
    cache_directory,
    in_order,
)
from softtriple.data.cache import fits, map_rows, mark_used, write_rows
from softtriple.data.sampling import stream
from softtriple.files import appearing_file
from softtriple.models import Encoder

Rows = Integer[np.ndarray, " rows"]
Inputs = Num[Tensor, "batch ..."]
Progress = Callable[[int, int], None]

VERSION = 1  # part of the key of kept outputs: raise it when they change
EMBEDDING_BATCH = 64


@dataclass(frozen=True, eq=False)
class Feed:
    """Batches of one split: ``batches(row_batches, epoch)`` gives inputs for stage ``first`` and the labels."""

    labels: Int64[np.ndarray, " items"]
    batches: Callable[[Iterable[Rows], int], Generator[tuple[Inputs, Tensor], None, None]]
    first: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, rows: Rows, labels: Int64[np.ndarray, " rows"]) -> "Feed":
        """A feed of some of the rows, with labels of their own."""
        numbers = torch.from_numpy(labels)

        def draw(row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Inputs, Tensor], None, None]:
            wanted, asked = itertools.tee(row_batches)
            with closing(self.batches((rows[batch] for batch in asked), epoch)) as found:
                for batch, (inputs, _) in zip(wanted, found, strict=True):
                    yield inputs, numbers[batch]

        return Feed(labels, draw, self.first)


@dataclass(frozen=True)
class Reading:
    """How a split is read: the view of its images, the seed of what is random in it, and a cache of pixels."""

    view: View | None = None
    seed: int = 0
    cache: ImageCache | None = field(default=None, compare=False, repr=False)

    @property
    def still(self) -> bool:
        """Whether every epoch shows the same."""
        return self.view is None or self.view.augment == "none"


def pixel_feed(encoder: Encoder, split: Split, reading: Reading) -> Feed:
    """A feed that reads images (or vectors, or texts) anew in every epoch."""
    if encoder.takes != f"{split.kind}s":
        raise ValueError(f"the encoder, {encoder.config.backbone}, takes {encoder.takes}; the data are {split.kind}s")
    if isinstance(split.items, Vectors) and split.items.values.shape[1] != encoder.config.in_features:
        width = split.items.values.shape[1]
        raise ValueError(f"the encoder takes vectors of {encoder.config.in_features} numbers; the data have {width}")

    def draw(row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Inputs, Tensor], None, None]:
        read = batches(split, row_batches, reading.view, seed=reading.seed, epoch=epoch, cache=reading.cache)
        with closing(read) as found:
            for inputs, labels in found:
                yield encoder.prepare(inputs), labels

    return Feed(split.labels, draw)


def trunk_feed(
    encoder: Encoder,
    split: Split,
    reading: Reading,
    *,
    frozen: int,
    views: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> Feed:
    """A feed from kept outputs of the first ``frozen`` stages, computed once for ``views`` views of each item.

    View number v of an image is what a ``pixel_feed`` would show in epoch v; each epoch draws one view for each row, by
    ``seed``. Outputs are kept in the cache directory, a file for each view: an interrupted run continues where it
    stopped, and runs that differ in what they do with the outputs share them.
    """
    kept = []
    for view, path in enumerate(_files(encoder, split, reading, frozen, views)):
        if not path.exists():
            with appearing_file(path) as temporary:
                write_rows(temporary, len(split), _compute(encoder, split, reading, frozen, view, views, progress))
        elif progress is not None:
            progress((view + 1) * len(split), views * len(split))
        kept.append(map_rows(path))
        mark_used(path.parent)
    labels = torch.from_numpy(split.labels)

    def draw(row_batches: Iterable[Rows], epoch: int) -> Generator[tuple[Inputs, Tensor], None, None]:
        chosen = stream("view", seed, epoch).integers(views, size=len(split))
        for rows in row_batches:
            outputs = np.stack([kept[chosen[row]][row] for row in rows])
            yield torch.from_numpy(outputs).float(), labels[rows]

    return Feed(split.labels, draw, first=frozen)


def trunk_fits(
    encoder: Encoder, split: Split, reading: Reading, *, frozen: int, views: int, budget: float
) -> tuple[int, bool]:
    """Bytes that ``trunk_feed`` keeps; whether they are within ``budget``, and those not there yet on the free disk."""
    one = _trunk(encoder, encoder.example(), frozen, reading)
    view = one.numel() * one.element_size() * len(split)
    if views * view > budget:
        return views * view, False
    missing = sum(not path.exists() for path in _files(encoder, split, reading, frozen, views))
    return views * view, fits(missing * view, budget, cache_directory())


def _compute(
    encoder: Encoder,
    split: Split,
    reading: Reading,
    frozen: int,
    view: int,
    views: int,
    progress: Progress | None,
) -> Iterator[np.ndarray]:
    encoder.eval()
    done = 0
    feed = pixel_feed(encoder, split, reading)
    for inputs, _ in feed.batches(in_order(len(split), EMBEDDING_BATCH), view):
        yield _trunk(encoder, inputs, frozen, reading).numpy()
        done += len(inputs)
        if progress is not None:
            progress(view * len(split) + done, views * len(split))


@torch.no_grad()
def _trunk(encoder: Encoder, inputs: Inputs, frozen: int, reading: Reading) -> Tensor:
    """Pooled features of a whole frozen backbone, else a feature map.

    Maps of augmented views are kept in half precision: half the disk, and a rounding far below what the augmentation
    changes. What is evaluated is kept as it is, so that the numbers are those of the encoder.
    """
    inputs = inputs.to(next(encoder.parameters()).device)
    if frozen == encoder.num_stages:
        return encoder.features(inputs).cpu().contiguous()
    outputs = encoder.run_trunk(inputs, frozen).cpu().contiguous()
    return outputs if reading.still else outputs.half()


def _files(encoder: Encoder, split: Split, reading: Reading, frozen: int, views: int) -> list[Path]:
    folder = cache_directory() / f"trunk-{_key(encoder, split, reading, frozen)}"
    return [folder / f"view-{view:03}.npy" for view in range(views)]


def _key(encoder: Encoder, split: Split, reading: Reading, frozen: int) -> str:
    pooled = encoder.config.pooling + (" at three depths, in cells" if encoder.config.heads > 1 else "")
    kept = pooled if frozen == encoder.num_stages else "map"
    digest = hashlib.sha256(f"{VERSION} {encoder.config.backbone} {frozen} {kept} {reading}".encode())
    digest.update(repr(encoder.preprocess).encode())
    if reading.still:
        digest.update(b"float32")
    for index in range(frozen):
        for module in encoder.backbone.stage_modules(index):
            for name, tensor in module.state_dict().items():
                digest.update(name.encode())
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
    match split.items:
        case ImageFiles(paths):
            for path in paths:
                stat = Path(path).stat()
                digest.update(os.fsencode(f"\n{Path(path).absolute()}\t{stat.st_size}\t{stat.st_mtime_ns}"))
        case ImageArray(pixels):
            digest.update(np.ascontiguousarray(pixels).tobytes())
        case Texts(values):
            digest.update("\0".join(values).encode("utf-8", "surrogatepass"))
        case _:
            raise ValueError("only images and texts have a trunk whose outputs are worth keeping")
    return digest.hexdigest()[:16]


@torch.no_grad()
def embed_feed(
    encoder: Encoder, feed: Feed, *, device: torch.device | str = "cpu", progress: Progress | None = None
) -> Float[Tensor, "items dim"]:
    """The unit vector of every item, in order."""
    encoder.eval()
    found, done = [], 0
    for inputs, _ in feed.batches(in_order(len(feed), EMBEDDING_BATCH), 0):
        found.append(encoder.run_from(inputs.to(device), feed.first).float().cpu())
        done += len(found[-1])
        if progress is not None:
            progress(done, len(feed))
    return torch.cat(found)


def embed_together(
    encoder: Encoder, feed: Feed, *, device: torch.device | str = "cpu", progress: Progress | None = None
) -> Float[Tensor, "items dim"]:
    """What ``embed_feed`` gives, to the last bit, on every rank."""
    return dist.gather_rows(embed_share(encoder, feed, device=device, progress=progress))


def embed_share(
    encoder: Encoder, feed: Feed, *, device: torch.device | str = "cpu", progress: Progress | None = None
) -> Float[Tensor, "share dim"]:
    """This rank's rows of what ``embed_feed`` gives: ranks share out whole batches of it."""
    batches = dist.share(-(-len(feed) // EMBEDDING_BATCH))
    rows = np.arange(batches.start * EMBEDDING_BATCH, min(batches.stop * EMBEDDING_BATCH, len(feed)))
    if not len(rows):
        return torch.empty(0, encoder.dim)
    part = feed if len(rows) == len(feed) else feed.only(rows, feed.labels[rows])
    return embed_feed(encoder, part, device=device, progress=progress)
