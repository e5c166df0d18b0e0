"""Training speed: `softtriple train` from image files, against the bare network and a plain PyTorch loop.

    python benchmarks/training.py [--backbones efficientnet-lite0 timm:resnet18] [--sizes 224] [--threads 2]

Images per second of whole training steps, everything included, after a first epoch that warms up and fills the image
cache. ``limit``: forward and backward of the bare network on one ready batch, with its batch norms folded and memory
reused as in training. ``bare``: the same as the network is published. ``plain``: what a user would write instead, a
DataLoader with two workers, the same network, pytorch-metric-learning's SoftTripleLoss and Adam. ``cached``: epochs of
a head on cached features. Rounds are interleaved, and the fastest of each way is shown: other work on the machine can
only slow a round down. The images are drawn for the purpose, and networks of timm have random weights. A second table
shows how the speed grows with the batch. Results are saved after each row.
"""

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import machine, save, table
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

sys.path.append(str(Path(__file__).parents[1]))
import tests.torchvision_operators  # noqa: F401  before timm imports torchvision

from softtriple import Config
from softtriple.config import with_settings
from softtriple.data.loader import batches
from softtriple.data.sampling import shuffled
from softtriple.models import Encoder, build_backbone
from softtriple.models.allocation import reusing_memory
from softtriple.progress import Reporter
from softtriple.training.arguments import configure
from softtriple.training.fit import PRECISIONS, FromStage, train_epoch
from softtriple.training.optim import build_optimizer
from softtriple.training.prepare import Prepared, prepare

CLASSES = 16
BACKBONES = ["efficientnet-lite0", "timm:resnet18", "timm:vit_tiny_patch16_224"]
QUIET = Reporter(quiet=True)
AXES = ("backbone", "size", "threads", "precision")
TRAINING = ("softtriple", "limit")
WAYS = (*TRAINING, "bare", "plain", "cached")
RATIOS = {
    "of the limit": ("softtriple", "limit"),
    "limit × bare": ("limit", "bare"),
    "× plain": ("softtriple", "plain"),
    "cached × plain": ("cached", "plain"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=BACKBONES)
    parser.add_argument("--sizes", nargs="+", type=int, default=[224, 160])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument(
        "--growth", nargs="*", type=int, default=[8, 16, 32, 64, 128, 256], help="batch sizes to compare"
    )
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="training", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    growth: list[dict[str, Any]] = []
    loading: dict[int, float] = {}

    def keep() -> None:
        told = ", ".join(f"{speed:.0f} with {workers}" for workers, speed in loading.items())
        loader = f"Images per second of the loader by workers: {told}." if told else ""
        tables = [text(rows), text(growth, TRAINING) if growth else "", loader]
        save(options.name, machine("torch"), [*rows, *growth], "\n\n".join(filter(None, tables)) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOFTTRIPLE_CACHE"] = f"{folder}/cache"
        draw_images(Path(folder) / "photos", options.images)
        draw_images(Path(folder) / "many", max(options.growth, default=0))
        axes = options.backbones, options.sizes, options.threads, options.precisions
        batch = options.batch_size
        for backbone, size, threads, precision in itertools.product(*axes):
            torch.set_num_threads(threads)
            speeds = measure(f"{folder}/photos", backbone, size, batch, precision, options.rounds)
            case = {"backbone": backbone, "size": size, "batch": batch, "threads": threads, "precision": precision}
            rows.append(case | speeds)
            print(text(rows[-1:]), flush=True)
            keep()
        case = {axis: values[-1 if axis != "backbone" else 0] for axis, values in zip(AXES, axes, strict=True)}
        for batch in options.growth:
            ways = measure(f"{folder}/many", case["backbone"], case["size"], batch, case["precision"], 1, TRAINING)
            growth.append({"batch": batch} | case | ways)
            keep()
        for workers in (1, 2, 4):
            loading[workers] = loader_speed(f"{folder}/photos", workers)
        keep()


def draw_images(folder: Path, count: int) -> None:
    """Photograph-like JPEG files of 16 classes: smooth noise, 500 by 375 pixels."""
    draw = np.random.default_rng(0)
    for number in range(2 * count):  # half of the classes are for the test
        path = folder / f"{number % (2 * CLASSES):02}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)


def measure(
    data: str, backbone: str, size: int, batch_size: int, precision: str, rounds: int, names: tuple[str, ...] = WAYS
) -> dict[str, float]:
    """Images per second of the ways called ``names``, in their fastest round."""
    settings = [f"train.batch_size={batch_size}", f"train.precision={precision}", "train.choose=off", "model.dim=64"]
    settings += ["model.pooling=average"]  # which every network has
    prepared = build(data, backbone, size, [*settings, "model.trainable=all"])
    ways: dict[str, Callable[[int], int]] = {
        "softtriple": epochs_of(prepared),
        "limit": bare_steps(prepared, prepared.encoder.fast(), reusing_memory),
    }
    if names == WAYS:
        head = build(data, backbone, size, [*settings, "model.trainable=head"])
        ways |= {"bare": bare_steps(prepared, prepared.encoder, nullcontext)}
        ways |= {"plain": plain_epochs(prepared), "cached": epochs_of(head)}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            images = way(number)
            if number:  # the first round warms up
                taken[name].append(images / (time.perf_counter() - start))
    return {name: max(speeds) for name, speeds in taken.items()}


def build(data: str, backbone: str, size: int, settings: list[str]) -> Prepared:
    """A run, ready to train; networks of timm get random weights, which take as long as any."""
    network = build_backbone(backbone, pretrained=False, input_size=size) if backbone.startswith("timm:") else None
    settings = [*settings, f"model.backbone={backbone}", f"model.input_size={size}"]
    config = configure(with_settings(Config(), settings), data, network, None, {})
    return prepare(config, data=data, backbone=network, reporter=QUIET)


def epochs_of(prepared: Prepared) -> Callable[[int], int]:
    """Epochs as `softtriple train` runs them: decode, augment, normalise, forward, backward, optimiser."""
    train = prepared.config.train
    optimizer = build_optimizer(prepared.encoder, prepared.loss, train)
    feed = prepared.feeds.training(prepared.benchmark.train).only(prepared.rows, prepared.labels)
    assert train.batch_size != "auto"
    network = FromStage(prepared.encoder.fast(), feed.first)

    def epoch(number: int) -> int:
        rows = shuffled(len(feed), train.batch_size, 0, number)
        steps = train_epoch(
            network, prepared.loss, feed.batches(rows, number), optimizer, half=PRECISIONS[train.precision]
        )
        with reusing_memory():
            for _ in steps:
                pass
        return len(feed)

    return epoch


def bare_steps(
    prepared: Prepared, network: Encoder, memory: Callable[[], AbstractContextManager[None]]
) -> Callable[[int], int]:
    """Forward and backward of ``network`` alone on one ready batch, as often as an epoch has batches."""
    train = prepared.config.train
    feed = prepared.feeds.training(prepared.benchmark.train)
    assert train.batch_size != "auto"
    ((inputs, _),) = feed.batches([np.arange(train.batch_size) % len(feed)], 0)
    half = PRECISIONS[train.precision]

    def steps(_: int) -> int:
        network.train()
        count = -(-len(feed) // train.batch_size)
        with memory():
            for _ in range(count):
                with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
                    vectors = network(inputs)
                vectors.float().sum().backward()
                network.zero_grad(set_to_none=True)
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


def text(rows: list[dict[str, Any]], names: tuple[str, ...] = WAYS) -> str:
    """Images per second, and the ratios that matter."""
    ratios = {title: pair for title, pair in RATIOS.items() if set(pair) <= set(names)}
    lines = [
        [
            *(str(row[name]) for name in (*AXES, "batch")),
            *(f"{row[name]:.1f}" for name in names),
            *(f"{row[one] / row[other]:.2f}" for one, other in ratios.values()),
        ]
        for row in rows
    ]
    return table([*AXES, "batch", *names, *ratios], lines)


if __name__ == "__main__":
    main()
