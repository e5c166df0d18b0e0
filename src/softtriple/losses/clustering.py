"""Clustering loss (Song et al., CVPR 2017): the true clustering of a batch must score better than any other.

A clustering is a set of medoids. Its score F is the negative sum of the distances of all examples to their nearest
medoid; the true clustering uses the best medoid of each class. The competitor is the set that maximises
A(S) = F(S) + gamma (1 − NMI), found greedily and then refined by swaps (PAM), as in TensorFlow's reference
implementation. Sets, assignments and NMI are constants for the gradient, which flows through the distances only.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from softtriple.losses.base import Labels, Loss, Vectors, require_count, require_nonnegative
from softtriple.losses.pairs import distances


def normalized_mutual_information(
    assignments: Int[Tensor, "sets items"], labels: Int[Tensor, " items"]
) -> Float[Tensor, " sets"]:
    """Mutual information of each clustering and the classes, divided by the geometric mean of their entropies.

    Clusters and classes are numbered from 0. It is 1 if both partitions have a single part, 0 if only one of them does.
    """
    num_clusters, num_classes = int(assignments.max()) + 1, int(labels.max()) + 1
    cells = assignments * num_classes + labels
    ones = torch.ones_like(cells, dtype=torch.float64)
    table = ones.new_zeros(len(cells), num_clusters * num_classes).scatter_add_(1, cells, ones)
    table = table.view(-1, num_clusters, num_classes)
    clusters, classes = table.sum(dim=2), table.sum(dim=1)
    cluster_entropy, class_entropy = _entropy(clusters), _entropy(classes)
    mutual = cluster_entropy + class_entropy - _entropy(table.flatten(1))
    divides, should_divide = (clusters > 0).sum(dim=1) > 1, (classes > 0).sum(dim=1) > 1
    neither = (~divides & ~should_divide).double()
    return torch.where(divides & should_divide, mutual / (cluster_entropy * class_entropy).sqrt(), neither)


def nearest_medoid(distance: Float[Tensor, "items items"], medoids: Int[Tensor, "sets k"]) -> Int[Tensor, "sets items"]:
    """Position of each item's nearest medoid in each set; a medoid is assigned to itself."""
    numbers = torch.arange(medoids.shape[1], device=medoids.device).expand_as(medoids)
    return distance[medoids].argmin(dim=1).scatter(1, medoids, numbers)


def greedy_medoids(
    distance: Float[Tensor, "items items"], labels: Int[Tensor, " items"], gamma: float
) -> Int[Tensor, " k"]:
    """As many medoids as classes, each chosen to maximise A of the set so far."""
    nearest = distance.new_full((len(distance),), torch.inf)
    assignment = torch.zeros_like(labels)
    chosen: list[int] = []
    for number in range(int(labels.max()) + 1):
        # Row j: the set with item j added.
        shortened = torch.minimum(distance, nearest)
        assignments = torch.where(distance < nearest, number, assignment).fill_diagonal_(number)
        score = gamma * (1 - normalized_mutual_information(assignments, labels)) - shortened.sum(dim=1)
        score[chosen] = -torch.inf
        best = int(score.argmax())
        nearest, assignment = shortened[best], assignments[best]
        chosen.append(best)
    return torch.tensor(chosen, device=labels.device)


def refined_medoids(
    distance: Float[Tensor, "items items"],
    labels: Int[Tensor, " items"],
    medoids: Int[Tensor, " k"],
    gamma: float,
    rounds: int,
) -> Int[Tensor, " k"]:
    """Medoids after at most ``rounds`` in which each cluster in turn makes its best member the medoid (PAM).

    The score of a member is the negative sum of its distances within the cluster, plus gamma (1 − NMI) after the swap.
    """
    for _ in range(rounds):
        before, medoids = medoids, medoids.clone()
        assignment = nearest_medoid(distance, medoids[None])[0]
        for number in range(len(medoids)):
            members = (assignment == number).nonzero().flatten()
            swapped = medoids.repeat(len(members), 1)
            swapped[:, number] = members
            agreement = normalized_mutual_information(nearest_medoid(distance, swapped), labels)
            score = gamma * (1 - agreement) - distance[members][:, members].sum(dim=1)
            medoids[number] = members[score.argmax()]
        if torch.equal(medoids, before):
            break
    return medoids


class ClusteringLoss(Loss):
    """By how much the best competing clustering of a batch outscores the true one: max(0, A(S) − F*).

    Args:
        num_classes, embedding_size, validate: as for every ``Loss``.
        gamma: weight of 1 − NMI, the structured margin.
        refinements: rounds of swaps after the greedy search.

    A sum over the batch, not a mean. Embeddings are normalised. Batches should contain 4 examples per class
    (``per_class``). With a single class, or one example per class, only one clustering exists and the value is 0.
    """

    per_class = 4

    def __init__(
        self, num_classes: int, embedding_size: int, *, gamma: float = 1.0, refinements: int = 5, validate: bool = True
    ) -> None:
        super().__init__(num_classes, embedding_size, validate=validate)
        self.gamma = require_nonnegative("gamma", gamma)
        self.refinements = refinements if refinements == 0 else require_count("refinements", refinements)

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Loss of the batch as a whole."""
        embeddings, labels = self.check_batch(embeddings, labels)
        distance = distances(F.normalize(embeddings, dim=-1))
        classes: Tensor = torch.unique(labels, return_inverse=True)[1]  # numbered from 0 without gaps
        with torch.no_grad():
            medoids = greedy_medoids(distance, classes, self.gamma)
            medoids = refined_medoids(distance, classes, medoids, self.gamma, self.refinements)
            assignment = nearest_medoid(distance, medoids[None])
            disagreement = 1 - normalized_mutual_information(assignment, classes)[0].to(distance.dtype)
        medoid_cost = distance.gather(1, medoids[assignment[0]][:, None]).sum()
        within = (distance * (classes[:, None] == classes)).sum(dim=1)
        true_cost = within.new_zeros(len(medoids)).scatter_reduce(0, classes, within, "amin", include_self=False).sum()
        return F.relu(true_cost - medoid_cost + self.gamma * disagreement)


def _entropy(counts: Float[Tensor, "sets parts"]) -> Float[Tensor, " sets"]:
    total = float(counts[0].sum())
    return math.log(total) - torch.xlogy(counts, counts).sum(dim=1) / total
