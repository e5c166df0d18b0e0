"""Every loss on glyphs: one encoder, one budget, the same seeds; mean and standard deviation.

    python benchmarks/methods.py [--data glyphs] [--losses softtriple,proxy-nca] [--epochs 4] [--seeds 3] [--lr 1e-3]

Every method uses its default settings; nothing is tuned. The first row is the encoder before training. More settings,
and another name for the results, are given as in: --set train.precision=bfloat16 --name precision_bfloat16
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import machine, save, table

from softtriple import Config, Run, train
from softtriple.config import with_settings
from softtriple.losses import LOSSES
from softtriple.papers.hdc import train_hdc
from softtriple.progress import Reporter
from softtriple.training.directory import RunDir

UNTRAINED, HDC = "untrained", "hdc"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--losses", default=",".join([UNTRAINED, *LOSSES, HDC]))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3, help="number of runs per loss")
    parser.add_argument("--lr", default="auto", help="learning rate of the encoder")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SETTING", help="such as train.precision=bfloat16"
    )
    parser.add_argument("--name", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    more = [f"train.lr={options.lr}", *options.set]
    rows = []
    for name in options.losses.split(","):
        runs = [measure(options.data, name, options.epochs, seed, more) for seed in range(options.seeds)]
        rows.append({"loss": name, "runs": runs})
        print(text(rows[-1:]), flush=True)
    save(options.name or f"methods_{options.data}", machine("torch"), rows, text(rows))


def measure(data: str, name: str, epochs: int, seed: int, more: list[str]) -> dict[str, Any]:
    """Train and evaluate once; the learning rates drop to a tenth for the last quarter of the epochs."""
    settings = [
        f"train.epochs={0 if name == UNTRAINED else epochs}",
        f"train.milestones=[{epochs * 3 // 4}]",
        "train.batch_size=64",
        f"train.seed={seed}",
        *more,
    ]
    if name != UNTRAINED:
        settings.append(f"loss.name={name}")
    start = time.perf_counter()
    run = fit(with_settings(Config(dataset=data), settings))
    return {
        "recall@1": run.report.recall[1],
        "map_at_r": run.report.map_at_r,
        "nmi": run.report.nmi,
        "last_loss": run.log[-1]["loss"] if run.log else None,
        "seconds": time.perf_counter() - start,
    }


def fit(config: Config) -> Run:
    """Train as ``config`` says, without keeping any files; HDC is not in the table of losses."""
    quiet = Reporter(quiet=True)
    if config.loss.name != HDC:
        return train(config.dataset, config=config, reporter=quiet)
    with tempfile.TemporaryDirectory() as folder:
        three_heads = with_settings(config, ["model.dim=63"])
        return train_hdc(three_heads, RunDir(Path(folder) / "run"), quiet)


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
