"""Reference implementation of HTL: plain loops over classes, levels and triplets, in float64. Never optimise this."""

import torch
from tests.reference.pairs_by_the_book import hinge, squared_distance
from tests.reference.softtriple_by_the_book import unit
from torch import Tensor


def class_distances(embeddings: Tensor, labels: list[int], num_classes: int) -> list[list[float]]:
    """d(p, q) for p ≠ q, and the spread s_p in place of d(p, p)."""
    x = [unit(row) for row in embeddings]
    found = [[0.0] * num_classes for _ in range(num_classes)]
    for p in range(num_classes):
        for q in range(num_classes):
            terms = [
                float(squared_distance(x[i], x[j]))
                for i in range(len(x))
                for j in range(len(x))
                if labels[i] == p and labels[j] == q and i != j
            ]
            found[p][q] = sum(terms) / len(terms)
    return found


def thresholds(class_distance: list[list[float]], levels: int) -> list[float]:
    spreads = [row[c] for c, row in enumerate(class_distance)]
    lowest = sum(spreads) / len(spreads)
    return [level * (4 - lowest) / levels + lowest for level in range(levels + 1)]


def merge_level(class_distance: list[list[float]], bounds: list[float], p: int, q: int) -> int:
    """The first level whose threshold lets one walk from p to q by steps between classes below it."""
    if p == q:
        return 0
    for level in range(1, len(bounds)):
        reached, waiting = {p}, [p]
        while waiting:
            here = waiting.pop()
            for there in range(len(class_distance)):
                if there not in reached and class_distance[here][there] < bounds[level]:
                    reached.add(there)
                    waiting.append(there)
        if q in reached:
            return level
    return len(bounds) - 1


def htl(embeddings: Tensor, labels: list[int], margins: list[list[float]], *, squared: bool) -> Tensor:
    """The loss with the margin ``margins[p][q]`` for an anchor of class p and a negative of class q."""
    x = [unit(row) for row in embeddings]
    total, triplets = torch.zeros((), dtype=torch.float64), 0
    for a in range(len(x)):
        for p in range(len(x)):
            for n in range(len(x)):
                if a == p or labels[a] != labels[p] or labels[a] == labels[n]:
                    continue
                triplets += 1
                near, far = squared_distance(x[a], x[p]), squared_distance(x[a], x[n])
                if not squared:
                    near, far = near.sqrt(), far.sqrt()
                total = total + hinge(near - far + margins[labels[a]][labels[n]])
    return total / (2 * max(triplets, 1))
