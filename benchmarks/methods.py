"""Every loss of the table on glyphs: one encoder, one budget, the same seeds; mean and spread.

    python benchmarks/methods.py [--data glyphs] [--losses softtriple,proxy-nca] [--epochs 4] [--seeds 3] [--lr 1e-3]

Settings are each method's defaults; nothing is tuned. The first row is the encoder before training.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import machine, save, table

from softtriple.config import Config, with_settings
from softtriple.losses import LOSSES
from softtriple.progress import Reporter
from softtriple.training.directory import RunDir
from softtriple.training.train import train

UNTRAINED = "untrained"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--losses", default=",".join([UNTRAINED, *LOSSES]))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", default="auto", help="the rate of the encoder")
    options = parser.parse_args()
    rows = []
    for name in options.losses.split(","):
        runs = [measure(options.data, name, options.epochs, seed, options.lr) for seed in range(options.seeds)]
        rows.append({"loss": name, "runs": runs})
        print(text(rows[-1:]), flush=True)
    save(f"methods_{options.data}", machine("torch"), rows, text(rows))


def measure(data: str, name: str, epochs: int, seed: int, lr: str) -> dict[str, Any]:
    """Train and evaluate once; the last quarter at a tenth of the rates."""
    budget = [
        f"train.epochs={epochs}",
        f"train.milestones=[{epochs * 3 // 4}]",
        "train.batch_size=64",
        f"train.lr={lr}",
    ]
    chosen = ["train.epochs=0"] if name == UNTRAINED else [f"loss.name={name}"]
    config = with_settings(Config(dataset=data), [*budget, f"train.lr={lr}", f"train.seed={seed}", *chosen])
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        outcome = train(config, RunDir(Path(folder) / "run"), Reporter(quiet=True))
        log = outcome.run.read_log()
    report = outcome.report
    return {
        "recall@1": report.recall[1],
        "map_at_r": report.map_at_r,
        "nmi": report.nmi,
        "last_loss": log[-1]["loss"] if log else None,
        "seconds": time.perf_counter() - start,
    }


def text(rows: list[dict[str, Any]]) -> str:
    body = []
    for row in rows:
        cells = []
        for metric in ("recall@1", "map_at_r", "nmi"):
            values = [100 * run[metric] for run in row["runs"]]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):.1f} ± {spread:.1f}")
        body.append([row["loss"], *cells, f"{statistics.mean(run['seconds'] for run in row['runs']):.0f} s"])
    return table(["loss", "R@1", "MAP@R", "NMI", "time"], body)


if __name__ == "__main__":
    main()
