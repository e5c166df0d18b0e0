"""Clustering loss (Song et al., CVPR 2017): the true clustering must score better than any other of the batch.

A clustering is a set of medoids. Its score F is minus the sum of the distances of all examples to their nearest
medoid; the true one may take the best medoid of each class. The competitor is the set that maximises
A(S) = F(S) + gamma (1 − NMI), found by greedy choice and then by swaps (PAM), as in TensorFlow's reference
implementation. Sets, assignments and NMI are constants for the gradient: only the two sums of distances have one.
"""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from softtriple.losses.checks import at_least_one, checked_batch, not_negative
from softtriple.losses.pairwise import distances


def normalized_mutual_information(
    assignments: Int[Tensor, "sets items"], labels: Int[Tensor, " items"]
) -> Float[Tensor, " sets"]:
    """Mutual information of each clustering and the classes, over the geometric mean of their entropies.

    From one contingency table for each clustering; clusters and classes are numbered from 0. Two partitions that do
    not divide at all agree (1); if only one of them divides, it is 0.
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
    """For each set of medoids the number of each item's nearest one; a medoid is always its own."""
    numbers = torch.arange(medoids.shape[1], device=medoids.device).expand_as(medoids)
    return distance[medoids].argmin(dim=1).scatter(1, medoids, numbers)


def greedy_medoids(
    distance: Float[Tensor, "items items"], labels: Int[Tensor, " items"], gamma: float
) -> Int[Tensor, " k"]:
    """As many medoids as there are classes, each chosen to maximise A of the set so far."""
    nearest = distance.new_full((len(distance),), torch.inf)
    assignment = torch.zeros_like(labels)
    chosen: list[int] = []
    for number in range(int(labels.max()) + 1):
        # Row j is what the set would be with item j added.
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
    """Medoids after ``rounds`` in which each cluster in turn takes the best of its members for its medoid (PAM).

    A member is as good as minus its distances within the cluster, plus gamma (1 − NMI) once it is the medoid.
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
        if torch.equal(medoids, before):  # so it would stay
            break
    return medoids


class ClusteringLoss(nn.Module):
    """How much better the best wrong clustering of a batch scores than the true one: max(0, A(S) − F*).

    Args:
        num_classes: classes in the data; labels are 0 to ``num_classes - 1``.
        embedding_size: width of the embeddings.
        gamma: weight of 1 − NMI, the structured margin.
        refinements: rounds of swaps after the greedy choice.
        validate: check the values of each batch (finite, labels in range). On a GPU that waits for the device.

    A sum over the batch, not a mean. Lengths of the embeddings do not matter. Wants batches of 4 examples a class
    (``per_class``). With one class only, or all classes different, there is only one clustering: the value is 0.
    """

    per_class: ClassVar[int | None] = 4

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        gamma: float = 1.0,
        refinements: int = 5,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.num_classes = at_least_one("num_classes", num_classes)
        self.embedding_size = at_least_one("embedding_size", embedding_size)
        self.gamma, self.validate = not_negative("gamma", gamma), validate
        self.refinements = refinements if refinements == 0 else at_least_one("refinements", refinements)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Loss of the batch as a whole."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, self.validate)
        distance = distances(F.normalize(embeddings, dim=-1))
        classes: Tensor = torch.unique(labels, return_inverse=True)[1]  # numbered from 0 without a gap
        with torch.no_grad():
            medoids = greedy_medoids(distance, classes, self.gamma)
            medoids = refined_medoids(distance, classes, medoids, self.gamma, self.refinements)
            assignment = nearest_medoid(distance, medoids[None])
            disagreement = 1 - normalized_mutual_information(assignment, classes)[0].to(distance.dtype)
        found_cost = distance.gather(1, medoids[assignment[0]][:, None]).sum()
        within = (distance * (classes[:, None] == classes)).sum(dim=1)
        true_cost = within.new_zeros(len(medoids)).scatter_reduce(0, classes, within, "amin", include_self=False).sum()
        return F.relu(true_cost - found_cost + self.gamma * disagreement)


def _entropy(counts: Float[Tensor, "sets parts"]) -> Float[Tensor, " sets"]:
    total = float(counts[0].sum())
    return math.log(total) - torch.xlogy(counts, counts).sum(dim=1) / total
