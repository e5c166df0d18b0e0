"""What one does with a trained run: evaluate it, embed with it, look at its centres."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from softtriple import dist
from softtriple.config import Config
from softtriple.data import (
    ImageFiles,
    Split,
    VectorFile,
    View,
    read_vectors,
    write_vectors,
)
from softtriple.files import explained
from softtriple.metrics import Report
from softtriple.metrics.evaluate import Embeddings, evaluate
from softtriple.models import Encoder, Preprocess
from softtriple.models.features import Feed, Reading, embed_share, pixel_feed
from softtriple.models.weights import read_tensors
from softtriple.progress import Reporter
from softtriple.training.run import RunDir
from softtriple.training.train import accuracy, embed_split, load_data, read_loss


def evaluate_run(path: Path, data: Config | None, reporter: Reporter) -> Report:
    """The report of the encoder in the run directory ``path`` on the test classes of its data, or of other ``data``."""
    run = RunDir(path)
    config = run.read_config()
    encoder = Encoder.load(path)
    benchmark = load_data(config if data is None else data, reporter)
    device = dist.device()
    encoder.to(device)
    splits = [benchmark.test, *([benchmark.gallery] if benchmark.gallery is not None else [])]
    found = [embed_split(encoder, still_feed(encoder, split), benchmark, device, reporter) for split in splits]
    gallery = found[1] if len(found) > 1 else None
    report = evaluate(found[0], gallery=gallery, recall_at=benchmark.recall_at, seed=config.train.seed)
    names = encoder.class_names
    return replace(report, accuracy=accuracy(found[0], names, lambda: read_loss(run, config, len(names))))


def evaluate_file(path: Path, gallery: Path | None = None, recall_at: Sequence[int] = (1, 2, 4, 8)) -> Report:
    """The report of vectors and labels in a .npz or .parquet file, searched among themselves or in another file."""
    found, items = _read_embeddings(path), None if gallery is None else _read_embeddings(gallery)
    if items is not None and found.class_names != items.class_names:
        raise ValueError(f"{gallery}: its class_names are not those of {path}, so that labels mean other classes")
    return evaluate(found, gallery=items, recall_at=recall_at)


def read_ranks(text: str) -> tuple[int, ...]:
    """The ks of Recall@k, as a person writes them.

    Example:
        >>> read_ranks("1,10,100")
        (1, 10, 100)
    """
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise ValueError(f"--recall-at {text}: give whole numbers, such as 1,10,100") from None


def embed_data(path: Path, data: Config, out: Path, reporter: Reporter) -> int:
    """Write the embeddings of all items that ``data`` names, by the encoder of the run ``path``; returns how many."""
    if out.suffix not in (".npz", ".parquet"):
        raise ValueError(f"{out}: embeddings are written as .npz or .parquet")
    encoder = Encoder.load(path)
    benchmark = load_data(data, reporter)
    device = dist.device()
    encoder.to(device)
    splits = [split for split in (benchmark.train, benchmark.test, benchmark.gallery) if split is not None]
    with reporter.task("embedding") as update:
        shares = [embed_share(encoder, still_feed(encoder, s), device=device, progress=update) for s in splits]
    with explained(out):  # no rank but the first has more than its share
        out.parent.mkdir(parents=True, exist_ok=True)
        parts = [dist.rows_on_main(share, out.parent) for share in shares]
    labels = np.concatenate([split.labels for split in splits])
    if dist.is_main():
        found = Embeddings(torch.cat(parts), torch.from_numpy(labels), class_names=benchmark.class_names)
        paths = tuple(path for split in splits if isinstance(split.items, ImageFiles) for path in split.items.paths)
        content = VectorFile(
            vectors=found.vectors.numpy(), labels=labels, paths=paths or None, class_names=benchmark.class_names
        )
        write_vectors(out, content)
    return len(labels)


def _read_embeddings(path: Path) -> Embeddings:
    found = read_vectors(path)
    vectors, labels = torch.from_numpy(found.vectors), torch.from_numpy(found.labels)
    return Embeddings(vectors, labels, class_names=found.class_names or ())


def still_feed(encoder: Encoder, split: Split) -> Feed:
    """The items of ``split`` as the encoder sees them in evaluation."""
    if not isinstance(encoder.preprocess, Preprocess):
        return pixel_feed(encoder, split, Reading())
    view = View(size=encoder.preprocess.size, resize=encoder.preprocess.resize)
    return pixel_feed(encoder, split, Reading(view))


def read_centers(run: RunDir, encoder: Encoder) -> Float[Tensor, "classes k dim"] | None:
    """The centres that the loss of a run has learned, or None where it has none for its classes."""
    if not run.centers_file.is_file():
        return None
    centers = read_tensors(run.centers_file).get("centers")
    if centers is None or centers.ndim != 3 or len(centers) != len(encoder.class_names):
        return None
    return centers.float()
