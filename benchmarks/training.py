"""Training speed: `softtriple train` from image files, against the bare network and a plain PyTorch loop.

    python benchmarks/training.py [--backbones efficientnet-lite0 timm:resnet18] [--sizes 224] [--threads 2]

Images per second of whole training steps, everything included, after a first epoch that warms up and fills the image
cache. ``limit``: forward and backward of the bare network on one ready batch. ``plain``: what a user would write
instead, a DataLoader with two workers, the same network, pytorch-metric-learning's SoftTripleLoss and Adam. ``cached``:
epochs of a head on cached features. Rounds are interleaved; medians are shown. The images are drawn for the purpose.
"""

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import machine, save, table
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from softtriple import Config
from softtriple.config import with_settings
from softtriple.data.loader import batches
from softtriple.data.sampling import shuffled
from softtriple.models import Encoder
from softtriple.progress import Reporter
from softtriple.training.fit import PRECISIONS, train_epoch
from softtriple.training.optim import build_optimizer
from softtriple.training.train import Prepared, prepare

CLASSES = 16
QUIET = Reporter(quiet=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["efficientnet-lite0"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 160])
    parser.add_argument("--threads", nargs="+", type=int, default=[2])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[32])
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="training", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOFTTRIPLE_CACHE"] = f"{folder}/cache"
        draw_images(Path(folder) / "photos", options.images)
        cases = itertools.product(
            options.backbones, options.sizes, options.batch_sizes, options.threads, options.precisions
        )
        for backbone, size, batch_size, threads, precision in cases:
            torch.set_num_threads(threads)
            speeds = measure(f"{folder}/photos", backbone, size, batch_size, precision, options.rounds)
            rows.append(
                {"backbone": backbone, "size": size, "batch": batch_size, "threads": threads, "precision": precision}
                | speeds
            )
            print(text(rows[-1:]), flush=True)
        loading = {workers: loader_speed(f"{folder}/photos", workers) for workers in (1, 2, 4)}
    told = ", ".join(f"{speed:.0f} with {workers}" for workers, speed in loading.items())
    save(options.name, machine("torch"), rows, f"{text(rows)}\n\nImages per second of the loader by workers: {told}.\n")


def draw_images(folder: Path, count: int) -> None:
    """Photograph-like JPEG files of 16 classes: smooth noise, 500 by 375 pixels."""
    draw = np.random.default_rng(0)
    for number in range(2 * count):  # half of the classes are for the test
        path = folder / f"{number % (2 * CLASSES):02}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)


def measure(data: str, backbone: str, size: int, batch_size: int, precision: str, rounds: int) -> dict[str, Any]:
    """Median images per second of each way."""
    settings = [f"model.backbone={backbone}", f"model.input_size={size}", f"train.batch_size={batch_size}"]
    settings += [f"train.precision={precision}", "model.trainable=all", "train.choose=off", "model.dim=64"]
    prepared = prepare(with_settings(Config(dataset=data), settings), reporter=QUIET)
    head = prepare(with_settings(Config(dataset=data), [*settings, "model.trainable=head"]), reporter=QUIET)
    ways = {
        "softtriple": epochs_of(prepared),
        "limit": bare_steps(prepared),
        "plain": plain_epochs(prepared),
        "cached": epochs_of(head),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            images = way(number)
            if number:  # the first round warms up
                taken[name].append(images / (time.perf_counter() - start))
    return {name: statistics.median(speeds) for name, speeds in taken.items()}


def epochs_of(prepared: Prepared) -> Callable[[int], int]:
    """Epochs as `softtriple train` runs them: decode, augment, normalise, forward, backward, optimiser."""
    train = prepared.config.train
    optimizer = build_optimizer(prepared.encoder, prepared.loss, train)
    feed = prepared.feeds.training(prepared.benchmark.train).only(prepared.rows, prepared.labels)
    assert train.batch_size != "auto"

    class FromFeed(nn.Module):
        def __init__(self, encoder: Encoder) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, inputs: Tensor) -> Tensor:
            return self.encoder.run_from(inputs, feed.first)

    network = FromFeed(prepared.encoder)

    def epoch(number: int) -> int:
        prepared.encoder.train()
        rows = shuffled(len(feed), train.batch_size, 0, number)
        steps = train_epoch(
            network, prepared.loss, feed.batches(rows, number), optimizer, half=PRECISIONS[train.precision]
        )
        for _ in steps:
            pass
        return len(feed)

    return epoch


def bare_steps(prepared: Prepared) -> Callable[[int], int]:
    """Forward and backward of the backbone alone on one ready batch, as often as an epoch has batches."""
    encoder, train = prepared.encoder, prepared.config.train
    feed = prepared.feeds.training(prepared.benchmark.train)
    assert train.batch_size != "auto"
    ((inputs, _),) = feed.batches([np.arange(train.batch_size) % len(feed)], 0)
    half = PRECISIONS[train.precision]

    def steps(_: int) -> int:
        encoder.train()
        count = -(-len(feed) // train.batch_size)
        for _ in range(count):
            with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
                vectors = encoder(inputs)
            vectors.float().sum().backward()
            encoder.zero_grad(set_to_none=True)
        return count * train.batch_size

    return steps


class Photos(Dataset[tuple[Tensor, int]]):
    """What a user would write: open, resize, crop at random, flip, normalise."""

    def __init__(self, paths: tuple[str, ...], labels: np.ndarray, size: int) -> None:
        self.paths, self.labels, self.size = paths, labels, size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[row]) as opened:
            image = opened.convert("RGB")
        scale = round(self.size * 256 / 224) / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = (int(torch.randint(extent - self.size + 1, ())) for extent in image.size)
        pixels = np.asarray(image.crop((left, top, left + self.size, top + self.size)))
        pixels = pixels[:, ::-1] if torch.rand(()) < 0.5 else pixels
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 127.5 - 1, int(self.labels[row])


def plain_epochs(prepared: Prepared) -> Callable[[int], int]:
    """Epochs of a plain loop: DataLoader, the same network, pytorch-metric-learning's loss, Adam."""
    from pytorch_metric_learning.losses import SoftTripleLoss

    train, encoder = prepared.config.train, prepared.encoder
    items: Any = prepared.benchmark.train.items
    size = encoder.preprocess.size  # type: ignore[union-attr]
    photos = Photos(items.paths, prepared.labels, size)
    assert train.batch_size != "auto"
    loader = DataLoader(photos, batch_size=train.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    loss = SoftTripleLoss(CLASSES, encoder.dim, centers_per_class=10)
    optimizer = torch.optim.Adam([*encoder.parameters(), *loss.parameters()], lr=1e-4)
    half = PRECISIONS[train.precision]

    def epoch(_: int) -> int:
        encoder.train()
        for images, labels in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
                vectors = encoder(images)
            loss(vectors.float(), labels).backward()
            optimizer.step()
        return len(photos)

    return epoch


def loader_speed(data: str, workers: int) -> float:
    """Images per second that ``workers`` threads read, crop and stack, without an image cache."""
    settings = ["model.trainable=all", "data.cache_gigabytes=0", f"data.workers={workers}"]
    prepared = prepare(with_settings(Config(dataset=data), settings), reporter=QUIET)
    split = prepared.benchmark.train
    reading = prepared.feeds.reading(split, "crop")
    rows: Iterator[np.ndarray] = iter(np.array_split(np.arange(len(split)), -(-len(split) // 32)))
    start = time.perf_counter()
    for _ in batches(split, rows, reading.view, workers=workers):
        pass
    return len(split) / (time.perf_counter() - start)


def text(rows: list[dict[str, Any]]) -> str:
    """Images per second, and the ratios that matter."""
    columns = ["backbone", "px", "batch", "threads", "precision", "softtriple", "limit", "plain", "cached"]
    columns += ["of the limit", "× plain", "cached × plain"]
    lines = [
        [
            *(str(row[name]) for name in ("backbone", "size", "batch", "threads", "precision")),
            *(f"{row[name]:.1f}" for name in ("softtriple", "limit", "plain", "cached")),
            *(f"{row[one] / row[other]:.2f}" for one, other in RATIOS),
        ]
        for row in rows
    ]
    return table(columns, lines)


RATIOS = (("softtriple", "limit"), ("softtriple", "plain"), ("cached", "plain"))

if __name__ == "__main__":
    main()
