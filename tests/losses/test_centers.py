"""Centres after training: which are distinct, what merging keeps, and classes that come later."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from softtriple import NormalizedSoftmaxLoss, SoftTripleLoss
from softtriple.losses.centers import count_distinct, merge_groups


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
    loss = SoftTripleLoss(len(centers), centers.shape[2], centers.shape[1], **options)
    with torch.no_grad():
        loss.centers.copy_(centers * 0.3)
    return loss


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


def test_counts_by_runs_of_classes_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_every_center_is_within_tolerance_of_the_one_that_stands_for_it() -> None:
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
    assert torch.equal(grown.centers[:2], old.centers)
    assert old.centers.shape == (2, 2, 32)
    assert torch.equal(grown.predict(embeddings), labels + 2)
    assert (grown.predict(centers[:2].flatten(0, 1)) == torch.tensor([0, 0, 1, 1])).all()
    # Both modes of a new class have a centre of their own.
    assert grown.distinct_centers(0.3).tolist() == [2, 2, 2, 2]
    torch.testing.assert_close(grown.centers[2:].norm(dim=-1), torch.full((2, 2), 0.3), rtol=1e-4, atol=0)
    assert (grown.scale, grown.gamma, grown.tau) == (old.scale, old.gamma, old.tau)


def test_a_grown_loss_is_of_the_kind_and_in_the_state_of_the_old_one() -> None:
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
def test_a_tolerance_is_no_negative_number(tolerance: float) -> None:
    for function in (SoftTripleLoss(2, 8).distinct_centers, SoftTripleLoss(2, 8).merge_centers):
        with pytest.raises(ValueError, match=f"tolerance = {tolerance} must be a finite number of at least 0"):
            function(tolerance)


def test_merged_centers_refuse_embeddings_of_another_width() -> None:
    merged = SoftTripleLoss(2, 8).merge_centers()
    with pytest.raises(ValueError, match=r"embeddings have shape \(3, 7\), expected \(batch, 8\)"):
        merged.predict(torch.randn(3, 7))


def test_added_class_of_one_item_has_that_item_as_its_center() -> None:
    old = SoftTripleLoss(2, 8, 3)
    item = torch.randn(1, 8)
    grown = old.add_classes(item, torch.tensor([2]))
    torch.testing.assert_close(F.normalize(grown.centers[2], dim=-1), F.normalize(item, dim=-1).expand(3, 8))


@pytest.mark.parametrize(("labels", "named"), [([2, 4], "2, 4"), ([0, 1], "0, 1"), ([3, 3], "3")])
def test_labels_of_added_classes_must_go_on_where_the_old_ones_end(labels: list[int], named: str) -> None:
    with pytest.raises(ValueError, match=f"must be 2, 3, ... without a gap, not {named}$"):
        SoftTripleLoss(2, 8).add_classes(torch.randn(2, 8), torch.tensor(labels))


def test_param_groups_hold_every_parameter_once_at_its_own_rate() -> None:
    encoder, loss = torch.nn.Linear(3, 8), SoftTripleLoss(4, 8)
    groups = loss.param_groups(encoder)
    assert [group["lr"] for group in groups] == [1e-4, 1e-2]
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(p) for p in [*encoder.parameters(), *loss.parameters()])
    torch.optim.Adam(groups)
    assert len(loss.param_groups(center_lr=0.1)) == 1
