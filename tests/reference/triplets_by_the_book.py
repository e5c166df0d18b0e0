"""Triplet losses as loops over anchors, positives and negatives, in float64. Never optimise this."""

import torch
from tests.reference.softtriple_by_the_book import dot, unit
from torch import Tensor


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    return dot(a - b, a - b)


def hinge(value: Tensor) -> Tensor:
    return value if value > 0 else 0 * value


def triplet(anchor: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Eq. 2 of the SoftTriple paper."""
    return hinge(margin + dot(anchor, negative) - dot(anchor, positive))


def semi_hard(embeddings: Tensor, labels: list[int], margin: float) -> Tensor:
    x = [unit(row) for row in embeddings]
    total, pairs = torch.zeros((), dtype=torch.float64), 0
    for a in range(len(x)):
        to_negatives = [squared_distance(x[a], x[n]) for n in range(len(x)) if labels[n] != labels[a]]
        for p in range(len(x)):
            if p == a or labels[p] != labels[a]:
                continue
            pairs += 1
            to_positive = squared_distance(x[a], x[p])
            beyond = [d for d in to_negatives if d > to_positive]
            if to_negatives:
                chosen = min(beyond) if beyond else max(to_negatives)
                total = total + hinge(margin + to_positive - chosen)
    return total / max(pairs, 1)
