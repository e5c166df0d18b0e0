"""Evaluation compared with pytorch-metric-learning and a blocked matrix product: time, memory and agreement.

Each variant runs in its own process, so that peak memory is measured per variant. The variants take turns, so that
other load on the machine affects all of them alike. Writes results/evaluate.json and results/evaluate.md.

    python benchmarks/evaluate.py [--sizes cub,cars,cub512,cars512,sop] [--threads 1,2] [--repeats 3]
"""

import argparse
import json
import os
import random
import statistics
import time
from typing import Any

from measuring import machine, peak_memory, reset_peak_memory, run_alone, save, table

# Items, dimensions, classes, and the noise around class centres, chosen to give the Recall@1 of trained models.
SIZES = {
    "cub": (5_924, 64, 100, 1.2),
    "cars": (8_131, 64, 98, 1.0),
    "cub512": (5_924, 512, 100, 1.2),
    "cars512": (8_131, 512, 98, 1.0),
    "sop": (60_502, 512, 11_316, 1.15),
}
RECALL_AT = {size: (1, 10, 100, 1000) if size == "sop" else (1, 2, 4, 8) for size in SIZES}
VARIANTS = ("product", "recall", "report", "pml all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--threads", default=",".join(map(str, sorted({1, os.cpu_count() or 1}))))
    parser.add_argument("--repeats", type=int, default=3, help="rounds; at sop, where they take minutes, only one")
    parser.add_argument("--run", nargs=2, metavar=("VARIANT", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(*options.run)))
        return
    where, rows = machine("torch", "faiss-cpu", "pytorch-metric-learning", "scikit-learn", "numpy"), []
    for size in options.sizes.split(","):
        for threads in map(int, options.threads.split(",")):
            rows.append(compare(size, threads, options.repeats))
            print(text([rows[-1]]), flush=True)
            save("evaluate", where, rows, text(rows))  # after each, since some take an hour


def compare(size: str, threads: int, repeats: int) -> dict[str, Any]:
    """Medians of all variants at one size; the order is shuffled in each round."""
    runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    draw = random.Random(0)
    for _ in range(repeats if size != "sop" else 1):
        for variant in draw.sample(VARIANTS, len(VARIANTS)):
            runs[variant].append(run_alone(__file__, "--run", variant, size, threads=threads))
    result: dict[str, Any] = {"size": size, "threads": threads, "repeats": repeats, "variants": {}}
    for variant, measured in runs.items():
        result["variants"][variant] = {
            "seconds": statistics.median(m["seconds"] for m in measured),
            "megabytes": max(m["megabytes"] for m in measured),
            "values": measured[-1]["values"],
        }
    ours, theirs = (result["variants"][variant]["values"] for variant in ("report", "pml all"))
    result["largest_difference"] = max(
        abs(ours[name] - theirs[name]) for name in ours.keys() & theirs.keys() - {"nmi", "ami"}
    )
    seconds = {variant: medians["seconds"] for variant, medians in result["variants"].items()}
    result["report_speedup"] = seconds["pml all"] / seconds["report"]
    return result


def run(variant: str, size: str) -> dict[str, Any]:
    """Measure one variant in this process."""
    # Imported here so that the parent process stays small and the environment's thread settings take effect.
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    from softtriple.metrics.evaluate import Embeddings, evaluate
    from softtriple.search.knn import first_hit_ranks

    def product(vectors: Any, labels: Any) -> dict[str, float]:
        out = torch.empty(2048, 2048)
        for rows in vectors.split(2048):
            for cols in vectors.split(2048):
                torch.mm(rows, cols.T, out=out[: len(rows), : len(cols)])
        return {}

    def recall(vectors: Any, labels: Any) -> dict[str, float]:
        return {"precision_at_1": float((first_hit_ranks(vectors, labels) == 1).double().mean())}

    def report(vectors: Any, labels: Any) -> dict[str, float]:
        result = evaluate(Embeddings(vectors, labels), recall_at=RECALL_AT[size])
        return {name: getattr(result, name) for name in ("precision_at_1", "r_precision", "map_at_r", "nmi", "ami")}

    def pml(vectors: Any, labels: Any) -> dict[str, float]:
        names = {"mean_average_precision_at_r": "map_at_r", "NMI": "nmi", "AMI": "ami"}
        calculator = AccuracyCalculator(device=torch.device("cpu"), k="max_bin_count")
        values = calculator.get_accuracy(vectors, labels)
        return {names.get(name, name): value for name, value in values.items()}

    functions = {"product": product, "recall": recall, "report": report, "pml all": pml}
    vectors, labels = sample(*SIZES[size])
    function = functions[variant]
    function(vectors[:400], labels[:400])  # warm-up: libraries load and start their threads
    before = reset_peak_memory()
    start = time.perf_counter()
    values = function(vectors, labels)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "megabytes": (peak_memory() - before) / 1e6, "values": values}


def sample(count: int, dim: int, num_classes: int, noise: float) -> tuple[Any, Any]:
    """Unit vectors around class centres, with a decaying spectrum like that of trained embeddings."""
    import torch

    random = torch.Generator().manual_seed(0)
    labels = torch.arange(num_classes).repeat(2)
    more = torch.randint(num_classes, (count - len(labels),), generator=random)
    labels = torch.cat([labels, more]).sort().values
    spectrum = torch.arange(1, dim + 1).float() ** -0.5
    centers = torch.randn(num_classes, dim, generator=random)
    vectors = (centers[labels] + noise * torch.randn(count, dim, generator=random)) * spectrum
    return torch.nn.functional.normalize(vectors, dim=1), labels


def text(rows: list[dict[str, Any]]) -> str:
    cells = []
    for row in rows:
        floor = row["variants"]["product"]["seconds"]
        for variant, measured in row["variants"].items():
            seconds, megabytes = measured["seconds"], measured["megabytes"]
            numbers = [f"{seconds:.3f}", f"{seconds / floor:.2f}", f"{megabytes:.0f}"]
            cells.append([row["size"], str(row["threads"]), variant, *numbers])
    header = ["size", "threads", "variant", "seconds", "÷ product", "peak MB beyond the data"]
    return "\n".join([table(header, cells), *map(summary, rows)])


def summary(row: dict[str, Any]) -> str:
    ours, theirs = row["variants"]["report"]["values"], row["variants"]["pml all"]["values"]
    return (
        f"\n{row['size']}, {row['threads']} threads: the report {row['report_speedup']:.2f} times as fast as "
        f"PML's full set; largest difference {row['largest_difference']:.1e}. "
        f"Precision@1 {ours['precision_at_1']:.3f}; "
        f"NMI {ours['nmi']:.3f} (PML {theirs['nmi']:.3f}), AMI {ours['ami']:.3f} (PML {theirs['ami']:.3f})."
    )


if __name__ == "__main__":
    main()
