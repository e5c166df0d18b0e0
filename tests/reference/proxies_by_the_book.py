"""Reference implementation of the proxy losses: plain loops, in float64. Never optimise this."""

import torch
from tests.reference.pairs_by_the_book import hinge, squared_distance
from tests.reference.softtriple_by_the_book import dot, unit
from torch import Tensor


def proxy_nca(
    embeddings: Tensor, labels: list[int], proxies: Tensor, scale: float, *, include_own: bool, bounded: bool
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row, label in zip(embeddings, labels, strict=True):
        near = [(-scale * squared_distance(unit(row), unit(proxy))).exp() for proxy in proxies]
        rivals = [value for c, value in enumerate(near) if include_own or c != label]
        loss = -(near[label] / sum(rivals)).log()
        total = total + (hinge(loss) if bounded else loss)
    return total / len(labels)


def proxy_anchor(embeddings: Tensor, labels: list[int], proxies: Tensor, scale: float, margin: float) -> Tensor:
    pull, push = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for c, proxy in enumerate(proxies):
        similarity = [dot(unit(row), unit(proxy)) for row in embeddings]
        own = [(-scale * (s - margin)).exp() for s, y in zip(similarity, labels, strict=True) if y == c]
        others = [(scale * (s + margin)).exp() for s, y in zip(similarity, labels, strict=True) if y != c]
        pull = pull + sum(own, start=torch.ones((), dtype=torch.float64)).log()
        push = push + sum(others, start=torch.ones((), dtype=torch.float64)).log()
    return pull / len(set(labels)) + push / len(proxies)
