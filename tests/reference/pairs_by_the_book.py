"""Reference implementation of the losses over pairs and triplets: plain loops, in float64. Never optimise this."""

import math

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


def lifted(embeddings: Tensor, labels: list[int], margin: float) -> Tensor:
    x = list(embeddings)

    def distance(i: int, j: int) -> Tensor:
        return squared_distance(x[i], x[j]).sqrt()

    def pushes(i: int) -> list[Tensor]:
        return [(margin - distance(i, k)).exp() for k in range(len(x)) if labels[k] != labels[i]]

    total, pairs = torch.zeros((), dtype=torch.float64), 0
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            if labels[i] != labels[j]:
                continue
            pairs += 1
            if pushes(i):
                total = total + hinge(sum(pushes(i) + pushes(j)).log() + distance(i, j)) ** 2
    return total / (2 * max(pairs, 1))


def n_pairs(anchors: list[Tensor], positives: list[Tensor], labels: list[int], l2: float) -> Tensor:
    """Anchor i and positive i are of class ``labels[i]``."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(anchors)):
        logits = [dot(anchors[i], positive) for positive in positives]
        log_total = sum(z.exp() for z in logits).log()
        own = [j for j in range(len(labels)) if labels[j] == labels[i]]
        for j in own:
            total = total - (logits[j] - log_total) / len(own)
        total = total + l2 / 4 * (dot(anchors[i], anchors[i]) + dot(positives[i], positives[i]))
    return total / max(len(anchors), 1)


def negative_probabilities(
    distances: list[float], is_negative: list[bool], dim: int, nearest: float, farthest: float
) -> list[float]:
    """How likely one anchor draws each example."""
    weights = []
    for distance, negative in zip(distances, is_negative, strict=True):
        d = max(distance, nearest)
        drawn = negative and distance < farthest
        weights.append(d ** (2 - dim) * (1 - d * d / 4) ** ((3 - dim) / 2) if drawn else 0.0)
    if not sum(weights):
        weights = [float(negative) for negative in is_negative]
    return [weight / math.fsum(weights) for weight in weights]


def margin(
    embeddings: Tensor,
    triplets: list[tuple[int, int, int]],
    boundaries: list[Tensor],
    margin: float,
    nu: float,
) -> Tensor:
    """The margin loss of given triplets; ``boundaries`` are those of the anchors' classes."""
    x = [unit(row) for row in embeddings]
    total, active = torch.zeros((), dtype=torch.float64), 0
    for (a, p, n), beta in zip(triplets, boundaries, strict=True):
        inside = hinge(squared_distance(x[a], x[p]).sqrt() - beta + margin)
        outside = hinge(beta - squared_distance(x[a], x[n]).sqrt() + margin)
        active += int(inside > 0) + int(outside > 0)
        total = total + inside + outside + nu * beta
    return total / max(active, 1)
