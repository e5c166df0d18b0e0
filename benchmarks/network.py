"""How to train all layers of EfficientNet-Lite0: retrieval of held-out *training* classes of CUB-200-2011.

    python benchmarks/network.py --data cub:PATH --size 224 --eval-size 256 --epochs 4 --shares 0.5 1

One half of the training classes is trained on, the other half is searched; test classes are not read. The head
starts from within-class whitening and the centres from k-means, as in `softtriple train`; Adam with a cosine schedule
per step, whose first epoch raises the rate of the backbone from zero. ``--shares`` are the final weights: 0 is the
start, 1 the end of training. A row for each of them is printed, after one for the start.
"""

import argparse
import math
from collections.abc import Iterator

import numpy as np
import torch
from measuring import machine, save, table

from softtriple import Encoder, SoftTripleLoss, evaluate
from softtriple.data import Split, View, contiguous_labels, load_benchmark, shuffled
from softtriple.models.features import Reading, embed_feed, feature_rows, item_feed
from softtriple.models.heads import Start, closed_form_head
from softtriple.training.auto import has_bfloat16
from softtriple.training.choose import class_splits
from softtriple.training.start import initialize_centers, set_between, trained_values

HEAD_LR, CENTER_LR, BATCH, CENTERS = 4e-4, 1e-2, 32, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--size", type=int, default=224, help="pixels in training")
    parser.add_argument("--eval-size", type=int, default=256, help="pixels in evaluation")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-4, help="of the backbone")
    parser.add_argument("--synthesis", type=float, default=0.0)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 1.0])
    parser.add_argument("--split", type=int, default=2, help="which division of the training classes")
    parser.add_argument("--name", default="network", help="name of the files in benchmarks/results")
    options = parser.parse_args()
    split = load_benchmark(options.data).train
    rows, held_out = class_splits(split.labels)[options.split]
    results = list(measure(split.take(rows), split.take(held_out), options))
    row = {**vars(options), "data": options.data.partition(":")[0], "results": results}  # without the path
    save(options.name, machine("torch"), [row], text(results))
    print(text(results))


def measure(training: Split, unseen: Split, options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Recall@1 and MAP@R of ``unseen`` at the start and for each share."""
    labels, classes = contiguous_labels(training.labels)
    encoder = Encoder.from_backbone(
        "efficientnet-lite0", dim=512, pooling="average+max", layer_norm=True,
        input_size=options.size, eval_size=options.eval_size,
    )  # fmt: skip
    encoder.freeze_batch_norm("statistics")
    loss = SoftTripleLoss(len(classes), encoder.dim, CENTERS, synthesis=options.synthesis, validate=False)
    with half():
        features = encoder.head_input(feature_rows(encoder, item_feed(encoder, training, reading(encoder, "none"))))
    encoder.set_head(*closed_form_head(features, torch.from_numpy(labels), encoder.dim, Start(center=1.0)))
    initialize_centers(loss, encoder, features, labels)
    start = trained_values(encoder)
    yield {"share": 0.0, **retrieval(encoder, unseen)}
    fit(encoder, loss, training, labels, options)
    end = trained_values(encoder)
    for share in options.shares:
        set_between(encoder, start, end, share)
        yield {"share": share, **retrieval(encoder, unseen)}


def fit(encoder: Encoder, loss: SoftTripleLoss, split: Split, labels: np.ndarray, options: argparse.Namespace) -> None:
    """Train all layers."""
    assert encoder.head is not None
    optimizer = torch.optim.Adam(
        [
            {"params": list(encoder.backbone.parameters()), "base": options.lr},
            {"params": list(encoder.head.parameters()), "base": HEAD_LR},
            {"params": list(loss.parameters()), "base": CENTER_LR},
        ]
    )
    feed = item_feed(encoder, split, reading(encoder, "resized-crop")).only(np.arange(len(split)), labels)
    per_epoch, step = math.ceil(len(split) / BATCH), 0
    for epoch in range(options.epochs):
        network = encoder.train().fast()
        for inputs, numbers in feed.batches(shuffled(len(split), BATCH, 0, epoch), epoch):
            factor = (1 + math.cos(math.pi * step / (per_epoch * options.epochs))) / 2
            for part, group in enumerate(optimizer.param_groups):
                ramp = min(1.0, (step + 1) / per_epoch) if part == 0 else 1.0
                group["lr"] = group["base"] * factor * ramp
            with half():
                embeddings = network(inputs)
            optimizer.zero_grad()
            loss(embeddings.float(), numbers).backward()
            optimizer.step()
            step += 1


def retrieval(encoder: Encoder, split: Split) -> dict[str, float]:
    """Recall@1 and MAP@R."""
    with half():
        vectors = embed_feed(encoder, item_feed(encoder, split, reading(encoder, "none")))
    labels = torch.from_numpy(split.labels)
    report = evaluate(vectors, labels, recall_at=(1,), kmeans_restarts=0, bootstrap=0)
    return {"recall@1": report.recall[1], "map_at_r": report.map_at_r}


def reading(encoder: Encoder, augment: str) -> Reading:
    """The evaluation view, or random boxes of the same images."""
    view = encoder.preprocess.eval_view
    return Reading(view if augment == "none" else View(size=encoder.preprocess.size, resize=256, augment=augment))


def half() -> torch.autocast:
    """The network computes in bfloat16, if the processor has instructions for it."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=has_bfloat16(torch.device("cpu")))


def text(results: list[dict[str, float]]) -> str:
    """A row for each share."""
    shown = [[f"{row['share']:g}", *(f"{100 * row[name]:.2f}" for name in ("recall@1", "map_at_r"))] for row in results]
    return table(["share", "R@1", "MAP@R"], shown)


if __name__ == "__main__":
    main()
