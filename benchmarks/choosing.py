"""What K, gamma, scale, margin and tau do where a class hides modes: digits, of which training is told even or odd.

    python benchmarks/choosing.py [--seeds 3]

The table of docs/choosing.md: each row changes one number. A linear map to 16 dimensions is trained on half of the
items; of the other half are the accuracy on even against odd, and how well the digits themselves, which no loss has
seen, are retrieved. Mean and standard deviation over seeds.
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
TRIED = {
    "centers_per_class": [1, 2, 5, 20],
    "gamma": [0.02, 0.5],
    "scale": [5.0, 10.0, 40.0],
    "margin": [0.0, 0.1, 0.3],
    "tau": [0.0, 0.05, 1.0],
}


def measure(settings: dict[str, float], seed: int) -> dict[str, float]:
    """Accuracy on even against odd, R@1 and MAP@R of the digits, all in per cent, and distinct centres per class."""
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels / 16
    order = np.random.default_rng(seed).permutation(len(digits))
    train, test = np.array_split(order, 2)
    model = SoftTripleEmbedding(16, epochs=10, random_state=seed, **settings).fit(pixels[train], digits[train] % 2)
    vectors = torch.from_numpy(model.transform(pixels[test]))
    found = evaluate(Embeddings(vectors, torch.from_numpy(digits[test])), kmeans_restarts=0, bootstrap=0)
    return {
        "even or odd": 100 * model.score(pixels[test], digits[test] % 2),
        "R@1 of digits": 100 * found.recall[1],
        "MAP@R of digits": 100 * found.map_at_r,
        "centres per class": model.loss_.distinct_centers().double().mean().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What the five numbers of SoftTriple do.")
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    rows = []
    for name, value in [("nothing", None), *((name, value) for name, values in TRIED.items() for value in values)]:
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
