"""What an encoder reaches on a benchmark: embeddings of a split, and the report on them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from softtriple import dist
from softtriple.data import Benchmark, Split
from softtriple.losses import Loss
from softtriple.metrics import Embeddings, Report, evaluate
from softtriple.models import Encoder
from softtriple.models.features import Feeds, embed_together
from softtriple.progress import Reporter


def embed_split(
    encoder: Encoder, feeds: Feeds, split: Split, class_names: Sequence[str], reporter: Reporter
) -> Embeddings:
    """The embeddings of the items of ``split``; over ranks, on all of them."""
    feed = feeds.evaluation(split)
    with reporter.task("embedding") as update:
        vectors = embed_together(encoder, feed, progress=update)
    return Embeddings(vectors, torch.from_numpy(split.labels), class_names=tuple(class_names))


def evaluate_benchmark(
    benchmark: Benchmark,
    test: Embeddings,
    gallery: Embeddings | None,
    trained: Sequence[str],
    get_loss: Callable[[], Loss],
    *,
    seed: int,
) -> Report:
    """The report of the test items of ``benchmark`` by their embeddings, searched among themselves or in a gallery."""
    report = evaluate(test, gallery=gallery, recall_at=benchmark.recall_at, seed=seed)
    return replace(report, accuracy=accuracy(test, trained, get_loss), incomplete=benchmark.incomplete)


def evaluate_prefixes(
    benchmark: Benchmark, test: Embeddings, gallery: Embeddings | None, widths: Sequence[int], *, seed: int
) -> dict[int, Report]:
    """The report of the first numbers of each embedding, for each of ``widths``; without k-means."""
    return {
        width: evaluate(
            replace(test, vectors=test.vectors[:, :width]),
            gallery=None if gallery is None else replace(gallery, vectors=gallery.vectors[:, :width]),
            recall_at=benchmark.recall_at,
            kmeans_restarts=0,
            seed=seed,
        )
        for width in widths
    }


def accuracy(embeddings: Embeddings, trained: Sequence[str], get_loss: Callable[[], Loss]) -> float | None:
    """Share of items whose most similar class is their own, by the loss on the first rank.

    None if there are classes that were not trained on, or if the loss knows no similarity to a class.

    Example:
        >>> from torch import nn
        >>> from softtriple.losses import NormalizedSoftmaxLoss
        >>> loss = NormalizedSoftmaxLoss(num_classes=2, embedding_size=2)
        >>> loss.centers = nn.Parameter(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        >>> vectors = torch.tensor([[1.0, 0.1], [0.1, 1.0], [0.9, 1.0], [1.0, 0.9]])
        >>> embeddings = Embeddings(vectors, torch.tensor([0, 1, 1, 1]), class_names=("cat", "dog"))
        >>> accuracy(embeddings, ("cat", "dog"), lambda: loss)
        0.75
    """
    number = {name: number for number, name in enumerate(trained)}
    expected = [number.get(embeddings.class_name(label)) for label in embeddings.labels.tolist()]
    if None in expected:
        return None
    return dist.from_main(lambda: _share_predicted(get_loss(), embeddings.vectors, torch.tensor(expected)))


def _share_predicted(loss: Loss, vectors: Tensor, expected: Tensor) -> float | None:
    device = next((parameter.device for parameter in loss.parameters()), torch.device("cpu"))
    right = 0
    with torch.no_grad():
        for part, classes in zip(torch.split(vectors, 1024), torch.split(expected, 1024), strict=True):
            predicted = loss.predict(part.to(device))
            if predicted is None:
                return None
            right += int((predicted.cpu() == classes).sum())
    return right / len(vectors)
