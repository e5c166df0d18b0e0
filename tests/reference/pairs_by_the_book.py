"""N-pairs and the margin loss as loops over pairs, in float64. Never optimise this."""

import math

import torch
from tests.reference.softtriple_by_the_book import dot, unit
from tests.reference.triplets_by_the_book import hinge, squared_distance
from torch import Tensor


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
