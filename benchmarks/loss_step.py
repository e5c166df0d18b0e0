"""Forward and backward of SoftTriple: this package, pytorch-metric-learning, the dense form, and a lower bound.

    python benchmarks/loss_step.py [--shapes cars196,sop] [--seconds 20]

Times are medians of interleaved calls, divided by the floor: the three matrix products that no implementation can
avoid, one pass for the norms and one for their projection. Peak memory is measured in a separate process and excludes
the data (embeddings and labels); centres and their gradient are included.
"""

import argparse
import json
import os
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measuring import interleaved, machine, peak_memory, reset_peak_memory, run_alone, save, table
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning.regularizers import SparseCentersRegularizer
from torch import Tensor

from softtriple import SoftTripleLoss

Step = Callable[[], object]
Shape = tuple[int, int, int, int]

SHAPES: dict[str, Shape] = {  # batch, dimension, classes, centres per class
    "cars196": (32, 64, 98, 10),
    "cub": (32, 64, 100, 10),
    "small-512": (128, 512, 100, 20),
    "sop": (32, 512, 11318, 2),
    "sop-10": (128, 512, 11318, 10),
    "100k": (64, 128, 100_000, 2),
    "1m": (64, 128, 1_000_000, 2),
}

# Variants that need more than this are skipped: at SOP's size the dense forms take half a minute per step, and the
# (C·K)² matrix of a million classes has 16 TB.
MEMORY_LIMIT = 8e9


def ours(shape: Shape, tau: float) -> Step:
    _, dim, num_classes, k = shape
    loss, embeddings, labels = SoftTripleLoss(num_classes, dim, k, tau=tau), *data(shape)

    def step() -> None:
        loss.centers.grad = embeddings.grad = None
        loss(embeddings, labels).backward()

    return step


def metric_learning(shape: Shape, regularised: bool) -> Step:
    _, dim, num_classes, k = shape
    options = {}
    if regularised:
        options = {"weight_regularizer": SparseCentersRegularizer(num_classes, k), "weight_reg_weight": 0.2}
    loss = peer.SoftTripleLoss(num_classes, dim, k, la=20, gamma=0.1, margin=0.01, **options)
    embeddings, labels = data(shape)

    def step() -> None:
        loss.fc.grad = embeddings.grad = None
        loss(embeddings, labels).backward()

    return step


def dense(shape: Shape) -> Step:
    """The formulation of the authors' code: all centres in one matrix, and their full Gram matrix."""
    _, dim, num_classes, k = shape
    centers = torch.nn.Parameter(torch.randn(dim, num_classes * k) * 0.1)
    same_class = torch.block_diag(*[torch.ones(k, k) for _ in range(num_classes)]).triu(1).bool()
    embeddings, labels = data(shape)

    def step() -> None:
        centers.grad = embeddings.grad = None
        unit = F.normalize(centers, dim=0)
        similarity = (F.normalize(embeddings, dim=1) @ unit).view(-1, num_classes, k)
        relaxed = (F.softmax(similarity / 0.1, dim=2) * similarity).sum(2)
        margin = torch.zeros_like(relaxed).scatter_(1, labels[:, None], 0.01)
        value = F.cross_entropy(20 * (relaxed - margin), labels)
        distances = (2 + 1e-5 - 2 * unit.T @ unit)[same_class].sqrt()
        (value + 0.2 * distances.sum() / (num_classes * k * (k - 1))).backward()

    return step


def floor(shape: Shape) -> Step:
    batch, dim, num_classes, k = shape
    centers = torch.randn(num_classes * k, dim)
    embeddings = data(shape)[0].detach()
    similarity, by_centers = centers.new_empty(num_classes * k, batch), torch.empty_like(centers)
    by_embeddings = torch.empty_like(embeddings)

    def step() -> None:
        torch.mm(centers, embeddings.T, out=similarity)
        torch.mm(similarity.T, centers, out=by_embeddings)
        torch.mm(similarity, embeddings, out=by_centers)
        norms = torch.linalg.vector_norm(centers, dim=1, keepdim=True)
        by_centers.addcmul_(centers, norms, value=-1e-9)

    return step


VARIANTS: dict[str, Callable[[Shape], Step]] = {
    "floor": floor,
    "softtriple": lambda shape: ours(shape, tau=0.2),
    "softtriple, tau 0": lambda shape: ours(shape, tau=0.0),
    "PML": lambda shape: metric_learning(shape, regularised=False),
    "PML, regularised": lambda shape: metric_learning(shape, regularised=True),
    "dense": dense,
}


def fits(variant: str, shape: Shape) -> bool:
    """Whether the matrices that a variant allocates stay below MEMORY_LIMIT."""
    batch, dim, num_classes, k = shape
    similarities = batch * num_classes * k * 4
    all_pairs = (num_classes * k) ** 2 * 4
    centers = num_classes * k * dim * 4
    needed = {"PML": 8 * similarities + 4 * centers, "PML, regularised": 5 * all_pairs, "dense": 5 * all_pairs}
    return needed.get(variant, 0) < MEMORY_LIMIT


def data(shape: Shape) -> tuple[Tensor, Tensor]:
    batch, dim, num_classes, _ = shape
    random = torch.Generator().manual_seed(0)
    embeddings = F.normalize(torch.randn(batch, dim, generator=random), dim=1).requires_grad_()
    return embeddings, torch.randint(num_classes, (batch,), generator=random)


def times(shape: Shape, seconds: float) -> dict[str, float]:
    return interleaved({name: build(shape) for name, build in VARIANTS.items() if fits(name, shape)}, seconds)


def memory(variant: str, shape: Shape) -> int:
    warm_up = ours((2, 4, 3, 2), tau=0.2)
    warm_up()
    before = reset_peak_memory()
    step = VARIANTS[variant](shape)
    step()
    step()
    return peak_memory() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES), help="comma-separated names: " + ", ".join(SHAPES))
    parser.add_argument("--seconds", type=float, default=15, help="time per shape and number of threads")
    parser.add_argument("--times-of", help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.times_of:
        print(json.dumps(times(SHAPES[arguments.times_of], arguments.seconds)))
        return
    if arguments.memory_of:
        variant, name = arguments.memory_of
        print(json.dumps(memory(variant, SHAPES[name])))
        return

    rows = []
    for name in arguments.shapes.split(","):
        shape = SHAPES[name]
        variants = [variant for variant in VARIANTS if fits(variant, shape)]
        peak = {v: run_alone(__file__, "--memory-of", v, name) for v in variants if v != "floor"}
        for threads in sorted({1, os.cpu_count() or 1}):
            taken = run_alone(__file__, "--times-of", name, "--seconds", str(arguments.seconds), threads=threads)
            rows.append({"shape": name, "size": shape, "threads": threads, "seconds": taken, "peak_bytes": peak})
            print(text([rows[-1]]), flush=True)
    where = machine("torch", "pytorch-metric-learning")
    save("loss_step", where, rows, text(rows))


def text(rows: list[dict[str, object]]) -> str:
    body = []
    for row in rows:
        seconds, peak = row["seconds"], row["peak_bytes"]
        assert isinstance(seconds, dict)
        assert isinstance(peak, dict)
        cells = []
        for variant in VARIANTS:
            if variant == "floor":
                cells.append(f"{1e3 * seconds[variant]:.3g} ms")
            elif variant in seconds:
                cells.append(f"{seconds[variant] / seconds['floor']:.2f} ({peak[variant] / 1e6:,.0f} MB)")
            else:
                cells.append("skipped")
        body.append([f"{row['shape']} {row['size']}", str(row["threads"]), *cells])
    return table(["batch, dimension, classes, K", "threads", *VARIANTS], body)


if __name__ == "__main__":
    main()
