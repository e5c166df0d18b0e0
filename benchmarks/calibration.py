"""Wanted false-accept rate against the one measured on classes never used: random halves of the test classes.

    python benchmarks/calibration.py --data cub:PATH glyphs [--splits 20] [--far 0.01 0.05] [--runs runs/calibration]

One run is trained per data set, and its test classes are divided in two: one half calibrates, the other measures.
Then the threshold of a quarter of the classes is used in galleries that are larger than any it was calibrated with.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch.nn.functional as F
from measuring import machine, save, table

from softtriple import Config, Run, train
from softtriple.config import with_settings
from softtriple.metrics import Calibration, Embeddings, calibrate, open_set
from softtriple.metrics.calibration import match_masses, sample_rows
from softtriple.metrics.probability import calibration_error, log_odds_map, reliability
from softtriple.progress import Reporter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["glyphs"])
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--far", type=float, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--runs", type=Path, default=Path("runs/calibration"), help="finished runs here are used again")
    parser.add_argument("--name", default="calibration", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    rows = []
    for data in options.data:
        embedded = test_embeddings(data, options.runs, options.settings)
        for far in options.far:
            splits = [measure(embedded, far, seed) for seed in range(options.splits)]
            larger = [measure_larger(embedded, far, seed) for seed in range(options.splits)]
            rows.append({"data": data.partition(":")[0], "far": far, "splits": splits, "larger": larger})
            print(text(rows[-1:]), flush=True)
    save(options.name, machine("torch", "scikit-learn"), rows, text(rows))


def test_embeddings(data: str, runs: Path, settings: list[str]) -> Embeddings:
    """The embeddings of the test classes by a run with the defaults."""
    directory = runs / data.partition(":")[0]
    if not (directory / "report.json").is_file():
        train(data, out=directory, config=with_settings(Config(), settings), reporter=Reporter())
    return Run.load(directory).test_embeddings


def measure(embedded: Embeddings, far: float, seed: int) -> dict[str, Any]:
    """Calibrate on a random half of the classes and measure on the other half, with a gallery of the same size."""
    classes = shuffled_classes(embedded, seed)
    half = len(classes) // 2
    calibration = calibrate(only(embedded, classes[:half]), source="half of the test classes", far=far, seed=seed)
    trials = make_trials(only(embedded, classes[half:]), seed)
    low, high = calibration.expected(len(classes) - half)
    measured = false_accepts(trials, calibration.gallery_classes, calibration.threshold)
    return {
        "threshold": calibration.threshold,
        "measured": measured,
        "expected": [low, high],
        "inside": low <= measured <= high,
        **errors(trials, calibration),
    }


def measure_larger(embedded: Embeddings, far: float, seed: int) -> dict[str, Any]:
    """Calibrate on a quarter of the classes; measure galleries of half of all of them, which it has not seen."""
    classes = shuffled_classes(embedded, seed)
    quarter = len(classes) // 4
    calibration = calibrate(only(embedded, classes[:quarter]), source="a quarter", far=far, seed=seed)
    trials = make_trials(only(embedded, classes[quarter:]), seed)
    gallery = min(len(classes) // 2, trials[0].best.shape[1] - 1)  # trials are of a bounded number of classes
    adjusted = calibration.at(gallery, round(gallery * calibration.items_per_class)).threshold
    return {
        "calibrated": calibration.gallery_classes,
        "gallery": gallery,
        "unadjusted": false_accepts(trials, gallery, calibration.threshold),
        "adjusted": false_accepts(trials, gallery, adjusted),
    }


def errors(trials: list[open_set.Trial], calibration: Calibration) -> dict[str, float]:
    """Calibration error of similarities and of probabilities."""
    thresholds = open_set.grid(trials)
    rates = open_set.rates(open_set.count(trials, thresholds), calibration.gallery_classes, thresholds)
    masses = match_masses(rates)
    size = calibration.at(calibration.gallery_classes, 0)
    said = {
        "error_before": masses.scores.clip(0, 1),
        "error_after": log_odds_map(size.slope, size.intercept, masses.scores),
    }
    return {name: calibration_error(reliability(masses, values)) for name, values in said.items()}


def false_accepts(trials: list[open_set.Trial], gallery: int, threshold: float) -> float:
    """The false-accept rate at ``threshold``."""
    at = np.array([threshold])
    return float(open_set.rates(open_set.count(trials, at), gallery, at).false_accept[0])


def make_trials(embedded: Embeddings, seed: int) -> list[open_set.Trial]:
    """Trials with as many items per class as a calibration uses."""
    labels = embedded.labels.numpy()
    rows = sample_rows(labels, seed)
    numbers = np.unique(labels[rows], return_inverse=True)[1]
    return open_set.make_trials(F.normalize(embedded.vectors[rows].float(), dim=1), numbers, seed)


def shuffled_classes(embedded: Embeddings, seed: int) -> np.ndarray:
    """The classes in random order."""
    return np.random.default_rng(seed).permutation(np.unique(embedded.labels.numpy()))


def only(embedded: Embeddings, classes: np.ndarray) -> Embeddings:
    """The items of these classes."""
    rows = np.flatnonzero(np.isin(embedded.labels.numpy(), classes))
    return Embeddings(embedded.vectors[rows], embedded.labels[rows], class_names=embedded.class_names)


def text(rows: list[dict[str, Any]]) -> str:
    """Both tables, in per cent."""
    columns = [
        "data",
        "wanted",
        "measured, mean (range)",
        "inside interval",
        "median interval",
        "error before",
        "after",
    ]
    lines = []
    for row in rows:
        splits = row["splits"]
        measured = [one["measured"] for one in splits]
        ends = (statistics.median(one["expected"][end] for one in splits) for end in (0, 1))
        lines.append(
            [
                row["data"],
                percent(row["far"]),
                spread(measured),
                f"{sum(one['inside'] for one in splits)} of {len(splits)}",
                " to ".join(map(percent, ends)),
                *(percent(statistics.mean(one[name] for one in splits)) for name in ("error_before", "error_after")),
            ]
        )
    larger = []
    for row in rows:
        first = row["larger"][0]
        larger.append(
            [
                row["data"],
                percent(row["far"]),
                f"{first['calibrated']} classes",
                f"{first['gallery']} classes",
                *(spread([one[name] for one in row["larger"]]) for name in ("unadjusted", "adjusted")),
            ]
        )
    sizes = ["data", "wanted", "calibrated gallery", "searched gallery", "same threshold", "threshold for its size"]
    return f"{table(columns, lines)}\n\n{table(sizes, larger)}"


def spread(shares: list[float]) -> str:
    """Mean and range in per cent."""
    return f"{percent(statistics.mean(shares))} ({percent(min(shares))} to {percent(max(shares))})"


def percent(share: float) -> str:
    return f"{100 * share:.2f}"


if __name__ == "__main__":
    main()
