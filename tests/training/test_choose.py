"""What held-out training classes decide, on made vectors whose answer is known."""

import numpy as np
import pytest
import torch
from torch import Tensor

from softtriple.models.heads import Head, Start, closed_form_head
from softtriple.training.choose import (
    IDENTITY,
    IMAGE_STARTS,
    SHARES,
    VECTOR_STARTS,
    Trial,
    best_choice,
    choose_share,
    choose_start,
    class_splits,
    interpolate,
    tried_rows,
    try_retrieval,
)


def clusters(classes: int, per_class: int, width: int, noise: float, seed: int = 0) -> tuple[Tensor, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    centers = random.standard_normal((classes, width))
    return torch.from_numpy(centers[labels] + noise * random.standard_normal((len(labels), width))).float(), labels


def with_nuisance(classes: int = 24, per_class: int = 8) -> tuple[Tensor, np.ndarray]:
    """Tight clusters in 6 columns beside 12 columns of strong noise."""
    signal, labels = clusters(classes, per_class, 6, 0.3)
    noise = 3 * torch.randn(len(labels), 12, generator=torch.Generator().manual_seed(1))
    return torch.cat([signal, noise], dim=1), labels


def trial_by_loops(vectors: Tensor, labels: np.ndarray, queries: list[int], gallery: list[int]) -> Trial:
    """Recall@1 and MAP@R of the queries by their definitions."""
    unit = (vectors / vectors.norm(dim=1, keepdim=True)).double()
    hits, precisions = [], []
    for query in queries:
        others = [row for row in gallery if row != query]
        relevant = sum(labels[row] == labels[query] for row in others)
        if not relevant:
            continue
        ranked = sorted(others, key=lambda row, query=query: -float(unit[query] @ unit[row]))
        hits.append(labels[ranked[0]] == labels[query])
        total = 0.0
        for place in range(relevant):
            if labels[ranked[place]] == labels[query]:
                total += sum(labels[row] == labels[query] for row in ranked[: place + 1]) / (place + 1)
        precisions.append(total / relevant)
    return Trial(float(np.mean(hits)), float(np.mean(precisions)))


def held_out_recall(features: Tensor, labels: np.ndarray, start: Start | None) -> float:
    """Mean Recall@1 of held-out halves, by loops; None is the features as they are."""
    recalls = []
    for train, held_out in class_splits(labels):
        vectors = features
        if start is not None:
            weight, bias = closed_form_head(features[train], torch.from_numpy(labels[train]), features.shape[1], start)
            vectors = features.double() @ weight.T + bias
        recalls.append(trial_by_loops(vectors, labels, list(held_out), list(held_out)).recall)
    return float(np.mean(recalls))


# The start of the head.


def test_whitening_is_chosen_where_nuisance_dominates() -> None:
    features, labels = with_nuisance()
    start = choose_start(features, labels, VECTOR_STARTS)
    assert start.power > 0
    assert held_out_recall(features, labels, start) > held_out_recall(features, labels, None) + 0.2


def test_vectors_that_are_a_good_metric_are_kept() -> None:
    features, labels = clusters(24, 8, 12, 0.1)
    assert choose_start(features, labels, VECTOR_STARTS) == IDENTITY


def test_columns_of_other_units_are_standardized() -> None:
    features, labels = clusters(24, 8, 6, 0.3)
    units = torch.tensor([1e4, 1.0, 1.0, 1.0, 1.0, 1.0])
    starts = (IDENTITY, Start(0.0, 0.0), Start(0.0, 0.1, standardize=True))
    assert choose_start(features * units, labels, starts).standardize


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_start_loses_recall_against_the_plain_features(noise: float, seed: int) -> None:
    features, labels = clusters(20, 6, 8, noise, seed)
    features = features + 0.5
    start = choose_start(features, labels, VECTOR_STARTS)
    assert held_out_recall(features, labels, start) >= held_out_recall(features, labels, None) - 1e-9


def test_the_plain_features_are_kept_if_every_start_loses_recall() -> None:
    """Classes are directions, lengths vary: subtracting the mean of classes that lie on one side loses directions."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 6)
    angles = np.linspace(0.2, 1.4, 20)[labels] + 0.005 * random.standard_normal(len(labels))
    lengths = random.uniform(0.1, 10, len(labels))
    features = torch.from_numpy(lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)).float()
    starts = (Start(0.0, 0.0), Start(0.5, 0.3), Start(1.0, 0.1))
    assert all(held_out_recall(features, labels, start) < held_out_recall(features, labels, None) for start in starts)
    assert choose_start(features, labels, starts) == IDENTITY


def test_a_start_is_judged_in_the_width_of_the_embedding() -> None:
    """Whitening amplifies faint noise, which drowns the classes unless principal components leave it out."""
    features, labels = clusters(24, 8, 6, 0.15)
    random = np.random.default_rng(1)
    nuisance, noise = (random.standard_normal((len(labels), columns)) for columns in (1, 200))
    features = torch.cat([features, torch.from_numpy(nuisance).float(), 1e-3 * torch.from_numpy(noise).float()], dim=1)
    starts = (IDENTITY, Start(1.0, 0.0))
    assert choose_start(features, labels, starts) == IDENTITY
    assert choose_start(features, labels, starts, dim=8) == Start(1.0, 0.0)


def test_the_order_of_items_does_not_matter() -> None:
    features, labels = with_nuisance()
    order = np.random.default_rng(0).permutation(len(labels))
    assert choose_start(features[order], labels[order], VECTOR_STARTS) == choose_start(features, labels, VECTOR_STARTS)


def test_three_classes_are_enough() -> None:
    features, labels = clusters(3, 10, 5, 0.2)
    assert choose_start(features, labels, VECTOR_STARTS) in VECTOR_STARTS


def test_classes_of_one_item_decide_nothing() -> None:
    features, labels = clusters(6, 1, 5, 0.2)
    assert choose_start(features, labels, IMAGE_STARTS) == IMAGE_STARTS[0]


# How far to train.


def head(seed: int, dim: int = 4, width: int = 4) -> Head:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(dim, width, generator=random), torch.randn(dim, generator=random)


def signal_and_noise() -> tuple[Head, Head]:
    """Heads that keep only the signal and only the noise of `with_nuisance`."""
    signal = torch.diag(torch.tensor([1.0] * 6 + [0.0] * 12))
    return (signal, torch.zeros(18)), (torch.eye(18) - signal, torch.zeros(18))


def test_no_training_if_training_hurts() -> None:
    features, labels = with_nuisance()
    signal, noise = signal_and_noise()
    gains = choose_share(signal, {1: noise, 2: noise}, features, labels, [18])
    assert gains[0, 0.0] == Trial(0.0, 0.0)
    assert set(gains) == {(0, 0.0), *((epoch, share) for epoch in (1, 2) for share in SHARES)}
    assert gains[1, 1.0].recall < -0.5
    choice = best_choice([gains])
    assert (choice.epochs, choice.share, choice.gain) == (0, 0.0, Trial(0.0, 0.0))


def test_no_training_if_nothing_changes() -> None:
    features, labels = clusters(20, 6, 4, 0.2)
    start = (torch.eye(4), torch.zeros(4))
    choice = best_choice([choose_share(start, {1: start}, features, labels, [18])])
    assert (choice.epochs, choice.share) == (0, 0.0)


def test_the_epoch_that_helps_is_chosen() -> None:
    features, labels = with_nuisance()
    signal, noise = signal_and_noise()
    ends = {1: noise, 2: signal, 3: noise}
    choice = best_choice([choose_share((torch.eye(18), torch.zeros(18)), ends, features, labels, [18])] * 2)
    assert (choice.epochs, choice.share) == (2, 1.0)
    before = trial_by_loops(features, labels, list(range(len(labels))), list(range(len(labels))))
    after = trial_by_loops(features[:, :6], labels, list(range(len(labels))), list(range(len(labels))))
    assert choice.gain.recall == pytest.approx(after.recall - before.recall)
    assert choice.gain.map_at_r == pytest.approx(after.map_at_r - before.map_at_r)


def test_splits_are_averaged() -> None:
    none = {(0, 0.0): Trial(0.0, 0.0)}
    first = none | {(1, 0.5): Trial(0.3, 0.3), (1, 1.0): Trial(0.1, 0.1)}
    second = none | {(1, 0.5): Trial(0.0, -0.0), (1, 1.0): Trial(0.1, 0.5)}
    choice = best_choice([first, second])
    assert (choice.epochs, choice.share) == (1, 1.0)
    assert choice.gain == pytest.approx((0.1, 0.3))


@pytest.mark.parametrize(
    "gains",
    [
        [Trial(0.3, 0.3), Trial(-0.1, -0.1)],  # one split denies what the other promises
        [Trial(0.3, -0.1), Trial(0.3, -0.1)],  # one metric gains what the other loses
        [Trial(-0.1, 0.3), Trial(-0.1, 0.3)],
    ],
)
def test_a_gain_that_is_not_sure_is_left(gains: list[Trial]) -> None:
    choice = best_choice([{(0, 0.0): Trial(0.0, 0.0), (1, 1.0): gain} for gain in gains])
    assert (choice.epochs, choice.share) == (0, 0.0)


def test_interpolation_ends_at_its_ends() -> None:
    start, end = head(0), head(1)
    for share, expected in ((0.0, start), (1.0, end)):
        for ours, theirs in zip(interpolate(start, end, share), expected, strict=True):
            torch.testing.assert_close(ours, theirs.double())
    for ours, one, other in zip(interpolate(start, end, 0.25), start, end, strict=True):
        torch.testing.assert_close(ours, 0.75 * one.double() + 0.25 * other.double())


# Held-out classes.


@pytest.mark.parametrize("classes", [2, 3, 7, 10])
def test_splits_are_halves_of_the_classes_and_hold_out_each(classes: int) -> None:
    labels = 5 * np.random.default_rng(0).permutation(np.repeat(np.arange(classes), 3))  # with gaps, in any order
    times = dict.fromkeys(np.unique(labels).tolist(), 0)
    splits = list(class_splits(labels))
    assert len(splits) == 4
    for train, held_out in splits:
        assert sorted([*train, *held_out]) == list(range(len(labels)))
        seen, unseen = set(labels[train].tolist()), set(labels[held_out].tolist())
        assert not seen & unseen
        assert abs(len(seen) - len(unseen)) <= 1
        for label in unseen:
            times[label] += 1
    assert set(times.values()) == {2}
    names = sorted(times)
    assert set(labels[splits[0][1]].tolist()) == set(names[: classes // 2])


def test_many_classes_search_among_themselves() -> None:
    vectors, labels = clusters(24, 4, 5, 0.8)
    rows = np.flatnonzero(labels < 12)
    ours = try_retrieval(vectors, labels, rows)
    assert ours == pytest.approx(trial_by_loops(vectors, labels, list(rows), list(rows)))


def test_few_classes_search_all_items() -> None:
    vectors, labels = clusters(6, 8, 5, 0.8)
    rows = np.flatnonzero(labels < 3)
    ours = try_retrieval(vectors, labels, rows)
    assert ours == pytest.approx(trial_by_loops(vectors, labels, list(rows), list(range(len(labels)))))
    assert ours.recall < trial_by_loops(vectors, labels, list(rows), list(rows)).recall


@pytest.mark.parametrize(
    ("classes", "size", "kept", "each"),
    [
        (4000, 5, 2000, 5),  # half of the classes, whole
        (500, 100, 100, 100),  # no more classes are left out than leaves enough
        (200, 1000, 100, 100),
        (12, 5000, 12, 500),
        (30, 2000, 30, 334),
        (100, 100, 100, 100),
    ],
)
def test_of_many_items_some_are_tried(classes: int, size: int, kept: int, each: int) -> None:
    labels = np.arange(classes).repeat(size)
    rows = tried_rows(labels, np.arange(len(labels)))
    sizes = np.bincount(labels[rows], minlength=classes)
    assert np.count_nonzero(sizes) == kept
    assert set(sizes[sizes > 0].tolist()) == {each}
    assert rows.tolist() == sorted(rows.tolist())
    first = np.flatnonzero(sizes)[:10]
    assert first.tolist() == list(range(10)), "neighbours stay together"


def test_few_held_out_classes_are_tried_among_a_sample_of_all() -> None:
    labels = np.arange(10).repeat(3000)
    rows = tried_rows(labels, np.flatnonzero(labels < 5))
    assert np.bincount(labels[rows]).tolist() == [500] * 10


def test_queries_that_can_find_nothing_count_for_nothing() -> None:
    vectors, labels = clusters(5, 1, 3, 0.1)
    assert try_retrieval(vectors, labels, np.arange(5)) == Trial(0.0, 0.0)
    several = np.array([0, 0, 1, 2, 3])
    assert try_retrieval(vectors, several, np.array([2, 3])) == Trial(0.0, 0.0)


def test_the_score_is_the_mean_of_both() -> None:
    assert Trial(0.8, 0.2).score == pytest.approx(0.5)


def test_gains_are_the_mean_over_the_widths() -> None:
    features, labels = with_nuisance()
    start, (signal, _) = (torch.eye(18), torch.zeros(18)), signal_and_noise()
    ends = {1: signal}
    alone = [choose_share(start, ends, features, labels, [width])[1, 0.5] for width in (4, 18)]
    both = choose_share(start, ends, features, labels, [4, 18])[1, 0.5]
    assert both.recall == pytest.approx((alone[0].recall + alone[1].recall) / 2)
    assert both.map_at_r == pytest.approx((alone[0].map_at_r + alone[1].map_at_r) / 2)
    assert alone[0] != alone[1]
