"""The effect of K, gamma, scale, margin and tau on classes with hidden modes: digits labelled only even or odd.

    python benchmarks/choosing.py [--seeds 3]

Produces the table in docs/choosing.md; each row changes one hyperparameter. A linear map to 16 dimensions is trained on
half of the items. The other half measures the accuracy on even vs. odd and the retrieval of the digits themselves,
whose labels training never sees. Mean and standard deviation over seeds.
"""

import argparse
import statistics
from typing import Any

import numpy as np
import torch
from measuring import machine, save, table
from sklearn.datasets import load_digits

from softtriple import Embeddings, SoftTripleEmbedding, evaluate

BASE = {"centers_per_class": 10, "gamma": 0.1, "scale": 20.0, "margin": 0.01, "tau": 0.2}
VALUES = {
    "centers_per_class": [1, 2, 5, 20],
    "gamma": [0.02, 0.5],
    "scale": [5.0, 10.0, 40.0],
    "margin": [0.0, 0.1, 0.3],
    "tau": [0.0, 0.05, 1.0],
}


def measure(settings: dict[str, float], seed: int) -> dict[str, float]:
    """Accuracy on even vs. odd, R@1 and MAP@R of the digits, all in percent, and distinct centres per class."""
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels / 16
    order = np.random.default_rng(seed).permutation(len(digits))
    train, test = np.array_split(order, 2)
    model = SoftTripleEmbedding(16, epochs=10, random_state=seed, **settings).fit(pixels[train], digits[train] % 2)
    vectors = torch.from_numpy(model.transform(pixels[test]))
    report = evaluate(Embeddings(vectors, torch.from_numpy(digits[test])), kmeans_restarts=0, bootstrap=0)
    return {
        "even or odd": 100 * model.score(pixels[test], digits[test] % 2),
        "R@1 of digits": 100 * report.recall[1],
        "MAP@R of digits": 100 * report.map_at_r,
        "centres per class": model.loss_.distinct_centers().double().mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of runs per row")
    seeds = parser.parse_args().seeds
    rows = []
    for name, value in [("nothing", None), *((name, value) for name, values in VALUES.items() for value in values)]:
        settings = BASE if value is None else {**BASE, name: value}
        changed = name if value is None else f"{name} {value:g}"
        rows.append({"changed": changed, "runs": [measure(settings, seed) for seed in range(seeds)]})
        print(text(rows[-1:]), flush=True)
    save("choosing", machine("torch", "scikit-learn"), rows, text(rows))


def text(rows: list[dict[str, Any]]) -> str:
    titles = list(rows[0]["runs"][0])
    body = []
    for row in rows:
        columns = [[run[title] for run in row["runs"]] for title in titles]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in columns]
        cells = [
            f"{statistics.mean(values):.1f} ± {spread:.1f}" for values, spread in zip(columns, spreads, strict=True)
        ]
        body.append([row["changed"], *cells])
    return table(["changed", *titles], body)


if __name__ == "__main__":
    main()
