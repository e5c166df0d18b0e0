"""How wide an embedding of texts should be: closed-form heads of several widths on held-out training classes.

    python benchmarks/widths.py --data intents.csv [--backbone text st:FOLDER]

The mean of four divisions of the training classes into halves; the test classes take no part. Each head is chosen
among those that training chooses from, so a width is judged by the best start it allows.
"""

import argparse
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measuring import machine, save, table

from softtriple.data import Texts, contiguous_labels, load_benchmark
from softtriple.models import Encoder
from softtriple.models.heads import closed_form_head
from softtriple.training.choose import SENTENCE_STARTS, TEXT_STARTS, class_splits, try_retrieval
from softtriple.training.start import initialize_backbone

SHARES = {"a sixth": 6, "a third": 3, "two thirds": 1.5, "all": 1}


def measure(data: str, backbone: str) -> dict[str, Any]:
    """Recall@1 and MAP@R by width, of the start that is best at that width."""
    train = load_benchmark(data).train
    assert isinstance(train.items, Texts)
    labels, _ = contiguous_labels(train.labels)
    trials: dict[str, dict[Any, list[Any]]] = {width: {} for width in SHARES}
    for rows, held_out in class_splits(labels):
        encoder = Encoder.from_backbone(backbone, dim=None)
        initialize_backbone(encoder, train.take(rows))
        features = torch.from_numpy(encoder.embed(list(train.items.values)))
        for width, share in SHARES.items():
            for start in TEXT_STARTS if backbone == "text" else SENTENCE_STARTS:
                dim = round(features.shape[1] / share)
                weight, bias = closed_form_head(features[rows], torch.from_numpy(labels[rows]), dim, start)
                embedded = F.linear(features.double(), weight, bias).float()
                trials[width].setdefault(start, []).append(try_retrieval(embedded, labels, held_out))
    means = {width: [np.mean(tried, axis=0) for tried in starts.values()] for width, starts in trials.items()}
    return {width: max(map(list, tried), key=sum) for width, tried in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--backbone", nargs="+", default=["text"])
    options = parser.parse_args()
    rows = []
    for data in options.data:
        for backbone in options.backbone:
            rows.append({"data": data, "backbone": backbone, "widths": measure(data, backbone)})
            print(text(rows[-1:]), flush=True)
    save("widths", machine("torch"), rows, text(rows))


def text(rows: list[dict[str, Any]]) -> str:
    """R@1 and MAP@R by the share of the features that is kept."""
    lines = [
        [row["data"], row["backbone"], *(f"{100 * r:.1f} / {100 * m:.1f}" for r, m in row["widths"].values())]
        for row in rows
    ]
    return table(["data", "features", *SHARES], lines)


if __name__ == "__main__":
    main()
