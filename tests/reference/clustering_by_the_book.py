"""Reference implementation of the clustering loss: plain loops over sets, in float64. Never optimise this."""

import math
from collections import Counter

import torch
from tests.reference.pairs_by_the_book import hinge, squared_distance
from tests.reference.softtriple_by_the_book import unit
from torch import Tensor


def entropy(partition: list[int]) -> float:
    return -sum(n / len(partition) * math.log(n / len(partition)) for n in Counter(partition).values())


def nmi(clusters: list[int], classes: list[int]) -> float:
    if len(set(clusters)) == 1 or len(set(classes)) == 1:
        return float(len(set(clusters)) == len(set(classes)))
    of_cluster, of_class, total = Counter(clusters), Counter(classes), len(classes)
    mutual = 0.0
    for (cluster, label), n in Counter(zip(clusters, classes, strict=True)).items():
        mutual += n / total * math.log(n * total / (of_cluster[cluster] * of_class[label]))
    return mutual / math.sqrt(entropy(clusters) * entropy(classes))


def assign(distance: list[list[float]], medoids: list[int]) -> list[int]:
    """The medoid (as an item) of each item: the nearest, of equally near ones the first; a medoid its own."""
    return [i if i in medoids else min(medoids, key=lambda m: distance[m][i]) for i in range(len(distance))]


def augmented_score(distance: list[list[float]], labels: list[int], medoids: list[int], gamma: float) -> float:
    """A(S) = F(S) + gamma (1 − NMI)."""
    score = -sum(min(distance[m][i] for m in medoids) for i in range(len(distance)))
    return score + gamma * (1 - nmi(assign(distance, medoids), labels))


def greedy(distance: list[list[float]], labels: list[int], gamma: float) -> list[int]:
    chosen: list[int] = []
    for _ in set(labels):
        free = [j for j in range(len(labels)) if j not in chosen]
        chosen.append(max(free, key=lambda j: augmented_score(distance, labels, [*chosen, j], gamma)))
    return chosen


def refine(distance: list[list[float]], labels: list[int], medoids: list[int], gamma: float, rounds: int) -> list[int]:
    medoids = list(medoids)
    for _ in range(rounds):
        assignment = assign(distance, medoids)
        for k, medoid in enumerate(list(medoids)):
            members = [i for i in range(len(labels)) if assignment[i] == medoid]

            def score(i: int, k: int = k, members: list[int] = members) -> float:
                swapped = [*medoids[:k], i, *medoids[k + 1 :]]
                within = sum(distance[i][j] for j in members)
                return -within + gamma * (1 - nmi(assign(distance, swapped), labels))

            medoids[k] = max(members, key=score)
    return medoids


def clustering(embeddings: Tensor, labels: list[int], gamma: float, rounds: int) -> Tensor:
    x = [unit(row) for row in embeddings]
    zero = torch.zeros((), dtype=torch.float64)
    distance = [[zero if i == j else squared_distance(x[i], x[j]).sqrt() for j in range(len(x))] for i in range(len(x))]
    numbers = [[float(d.detach()) for d in row] for row in distance]
    medoids = refine(numbers, labels, greedy(numbers, labels, gamma), gamma, rounds)
    assignment = assign(numbers, medoids)
    found = -sum((distance[medoid][i] for i, medoid in enumerate(assignment)), start=zero)
    oracle = zero
    for label in set(labels):
        members = [i for i in range(len(x)) if labels[i] == label]
        oracle = oracle + max(-sum((distance[j][i] for i in members), start=zero) for j in members)
    return hinge(found + gamma * (1 - nmi(assignment, labels)) - oracle)
