"""Reference implementation of HDC: plain loops over heads and pairs, in float64. Never optimise this."""

import math

import torch
from tests.reference.pairs_by_the_book import hinge, squared_distance
from tests.reference.softtriple_by_the_book import unit
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
        total_of_head, with_loss = torch.zeros((), dtype=torch.float64), 0
        for kind, candidates in seen.items():
            squared = {(i, j): squared_distance(x[i], x[j]) for i, j in candidates}
            # A positive pair is hard if it is far apart, a negative one if it is near.
            ranked = sorted(candidates, key=lambda pair: float(squared[pair].detach()), reverse=kind)
            kept[kind] = ranked[: math.ceil(share * len(candidates))]
            for pair in kept[kind]:
                loss = squared[pair] if kind else factor * hinge(margin - squared[pair])
                total_of_head = total_of_head + loss
                with_loss += int(loss > 0)
        total = total + total_of_head / max(with_loss, 1)
        if cascade:
            seen = kept
    return total
