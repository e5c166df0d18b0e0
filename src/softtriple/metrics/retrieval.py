"""Retrieval metrics from the labels of neighbours, best neighbour first.

``positives`` is R: how many items of its own class a query can find, itself not counted. A query with R = 0 can
find nothing; R-precision and MAP@R are not defined for it and leave it out of their mean.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def recall_at_k(neighbor_labels: Int[Tensor, "queries k_max"], labels: Int[Tensor, " queries"], k: int) -> float:
    """Share of queries with a neighbour of their own class among the first ``k``.

    Not information-retrieval recall: one hit is enough. A query that has nothing to find counts as a miss;
    ``Report.recall`` leaves it out.

    Example:
        >>> recall_at_k(torch.tensor([[1, 0], [2, 1]]), torch.tensor([0, 2]), k=1)
        0.5
    """
    hits = neighbor_labels[:, :k] == labels[:, None]
    return hits.any(dim=1).double().mean().item()


def precision_at_1(neighbor_labels: Int[Tensor, "queries k_max"], labels: Int[Tensor, " queries"]) -> float:
    """Share of queries whose first neighbour has their own class; the same number as Recall@1.

    Example:
        >>> precision_at_1(torch.tensor([[1, 0], [2, 1]]), torch.tensor([0, 2]))
        0.5
    """
    return recall_at_k(neighbor_labels, labels, k=1)


def r_precision(
    neighbor_labels: Int[Tensor, "queries k_max"],
    labels: Int[Tensor, " queries"],
    positives: Int[Tensor, " queries"],
) -> float:
    """Mean share of the first R neighbours that have the query's class.

    Example:
        A query of class 5 with R = 3 positives, two of which are among its first three neighbours.

        >>> round(r_precision(torch.tensor([[5, 8, 5, 5]]), torch.tensor([5]), torch.tensor([3])), 4)
        0.6667
    """
    return precision_per_query(neighbor_labels, labels, positives)[0][positives > 0].mean().item()


def map_at_r(
    neighbor_labels: Int[Tensor, "queries k_max"],
    labels: Int[Tensor, " queries"],
    positives: Int[Tensor, " queries"],
) -> float:
    """Mean over queries of 1/R times the sum, over the hits among the first R neighbours, of the precision there.

    Unlike R-precision it rewards hits that come early (Musgrave et al., ECCV 2020).

    Example:
        R = 3, hits at ranks 1 and 3, precision 1/1 and 2/3 there: (1 + 2/3) / 3.

        >>> round(map_at_r(torch.tensor([[5, 8, 5, 5]]), torch.tensor([5]), torch.tensor([3])), 4)
        0.5556
    """
    return precision_per_query(neighbor_labels, labels, positives)[1][positives > 0].mean().item()


def precision_per_query(
    neighbor_labels: Int[Tensor, "queries k_max"],
    labels: Int[Tensor, " queries"],
    positives: Int[Tensor, " queries"],
) -> tuple[Float[Tensor, " queries"], Float[Tensor, " queries"]]:
    """R-precision of each query and its term in MAP@R, in float64; 0 where R = 0."""
    k_max, needed = neighbor_labels.shape[1], int(positives.amax()) if len(positives) else 0
    if k_max < needed:
        raise ValueError(f"{k_max} neighbours a query do not reach rank R = {needed}, the most positives of a query")
    ranks = torch.arange(1, k_max + 1, device=labels.device)
    hits = ((neighbor_labels == labels[:, None]) & (ranks <= positives[:, None])).double()
    precision = hits.cumsum(dim=1) / ranks
    # Summed one by one, so that padding beyond rank R changes nothing, not even the last bit.
    total = (precision * hits).cumsum(dim=1)[:, -1:].sum(dim=1)
    count = positives.clamp(min=1)
    return hits.sum(dim=1) / count, total / count
