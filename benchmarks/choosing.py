"""What K, gamma, scale, margin and tau do where a class hides modes: digits, of which training is told even or odd.

python benchmarks/choosing.py

The table of docs/choosing.md: each row changes one number. A linear map to 16 numbers is trained on half of the items;
of the other half are the accuracy on even against odd, and how well the digits themselves, which no loss has seen, are
retrieved. Mean and standard deviation over seeds.
"""

import argparse

import numpy as np
import torch
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


def measure(settings: dict[str, float], seed: int) -> list[float]:
    """Accuracy on even against odd, R@1 and MAP@R of the digits, all in per cent, and distinct centres a class."""
    pixels, digits = load_digits(return_X_y=True)
    pixels = pixels / 16
    order = np.random.default_rng(seed).permutation(len(digits))
    train, test = np.array_split(order, 2)
    model = SoftTripleEmbedding(16, epochs=10, random_state=seed, **settings).fit(pixels[train], digits[train] % 2)
    vectors = torch.from_numpy(model.transform(pixels[test]))
    found = evaluate(Embeddings(vectors, torch.from_numpy(digits[test])), kmeans_restarts=0, bootstrap=0)
    shares = [model.score(pixels[test], digits[test] % 2), found.recall[1], found.map_at_r]
    return [*(100 * share for share in shares), model.loss_.distinct_centers().double().mean().item()]


def main() -> None:
    parser = argparse.ArgumentParser(description="What the five numbers of SoftTriple do.")
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    print("| changed | even or odd | R@1 of digits | MAP@R of digits | centres a class |")
    print("|---|---|---|---|---|")
    for name, value in [("nothing", None), *((name, value) for name, values in TRIED.items() for value in values)]:
        settings = BASE if value is None else {**BASE, name: value}
        rows = np.array([measure(settings, seed) for seed in range(seeds)])
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(rows.mean(axis=0), rows.std(axis=0), strict=True)]
        print(f"| {name}{'' if value is None else f' {value:g}'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
