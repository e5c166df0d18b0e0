"""Embedding speed: `softtriple embed` and `index` from image files, against the bare forward pass.

    python benchmarks/embedding.py [--backbones efficientnet-lite0 timm:resnet18] [--threads 2] [--precision float32]

Images per second, everything included: finding and decoding the files, the network, writing the results. ``limit``: the
forward pass alone on one ready batch, with batch norms folded and memory reused as in `embed`. ``bare``: the same as
the network is published. ``decode``: the data loader alone. Rounds are interleaved; medians are shown. The images are
drawn for the purpose, and networks of timm have random weights.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import machine, save, table

from softtriple import Config, Encoder, Run
from softtriple.data import in_order, load_benchmark
from softtriple.models import build_backbone
from softtriple.models.allocation import reusing_memory
from softtriple.models.description import EncoderConfig
from softtriple.models.features import EMBEDDING_BATCH, Feeds
from softtriple.progress import Reporter
from training import BACKBONES, draw_images

QUIET = Reporter(quiet=True)
NUMBERS = itertools.count()  # of stores, which are new in every round
AXES = ("backbone", "size", "threads", "precision")
RATIOS = {"embed of the limit": ("embed", "limit"), "index of the limit": ("index", "limit")}
RATIOS |= {"limit × bare": ("limit", "bare")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=BACKBONES)
    parser.add_argument("--sizes", nargs="+", type=int, default=[224])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="embedding", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        draw_images(Path(folder) / "photos", options.images // 2)
        for backbone, size, threads in itertools.product(options.backbones, options.sizes, options.threads):
            torch.set_num_threads(threads)
            speeds = measure(Path(folder), backbone, size, options.precision, options.rounds)
            case = {"backbone": backbone, "size": size, "threads": threads, "precision": options.precision}
            rows.append(case | speeds)
            print(text(rows[-1:]), flush=True)
    save(options.name, machine("torch"), rows, text(rows))


def measure(folder: Path, backbone: str, size: int, precision: Any, rounds: int) -> dict[str, float]:
    """Median images per second of each way."""
    network = build_backbone(backbone, pretrained=not backbone.startswith("timm:"), input_size=size)
    encoder = Encoder(EncoderConfig(backbone=backbone, input_size=size), backbone=network).eval()
    run, data = Run(config=Config(), encoder=encoder), str(folder / "photos")
    split = load_benchmark(data, split="none").test
    feed = Feeds(encoder, reporter=QUIET).single_pass(split)
    batches = list(in_order(len(split), EMBEDDING_BATCH))
    inputs = next(feed.batches(batches[:1], 0))[0]

    def forward(network: Encoder) -> None:
        for batch in batches:
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                network(inputs[: len(batch)])

    def fast_forward() -> None:
        with reusing_memory():
            forward(encoder.fast())

    ways: dict[str, Callable[[], object]] = {
        "embed": lambda: run.write_embeddings(data, folder / "out.npz", precision=precision),
        "limit": fast_forward,
        "index": lambda: run.index(data, str(folder / f"store-{next(NUMBERS)}"), precision=precision),
        "bare": lambda: forward(encoder),
        "decode": lambda: [None for _ in feed.batches(batches, 0)],
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if number:  # the first round warms up
                taken[name].append(len(split) / (time.perf_counter() - start))
    return {name: statistics.median(speeds) for name, speeds in taken.items()}


def text(rows: list[dict[str, Any]]) -> str:
    """Images per second, and the ratios that matter."""
    names = ("embed", "index", "limit", "bare", "decode")
    lines = [
        [
            *(str(row[axis]) for axis in AXES),
            *(f"{row[name]:.1f}" for name in names),
            *(f"{row[one] / row[other]:.2f}" for one, other in RATIOS.values()),
        ]
        for row in rows
    ]
    return table([*AXES, *names, *RATIOS], lines)


if __name__ == "__main__":
    main()
