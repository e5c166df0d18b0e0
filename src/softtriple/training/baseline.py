"""The baseline that training has to beat: the metrics of untrained embeddings.

For images and sentence models these are the features of the untrained backbone, at full width and reduced to the width
of the embedding by PCA; for vectors the vectors themselves; for texts TF-IDF on character n-grams.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float32
from torch import Tensor

from softtriple.data import Benchmark, Texts
from softtriple.metrics import Embeddings, Report, difference_intervals, evaluate
from softtriple.models import Encoder
from softtriple.models.features import Feeds, feature_rows
from softtriple.models.heads import pca_head
from softtriple.training.loading import QUIET
from softtriple.training.measure import embed_split

# Up to this many texts TF-IDF similarities are exact; beyond, they are approximated by this many singular vectors.
EXACT_TEXTS = 4000
SINGULAR_VECTORS = 1024


def measure_baseline(
    encoder: Encoder, feeds: Feeds, benchmark: Benchmark, train_features: Tensor, *, seed: int
) -> dict[str, Report]:
    """Reports of untrained embeddings of the test items by name, the one to beat first.

    ``encoder`` must not have been trained; ``train_features`` are its pooled features of the training items.
    """
    parts = [benchmark.test] if benchmark.gallery is None else [benchmark.test, benchmark.gallery]

    def report(vectors: Sequence[Tensor]) -> Report:
        embedded = [
            Embeddings(rows, torch.from_numpy(part.labels), class_names=benchmark.class_names)
            for rows, part in zip(vectors, parts, strict=True)
        ]
        gallery = embedded[1] if len(embedded) > 1 else None
        return evaluate(embedded[0], gallery=gallery, recall_at=benchmark.recall_at, seed=seed)

    reports = {}
    if isinstance(benchmark.train.items, Texts):
        tests = [part.items.values for part in parts if isinstance(part.items, Texts)]
        reports["TF-IDF on character 3- to 5-grams"] = report(tfidf_vectors(benchmark.train.items.values, tests))
        if encoder.config.backbone == "text":
            return reports
    features = [encoder.head_input(feature_rows(encoder, feeds.evaluation(part))) for part in parts]
    name = "the vectors themselves" if encoder.takes == "vector" else "untrained features"
    reports[f"{name}, {features[0].shape[1]}-d"] = report(features)
    if encoder.dim < min(features[0].shape[1], len(train_features) - 1):
        weight, bias = pca_head(encoder.head_input(train_features), encoder.dim)
        reports[f"PCA to {encoder.dim}-d"] = report(
            [F.linear(rows.double(), weight, bias).float() for rows in features]
        )
    return reports


def measure_encoder(encoder: Encoder, feeds: Feeds, benchmark: Benchmark, *, seed: int) -> Report:
    """The report of the encoder on the test items."""
    test, gallery = (
        None if part is None else embed_split(encoder, feeds, part, benchmark.class_names, QUIET)
        for part in (benchmark.test, benchmark.gallery)
    )
    assert test is not None
    return evaluate(test, gallery=gallery, recall_at=benchmark.recall_at, seed=seed)


def verdict(baseline: Report, trained: Report) -> str | None:
    """One sentence if training did not clearly improve on ``baseline``, else None."""
    differences = difference_intervals(baseline, trained)
    better = {name: difference for name, difference in differences.items() if difference.low > 0}
    saturated = baseline.recall[min(baseline.recall)] > 0.97
    if "map_at_r" in better and ("recall@1" in better or (saturated and differences["recall@1"].high >= 0)):
        return None
    changes = ", ".join(
        f"{title} {100 * d.mean:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})"
        for title, d in (("R@1", differences["recall@1"]), ("MAP@R", differences["map_at_r"]))
    )
    return (
        f"Training did not clearly improve on the baseline: {changes}. Try more classes or items per class, "
        "another --backbone, or a larger --dim."
    )


def tfidf_vectors(train: Sequence[str], parts: Sequence[Sequence[str]]) -> list[Float32[Tensor, "texts dim"]]:
    """Dense vectors of the texts in ``parts`` with the cosines of their TF-IDF vectors; idf is that of ``train``.

    The vectors of n texts span at most n dimensions, so a Cholesky factor of their Gram matrix has the same cosines as
    the sparse rows of tens of thousands of columns.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.utils.extmath import randomized_svd

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5)).fit(train)
    rows = vectorizer.transform([text for part in parts for text in part])
    if rows.shape[0] <= EXACT_TEXTS:
        gram = torch.from_numpy((rows @ rows.T).toarray())
        factor = torch.linalg.cholesky(gram + 1e-9 * torch.eye(len(gram), dtype=gram.dtype))
    else:
        left, values, _ = randomized_svd(rows, SINGULAR_VECTORS, random_state=0)
        factor = torch.from_numpy(left * values)
    return list(torch.split(factor.float(), [len(part) for part in parts]))
