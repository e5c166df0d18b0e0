"""Lifted structure as loops over unordered positive pairs and their negatives, in float64. Never optimise this."""

import torch
from tests.reference.triplets_by_the_book import hinge, squared_distance
from torch import Tensor


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
