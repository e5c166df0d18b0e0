"""HDC as loops over heads and pairs, in float64. Never optimise this."""

import math

import torch
from tests.reference.softtriple_by_the_book import unit
from tests.reference.triplets_by_the_book import hinge, squared_distance
from torch import Tensor

Pair = tuple[int, int]


def hdc(
    embeddings: Tensor, labels: list[int], shares: list[float], *, cascade: bool, margin: float, factor: float
) -> Tensor:
    count = len(labels)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    seen = {kind: [(i, j) for i, j in pairs if (labels[i] == labels[j]) == kind] for kind in (True, False)}
    width = embeddings.shape[1] // len(shares)
    total = torch.zeros((), dtype=torch.float64)
    for head, share in enumerate(shares):
        x = [unit(row[head * width : (head + 1) * width]) for row in embeddings]
        kept: dict[bool, list[Pair]] = {}
        losses: dict[Pair, Tensor] = {}
        for kind, candidates in seen.items():
            for i, j in candidates:
                squared = squared_distance(x[i], x[j])
                losses[i, j] = squared if kind else factor * hinge(margin - squared)
            ranked = sorted(candidates, key=lambda pair: -float(losses[pair].detach()))
            hardest = ranked[: math.ceil(share * len(candidates))]
            kept[kind] = [pair for pair in hardest if losses[pair] > 0]
        hard = [losses[pair] for pair in kept[True] + kept[False]]
        total = total + sum(hard, start=torch.zeros((), dtype=torch.float64)) / max(len(hard), 1)
        if cascade:
            seen = kept
    return total
