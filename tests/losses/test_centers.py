"""Centres: prediction by them, which are distinct after training, merging, and where they start."""

import pytest
import torch
import torch.nn.functional as F
from tests.losses.problems import with_centers
from torch import Tensor

from softtriple import HardTripleLoss, NormalizedSoftmaxLoss, SoftmaxLoss, SoftTripleLoss
from softtriple.losses import CenterLoss, ProxyNCALoss, soft_similarity
from softtriple.losses.centers import MERGED, count_distinct, merge_groups, nearest_centers


def clumps(counts: list[list[int]], jitter: float, dim: int = 16) -> Tensor:
    """Unit centres: for each class, clumps of the given sizes, far from each other, each within ``jitter``."""
    random = torch.Generator().manual_seed(0)
    classes = []
    for sizes in counts:
        modes = torch.linalg.qr(torch.randn(dim, len(sizes), generator=random))[0].T
        members = modes.repeat_interleave(torch.tensor(sizes), dim=0)
        classes.append(members + jitter * F.normalize(torch.randn(members.shape, generator=random), dim=1))
    return F.normalize(torch.stack(classes), dim=-1)


def trained(centers: Tensor, **options: float) -> SoftTripleLoss:
    return with_centers(SoftTripleLoss(len(centers), centers.shape[2], centers.shape[1], **options), centers * 0.3)


def test_distinct_centers_are_counted_by_class() -> None:
    loss = trained(clumps([[6], [3, 3], [1, 2, 3], [1, 1, 1, 1, 1, 1]], jitter=0.01))
    assert loss.distinct_centers().tolist() == [1, 2, 3, 6]
    assert loss.distinct_centers(tolerance=0.0).tolist() == [6, 6, 6, 6]
    assert loss.distinct_centers(tolerance=2.0).tolist() == [1, 1, 1, 1]


def test_count_does_not_depend_on_the_order_of_centers() -> None:
    random = torch.Generator().manual_seed(1)
    centers = F.normalize(torch.randn(50, 8, 3, generator=random), dim=-1)
    found = count_distinct(centers, 0.6)
    assert found.unique().numel() > 2
    for _ in range(5):
        order = torch.randperm(8, generator=random)
        # Equally crowded centres may lead in another order; counts then differ by one at most.
        assert (count_distinct(centers[:, order], 0.6) - found).abs().max() <= 1


def test_counting_in_runs_of_classes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    centers = torch.randn(50, 8, 3, generator=torch.Generator().manual_seed(1))
    expected = count_distinct(centers, 0.6)
    seen: list[int] = []

    def watched(run: Tensor, tolerance: float) -> Tensor:
        seen.append(len(run))
        return merge_groups(run, tolerance)

    monkeypatch.setattr("softtriple.losses.centers.merge_groups", watched)
    monkeypatch.setattr("softtriple.losses.centers.AT_ONCE", 7 * 8 * 3)
    assert torch.equal(count_distinct(centers, 0.6), expected)
    assert seen == [7] * 7 + [1]


def test_every_center_is_within_tolerance_of_its_leader() -> None:
    centers = F.normalize(torch.randn(40, 9, 3, generator=torch.Generator().manual_seed(2)), dim=-1)
    leader = merge_groups(centers, tolerance=0.7)
    leaders = centers.gather(1, leader[..., None].expand_as(centers))
    assert (centers - leaders).norm(dim=-1).max() <= 0.7
    assert torch.equal(leader.gather(1, leader), leader)  # a leader leads itself


@pytest.mark.parametrize("gamma", [0.01, 0.1, 1.0])
def test_merging_keeps_similarities_and_predictions(gamma: float) -> None:
    loss = trained(clumps([[6], [3, 3], [1, 2, 3], [1, 1, 4]], jitter=1e-4), gamma=gamma)
    merged = loss.merge_centers()
    assert merged.classes.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3]
    assert merged.counts.sum() == 24
    embeddings = torch.randn(200, 16, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(merged.similarities(embeddings), loss.similarities(embeddings), rtol=0, atol=1e-3)
    best_two = loss.similarities(embeddings).topk(2, dim=1).values
    clear = best_two[:, 0] - best_two[:, 1] > 2e-3
    assert clear.sum() > 150
    assert torch.equal(merged.predict(embeddings)[clear], loss.predict(embeddings)[clear])


def test_nothing_to_merge_changes_nothing() -> None:
    loss = trained(clumps([[1, 1, 1], [1, 1, 1]], jitter=0.0))
    embeddings = torch.randn(20, 16)
    merged = loss.merge_centers()
    assert len(merged.centers) == 6
    torch.testing.assert_close(merged.similarities(embeddings), loss.similarities(embeddings))


def test_added_classes_are_predicted_and_old_ones_untouched() -> None:
    centers = clumps([[1, 1], [1, 1], [1, 1], [1, 1]], jitter=0.0, dim=32)
    old = trained(centers[:2])
    random = torch.Generator().manual_seed(4)
    labels = torch.arange(2).repeat_interleave(40)
    modes = centers[2:][labels, torch.arange(80) % 2]
    embeddings = modes + 0.05 * torch.randn(80, 32, generator=random)

    grown = old.add_classes(embeddings, labels + 2)

    assert grown.centers.shape == (4, 2, 32)
    assert grown.num_classes == 4
    assert torch.equal(grown.centers[:2], old.centers)
    assert old.centers.shape == (2, 2, 32)
    assert torch.equal(grown.predict(embeddings), labels + 2)
    assert (grown.predict(centers[:2].flatten(0, 1)) == torch.tensor([0, 0, 1, 1])).all()
    # Both modes of a new class have a centre of their own.
    assert grown.distinct_centers(0.3).tolist() == [2, 2, 2, 2]
    torch.testing.assert_close(grown.centers[2:].norm(dim=-1), torch.full((2, 2), 0.3), rtol=1e-4, atol=0)
    assert (grown.scale, grown.gamma, grown.tau) == (old.scale, old.gamma, old.tau)


def test_a_loss_with_added_classes_keeps_type_and_state() -> None:
    old = NormalizedSoftmaxLoss(2, 8, scale=7.0).eval().requires_grad_(False)
    grown = old.add_classes(torch.randn(1, 8), torch.tensor([2]))
    assert type(grown) is NormalizedSoftmaxLoss
    assert grown.scale == 7.0
    assert not grown.training
    assert not grown.centers.requires_grad
    learning = SoftTripleLoss(2, 8).add_classes(torch.randn(1, 8), torch.tensor([2]))
    assert learning.training
    assert learning.centers.requires_grad


@pytest.mark.parametrize("tolerance", [-1.0, float("nan")])
def test_a_tolerance_is_not_negative(tolerance: float) -> None:
    for function in (SoftTripleLoss(2, 8).distinct_centers, SoftTripleLoss(2, 8).merge_centers):
        with pytest.raises(ValueError, match=f"tolerance = {tolerance} must be a finite number, at least 0"):
            function(tolerance)


def test_merged_centers_check_the_width_of_embeddings() -> None:
    merged = SoftTripleLoss(2, 8).merge_centers()
    with pytest.raises(ValueError, match=r"embeddings have shape \(3, 7\), expected \(batch, 8\)"):
        merged.predict(torch.randn(3, 7))


def test_added_class_of_one_item_has_that_item_as_its_center() -> None:
    old = SoftTripleLoss(2, 8, 3)
    item = torch.randn(1, 8)
    grown = old.add_classes(item, torch.tensor([2]))
    torch.testing.assert_close(F.normalize(grown.centers[2], dim=-1), F.normalize(item, dim=-1).expand(3, 8))


@pytest.mark.parametrize(("labels", "named"), [([2, 4], "2, 4"), ([0, 1], "0, 1"), ([3, 3], "3")])
def test_labels_of_added_classes_must_continue_the_existing_ones(labels: list[int], named: str) -> None:
    with pytest.raises(ValueError, match=f"must be 2, 3, ... without a gap, not {named}$"):
        SoftTripleLoss(2, 8).add_classes(torch.randn(2, 8), torch.tensor(labels))


@pytest.mark.parametrize("at_once", [1, 100, 1000])
def test_predicting_in_runs_of_classes_changes_nothing(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    random = torch.Generator().manual_seed(3)
    embeddings = torch.randn(6, 8, generator=random)
    loss = trained(torch.randn(50, 3, 8, generator=random))
    expected = loss.similarities(embeddings).argmax(dim=1)
    sizes: list[int] = []

    def watched(embeddings: Tensor, run: Tensor, gamma: float) -> Tensor:
        sizes.append(len(run))
        return soft_similarity(embeddings, run, gamma)

    monkeypatch.setattr("softtriple.losses.softtriple.soft_similarity", watched)
    monkeypatch.setattr("softtriple.losses.centers.AT_ONCE", at_once)
    assert torch.equal(loss.predict(embeddings), expected)
    assert sum(sizes) == 50
    assert max(sizes) == {1: 1, 100: 5, 1000: 50}[at_once]


def test_ties_go_to_the_first_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softtriple.losses.centers.AT_ONCE", 1)
    loss = trained(torch.eye(3)[[1, 0, 1, 0, 2], None])
    assert loss.predict(torch.eye(3)).tolist() == [1, 0, 4]


@pytest.mark.parametrize("loss", [HardTripleLoss(50, 8, 3), SoftmaxLoss(50, 8), ProxyNCALoss(50, 8)])
def test_every_loss_with_centers_predicts_the_most_similar_class(
    monkeypatch: pytest.MonkeyPatch, loss: CenterLoss
) -> None:
    embeddings = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    expected = loss.similarities(embeddings).argmax(dim=1)
    monkeypatch.setattr("softtriple.losses.centers.AT_ONCE", 100)
    assert torch.equal(loss.predict(embeddings), expected)


def modes(num_classes: int, sizes: list[int], dim: int = 16, noise: float = 0.05) -> tuple[Tensor, Tensor, Tensor]:
    """Unit modes of each class, and noisy embeddings around them, ``sizes`` of each mode, in random order."""
    random = torch.Generator().manual_seed(0)
    centers = F.normalize(torch.randn(num_classes, len(sizes), dim, generator=random), dim=-1)
    members = centers.repeat_interleave(torch.tensor(sizes), dim=1).flatten(0, 1)
    labels = torch.arange(num_classes).repeat_interleave(sum(sizes))
    order = torch.randperm(len(labels), generator=random)
    return centers, (members + noise * torch.randn(members.shape, generator=random))[order], labels[order]


def test_centers_start_at_the_modes_of_their_class() -> None:
    expected, embeddings, labels = modes(30, [20, 10, 5])
    loss = SoftTripleLoss(30, 16, 3)
    lengths = loss.centers.detach().norm(dim=-1)
    loss.initialize_centers(embeddings, labels)
    to_modes = torch.einsum("ckd,cmd->ckm", F.normalize(loss.centers.detach(), dim=-1), expected)
    # k-means may miss a mode of a class here and there, but not often.
    assert (to_modes.amax(dim=1) > 0.95).float().mean() > 0.95
    assert (loss.predict(embeddings) == labels).all()
    torch.testing.assert_close(loss.centers.detach().norm(dim=-1), lengths)
    assert loss.centers.requires_grad


def test_starting_centers_are_the_means_of_what_is_nearest_to_them() -> None:
    """The fixed point of k-means on the sphere, checked item by item."""
    _, embeddings, labels = modes(4, [9, 8], noise=0.2)
    loss = HardTripleLoss(4, 16, 2)
    loss.initialize_centers(embeddings, labels)
    for label, centers in enumerate(F.normalize(loss.centers.detach(), dim=-1)):
        points = F.normalize(embeddings[labels == label], dim=-1)
        nearest = (points @ centers.T).argmax(dim=1)
        for number, center in enumerate(centers):
            torch.testing.assert_close(center, F.normalize(points[nearest == number].mean(dim=0), dim=0))


def test_starting_centers_depend_on_nothing_but_the_class_itself() -> None:
    _, embeddings, labels = modes(12, [7, 6])
    labels[labels == 3] = 4  # classes of different size
    several, again, alone = SoftTripleLoss(12, 16, 4), SoftTripleLoss(12, 16, 4), SoftTripleLoss(12, 16, 4)
    state = torch.get_rng_state()
    for loss, rows in ((several, labels >= 0), (again, labels >= 0), (alone, labels == 7)):
        before = loss.centers.detach().clone()
        loss.initialize_centers(embeddings[rows].numpy(), labels[rows].numpy())
        assert torch.equal(loss.centers[3], before[3])  # no embeddings: as it was
    assert torch.equal(torch.get_rng_state(), state)
    directions = [F.normalize(loss.centers.detach(), dim=-1) for loss in (several, again, alone)]
    torch.testing.assert_close(directions[0][[0, 4, 7]], directions[1][[0, 4, 7]])
    torch.testing.assert_close(directions[0][7], directions[2][7])
    assert not torch.allclose(directions[0][0], directions[2][0], atol=0.1)


def test_a_class_with_fewer_items_than_centers_has_its_items_as_centers() -> None:
    items = torch.eye(8)[:2]
    loss = SoftTripleLoss(2, 8, 5)
    loss.initialize_centers(torch.cat([items, torch.zeros(1, 8)]), torch.tensor([0, 0, 1]))
    found = F.normalize(loss.centers.detach(), dim=-1)
    assert loss.distinct_centers()[0] == 2
    torch.testing.assert_close((found[0] @ items.T).amax(dim=1), torch.ones(5))
    torch.testing.assert_close(found[1].norm(dim=-1), torch.ones(5))  # a zero vector has no direction to give


def test_nearest_centers_matches_a_loop_over_the_own_class() -> None:
    random = torch.Generator().manual_seed(0)
    centers = torch.randn(4, 3, 6, generator=random)
    labels = 1 + torch.randint(3, (50,), generator=random)  # class 0 has no items
    vectors = F.normalize(torch.randn(50, 6, generator=random), dim=1)
    for vector, label, group in zip(vectors, labels, nearest_centers(vectors, labels, centers), strict=True):
        similarity = [float(vector @ center / center.norm()) for center in centers[label]]
        assert divmod(int(group), 3) == (int(label), similarity.index(max(similarity)))


def test_merged_centers_are_one_group() -> None:
    centers = torch.tensor([[[1.0, 0.0], [1.0, MERGED / 2], [-1.0, 0.0]]])
    vectors = torch.tensor([[1.0, -0.1], [1.0, 0.1], [-1.0, 0.0]])
    groups = nearest_centers(vectors, torch.zeros(3, dtype=torch.long), centers)
    assert groups[0] == groups[1] != groups[2]
