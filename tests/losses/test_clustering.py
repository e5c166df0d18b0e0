"""The clustering loss against plain loops over sets of medoids."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from tests.losses.problems import assert_same_with_gradient, random_batch
from tests.reference import clustering_by_the_book as book

from softtriple.losses import ClusteringLoss
from softtriple.losses.clustering import greedy_medoids, normalized_mutual_information, refined_medoids
from softtriple.losses.pairs import distances


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 10),
    num_classes=st.integers(1, 4),
    gamma=st.sampled_from([0.0, 1.0, 10.0]),
    rounds=st.sampled_from([0, 1, 5]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient_are_the_references(
    size: int, num_classes: int, gamma: float, rounds: int, seed: int
) -> None:
    embeddings, labels = random_batch(seed, size, num_classes, 3)
    expected = book.clustering(embeddings, labels.tolist(), gamma, rounds)
    found = ClusteringLoss(num_classes, 3, gamma=gamma, refinements=rounds)(embeddings, labels)
    assert_same_with_gradient(found, expected, embeddings, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 1.0, 10.0])
def test_greedy_choice_and_swaps_come_near_the_best_set_of_medoids(gamma: float) -> None:
    shortfalls = []
    for seed in range(10):
        embeddings, labels = random_batch(seed, 8, 3, 3)
        labels = torch.unique(labels, return_inverse=True)[1]
        distance = distances(torch.nn.functional.normalize(embeddings.detach(), dim=-1))
        medoids = refined_medoids(distance, labels, greedy_medoids(distance, labels, gamma), gamma, 5)
        numbers, classes = distance.tolist(), labels.tolist()
        everything = itertools.combinations(range(8), len(set(classes)))
        best = max(book.augmented_score(numbers, classes, list(chosen), gamma) for chosen in everything)
        shortfalls.append(best - book.augmented_score(numbers, classes, medoids.tolist(), gamma))
    assert min(shortfalls) > -1e-9
    assert sum(shortfalls) / len(shortfalls) < 0.5


@settings(deadline=None, max_examples=40)
@given(size=st.integers(1, 30), clusters=st.integers(1, 6), classes=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_mutual_information_is_that_of_scikit_learn(size: int, clusters: int, classes: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    assignments = torch.randint(clusters, (3, size), generator=random)
    labels = torch.randint(classes, (size,), generator=random)
    expected = [
        normalized_mutual_info_score(labels.numpy(), assignment.numpy(), average_method="geometric")
        for assignment in assignments
    ]
    torch.testing.assert_close(
        normalized_mutual_information(assignments, labels), torch.tensor(expected, dtype=torch.float64)
    )


def test_well_separated_classes_cost_nothing() -> None:
    centers = torch.eye(3).repeat_interleave(4, dim=0)
    embeddings = (centers + 0.001 * torch.randn(12, 3, generator=torch.Generator().manual_seed(0))).requires_grad_()
    value = ClusteringLoss(3, 3)(embeddings, torch.arange(3).repeat_interleave(4))
    value.backward()
    # Both clusterings are the same, but their costs are sums in different orders, which processors round differently.
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert embeddings.grad is not None
    assert embeddings.grad.abs().sum().item() == pytest.approx(0, abs=1e-6)
