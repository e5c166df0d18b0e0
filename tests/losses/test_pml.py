"""Losses of pytorch-metric-learning by name."""

import pytest
import torch
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import miners
from torch import Tensor

from softtriple.losses import build_loss
from softtriple.losses.pml import ExternalLoss


def batch() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(12, 6, generator=random, requires_grad=True), torch.arange(12) % 4


def test_a_loss_with_options() -> None:
    embeddings, labels = batch()
    loss = build_loss("pml:MultiSimilarityLoss", 4, 6, alpha=1.5, beta=40)
    expected = peer.MultiSimilarityLoss(alpha=1.5, beta=40)(embeddings, labels)
    torch.testing.assert_close(loss(embeddings, labels), expected)
    assert isinstance(loss, ExternalLoss)
    assert loss.per_class == 4


def test_a_loss_with_a_miner() -> None:
    embeddings, labels = batch()
    loss = build_loss("pml:TripletMarginLoss+MultiSimilarityMiner", 4, 6, margin=0.3)
    chosen = miners.MultiSimilarityMiner()(embeddings, labels)
    expected = peer.TripletMarginLoss(margin=0.3)(embeddings, labels, chosen)
    torch.testing.assert_close(loss(embeddings, labels), expected)
    assert not torch.equal(expected, peer.TripletMarginLoss(margin=0.3)(embeddings, labels))


@pytest.mark.parametrize("name", ["ArcFaceLoss", "SubCenterArcFaceLoss", "ProxyNCALoss", "SoftTripleLoss"])
def test_a_loss_with_class_vectors_gets_its_sizes(name: str) -> None:
    embeddings, labels = batch()
    loss = build_loss(f"pml:{name}", 4, 6)
    loss(embeddings, labels).backward()
    parameters = list(loss.parameters())
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in parameters)
    assert loss.per_class is None
    assert loss.param_groups(center_lr=0.5) == [{"params": parameters, "lr": 0.5}]


def test_options_of_an_ancestor_are_options() -> None:
    loss = build_loss("pml:TripletMarginLoss", 4, 6, embedding_reg_weight=2, swap=True)
    assert loss.loss.swap


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pml:NoSuchLoss", {}, "'NoSuchLoss' in its losses"),
        ("pml:TripletMarginLoss+NoSuchMiner", {}, "'NoSuchMiner' in its miners"),
        ("pml:TripletMarginLoss+", {}, "'' in its miners; choose from .*MultiSimilarityMiner"),
        ("pml:BaseMetricLossFunction", {}, "'BaseMetricLossFunction' in its losses"),
        ("pml:WeightRegularizerMixin", {}, "'WeightRegularizerMixin' in its losses"),
        ("pml:TripletMarginLoss+BaseMiner", {}, "'BaseMiner' in its miners"),
        ("pml:TripletMarginLoss", {"scale": 2}, "has no option scale; .*margin"),
        ("pml:CrossBatchMemory", {}, "cannot be built: .*missing 1 required positional argument: 'loss'"),
    ],
)
def test_wrong_names_and_options(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_loss(name, 4, 6, **options)


def test_batches_are_checked_as_for_every_loss() -> None:
    with pytest.raises(ValueError, match="label 9 is out of range"):
        build_loss("pml:TripletMarginLoss", 4, 6)(torch.randn(2, 6), torch.tensor([0, 9]))
