"""The configuration of each row of the tables: the settings in the paper, and protocols that change some of them.

Every method gets the budget of SoftTriple in the paper: the optimiser, batches of 32, 50 epochs. The options of a loss
have their defaults, which are taken from its own paper. Only HDC has its authors' batch size, because with 10 examples
per class a batch of 32 contains too few classes. ``configs/`` has a file per row, written by

    python -m softtriple.papers.recipes configs
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softtriple.config import PAPER, Config, with_values
from softtriple.papers.published import PublishedRow, PublishedTable, read_published

_BUDGET: dict[str, Any] = {
    "data.augment": "crop",
    "model.backbone": "bn-inception",
    "model.trainable": "all",
    "model.freeze_batch_norm": "statistics",
    **PAPER,
    "train.lr": 1e-4,
    "train.center_lr": 1e-2,
}
_SOFTTRIPLE: dict[str, Any] = {
    "loss.centers_per_class": 10,
    "loss.options.scale": 20.0,  # from the authors' code: the paper prints no λ
    "loss.options.gamma": 0.1,
    "loss.options.margin": 0.01,
    "loss.options.tau": 0.2,
}
# Stanford Online Products: batch norm is trained, centres learn faster, and a class has about five images.
_SOP_BUDGET: dict[str, Any] = {"model.freeze_batch_norm": "off", "train.center_lr": 0.1}
_SOP_SOFTTRIPLE: dict[str, Any] = {"loss.centers_per_class": 2, "loss.options.tau": 0.0}
# Ten classes of ten examples; a class of Stanford Online Products has only about five.
_HDC: dict[str, Any] = {"train.batch_size": 100}
_SOP_HDC: dict[str, Any] = {"loss.options.per_class": 5}

# What a protocol changes of the paper's settings. BN-Inception's weights are hard to come by, so "full" and "head" use
# a network whose weights come with the package: "full" trains all of it, as `train` does with a time budget, "head" a
# head on features that are computed once. "scratch" is for data other than photographs.
_LITE: dict[str, Any] = {
    "model.backbone": "efficientnet-lite0",
    "model.pooling": "average+max",
    "model.layer_norm": True,
    "model.head_init": "whitened",
    "model.head_center": 1.0,
    "train.schedule": "cosine",
    "train.milestones": "auto",
}
PROTOCOLS: dict[str, dict[str, Any]] = {
    "paper": {},
    "full": {
        **_LITE,
        "data.augment": "resized-crop",
        "model.input_size": 224,
        "model.eval_size": 256,
        "train.epochs": 6,
        "train.head_lr": 4e-4,
        "train.interpolate": 0.5,
    },
    "head": {
        **_LITE,
        "data.augment": "none",
        "model.trainable": "head",
        "model.input_size": 256,
        "train.views": 1,
        "train.batch_size": 128,
        "train.epochs": 10,
    },
    "scratch": dict.fromkeys(
        ("model.backbone", "model.trainable", "model.freeze_batch_norm", "data.augment", "train.lr"), "auto"
    ),
}
# Learning rates to choose from, for each method on its own, by held-out training classes.
RATES: dict[str, tuple[float, ...]] = {"head": (1e-4, 4e-4, 1.6e-3)}


def recipe(table: PublishedTable, row: PublishedRow) -> Config:
    """The configuration of a row, as in the paper."""
    return with_values(Config(), _settings(table, row))


def softtriple_recipe() -> Config:
    """The SoftTriple row of Table 1, which the figures of the paper vary."""
    table = read_published()["table1"]
    return recipe(table, next(row for row in table.rows if row.loss == "softtriple"))


def config_file(table: PublishedTable, row: PublishedRow) -> str:
    """The text of a row's file in ``configs/``: commands, time and published numbers, then the configuration."""
    data, number = table.data, table.name.removeprefix("table")
    reproduce = f"softtriple reproduce {table.name} --data {data.usual} --rows {row.loss}"
    full = f"softtriple train {data.usual} --config configs/{data.name}/{row.name}.toml"
    if row.loss == "hdc":  # its encoder has three heads, which no configuration describes
        full = f"{reproduce} --protocol paper"
    measured = "about one minute on one core, after ten minutes to cache the features"
    minutes = measured if data.name == "cub" else "minutes, not measured"
    printed = ", ".join(
        f"{column} {'-' if value is None else value}" for column, value in zip(table.columns, row.values, strict=True)
    )
    head = [
        f"{row.method} on {data.title}, {row.dim} dimensions.",
        f"published, Table {number}: {printed}{f' ({row.note})' if row.note else ''}",
        "",
        f"{full} --out runs/{data.name}_{row.name}",
        "    the settings that the paper uses for SoftTriple, on bn-inception; hours on a GPU, not measured",
        f"{reproduce} --protocol head --out runs/{data.name}",
        f"    only the head, on cached features of efficientnet-lite0 instead of the published network; {minutes}",
    ]
    if row.loss == "hdc":
        head += [
            "",
            "A record of the settings: softtriple train has no hdc, because HDC needs an encoder with three heads.",
        ]
    lines = [f"# {line}".rstrip() for line in head]
    groups: dict[str, list[str]] = {}
    for name, value in _settings(table, row).items():
        group, _, key = name.rpartition(".")
        groups.setdefault(group, []).append(f"{key} = {json.dumps(value)}")
    for group, settings in groups.items():
        lines += ["", f"[{group}]", *settings] if group else settings
    return "\n".join(lines) + "\n"


def config_files() -> dict[str, str]:
    """The text of every file in ``configs/``, by its path there."""
    return {
        f"{table.data.name}/{row.name}.toml": config_file(table, row)
        for table in read_published().values()
        for row in table.rows
    }


def _settings(table: PublishedTable, row: PublishedRow) -> Mapping[str, Any]:
    sop, ours, hdc = table.data.name == "sop", row.loss == "softtriple", row.loss == "hdc"
    return {
        "dataset": table.data.usual,
        **_BUDGET,
        **(_SOP_BUDGET if sop else {}),
        **(_HDC if hdc else {}),
        "model.dim": row.dim,
        "loss.name": row.loss,
        **(_SOFTTRIPLE if ours else {}),
        **(_SOP_SOFTTRIPLE if sop and ours else {}),
        **(_SOP_HDC if sop and hdc else {}),
    }


if __name__ == "__main__":
    for path, text in config_files().items():
        file = Path(sys.argv[1]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
