"""Training with the defaults against what it starts from, on unseen classes: mean over seeds, paired intervals.

    python benchmarks/baseline.py --data digits glyphs cub:PATH [--seeds 3] [--set model.dim=64]

``noise`` stands for scikit-learn's digits beside 64 columns of noise, split by class.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
from measuring import machine, save, table
from sklearn.datasets import load_digits

from softtriple import Config, Run, train
from softtriple.config import with_settings
from softtriple.metrics import difference_intervals
from softtriple.progress import Reporter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "noise", "glyphs"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--name", default="baseline", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for data in options.data:
        rows.append({"data": data.partition(":")[0], "settings": options.settings, "runs": []})
        for seed in range(options.seeds):
            rows[-1]["runs"].append(measure(data, seed, options.settings))
            save(options.name, machine("torch"), rows, text(rows))  # after each, since some take hours
        print(text(rows[-1:]), flush=True)


def measure(data: str, seed: int, settings: list[str]) -> dict[str, Any]:
    """Train once with the defaults; the result beside its baselines."""
    config = with_settings(Config(), [f"train.seed={seed}", *settings])
    start = time.perf_counter()
    run: Run = train(noisy_digits() if data == "noise" else data, config=config, reporter=Reporter(quiet=True))
    assert run.baseline is not None
    differences = difference_intervals(run.baseline, run.report)
    return {
        "dim": run.encoder.dim,
        "baselines": {n: {"recall@1": r.recall[1], "map_at_r": r.map_at_r} for n, r in run.baselines.items()},
        "recall@1": run.report.recall[1],
        "map_at_r": run.report.map_at_r,
        "nmi": run.report.nmi,
        "differences": {name: difference._asdict() for name, difference in differences.items()},
        "seconds": time.perf_counter() - start,
    }


def noisy_digits() -> tuple[np.ndarray, np.ndarray]:
    """Digits beside as many columns of noise of the same standard deviation."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    noise = pixels.std() * np.random.default_rng(0).standard_normal(pixels.shape)
    return np.concatenate([pixels, noise.astype(np.float32)], axis=1), labels


def text(rows: list[dict[str, Any]]) -> str:
    """R@1 and MAP@R of the baselines and after training; the difference is to the first baseline, first seed."""
    columns = ["data", "dim", "embeddings", "R@1", "MAP@R", "R@1 difference", "MAP@R difference", "seconds"]
    lines = []
    for row in rows:
        runs = row["runs"]
        for name, values in runs[0]["baselines"].items():
            shares = [f"{100 * values[metric]:.2f}" for metric in ("recall@1", "map_at_r")]
            lines.append([row["data"], "", name, *shares, "", "", ""])
        means = (spread([run[metric] for run in runs]) for metric in ("recall@1", "map_at_r"))
        gains = (interval(runs[0]["differences"][metric]) for metric in ("recall@1", "map_at_r"))
        seconds = f"{statistics.mean(run['seconds'] for run in runs):.0f}"
        lines.append([row["data"], str(runs[0]["dim"]), "trained", *means, *gains, seconds])
    return table(columns, lines)


def spread(values: list[float]) -> str:
    """Mean and standard deviation in per cent."""
    deviation = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{deviation}"


def interval(difference: dict[str, float]) -> str:
    """A paired difference with its 95 % interval, in points."""
    return f"{100 * difference['mean']:+.2f} ({100 * difference['low']:+.2f} to {100 * difference['high']:+.2f})"


if __name__ == "__main__":
    main()
