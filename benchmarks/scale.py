"""A training step of SoftTriple as the number of classes grows: one and two processes, with and without sampling.

    python benchmarks/scale.py [--classes 10000,100000] [--processes 1,2] [--rates 1.0,0.1]

A step is forward, backward and Adam over the centres (K = 2, d = 128) for a global batch of 64 examples, without an
encoder. Each process has one thread. Wall-clock and CPU times are lower quartiles of 20 steps, which other load
disturbs less than medians. Memory is the peak of a process from its start to the end of an epoch, where distinct
centres are counted; it includes Python and torch (about 0.3 GB).
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F
from measuring import machine, peak_memory, reset_peak_memory, run_alone, save, table

from softtriple import SoftTripleLoss, dist
from softtriple.losses import SampledSoftTripleLoss, sample_classes, shard
from softtriple.training.memory import estimate_memory
from softtriple.training.optim import RowAdam

BATCH, DIM, K, STEPS = 64, 128, 2, 20


def train(num_classes: int, rate: float) -> dict[str, float]:
    """Train for 20 steps on all ranks; return the time of the slowest rank and the memory of the largest."""
    reset_peak_memory()
    torch.manual_seed(0)
    with torch.device("meta" if dist.world_size() > 1 else "cpu"):
        whole = SoftTripleLoss(num_classes, DIM, K)
    loss = sample_classes(shard(whole), rate)
    sampled = isinstance(loss, SampledSoftTripleLoss)
    parameters = list(loss.parameters())
    optimizer = RowAdam(parameters, lr=0.01) if sampled else torch.optim.Adam(parameters, lr=0.01, fused=True)
    expected = estimate_memory(torch.nn.Identity(), loss, BATCH)
    mine, seconds, busy = dist.share(BATCH), [], []
    for _ in range(STEPS):
        embeddings = F.normalize(torch.randn(BATCH, DIM), dim=1)[mine].requires_grad_()
        labels = torch.randint(num_classes, (BATCH,))[mine]
        dist.barrier()
        start, start_busy = time.perf_counter(), time.process_time()
        optimizer.zero_grad(set_to_none=True)
        loss(embeddings, labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - start_busy)
    loss.distinct_centers()  # computed at the end of every epoch; the peak includes it
    times = [statistics.quantiles(values, n=4)[0] for values in (seconds, busy)]
    measured = dist.gather_objects((*times, peak_memory()))
    slowest, busiest, largest = (max(values) for values in zip(*measured, strict=True))
    return {"seconds": slowest, "cpu_seconds": busiest, "peak_bytes": largest, "expected_bytes": sum(expected)}


def measure(num_classes: int, processes: int, rate: float) -> dict[str, float]:
    arguments = (__file__, "--train", str(num_classes), str(rate))
    if processes == 1:
        return run_alone(*arguments, threads=1)
    launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    return run_alone("-m", *launcher, *arguments, threads=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", default="10000,100000,1000000")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--rates", default="1.0,0.1")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        with dist.joined():
            measured = train(int(arguments.train[0]), float(arguments.train[1]))
            if dist.is_main():
                print(json.dumps(measured))
        return
    rows = []
    for num_classes in map(int, arguments.classes.split(",")):
        for rate in map(float, arguments.rates.split(",")):
            for processes in map(int, arguments.processes.split(",")):
                measured = measure(num_classes, processes, rate)
                rows.append({"classes": num_classes, "rate": rate, "processes": processes, **measured})
                print(rows[-1], flush=True)
    save("scale", machine("torch"), rows, text(rows))


def text(rows: list[dict[str, float]]) -> str:
    header = [
        "classes",
        "sample rate",
        "processes",
        "steps/s",
        "CPU time per step, per process",
        "peak memory per process",
        "state and tiles, estimated",
    ]
    body = [
        [
            f"{row['classes']:,}",
            f"{row['rate']:g}",
            f"{row['processes']}",
            f"{1 / row['seconds']:.3g}",
            f"{row['cpu_seconds']:.3g} s",
            f"{row['peak_bytes'] / 1e9:.2f} GB",
            f"{row['expected_bytes'] / 1e9:.2f} GB",
        ]
        for row in rows
    ]
    return table(header, body)


if __name__ == "__main__":
    main()
