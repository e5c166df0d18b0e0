"""Losses of pytorch-metric-learning by name."""

import sys

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
        ("pml:NoSuchLoss", {}, "no class 'NoSuchLoss' among the losses; there are .*TripletMarginLoss"),
        ("pml:TripletMarginLoss+NoSuchMiner", {}, "no class 'NoSuchMiner' among the miners; there are"),
        ("pml:TripletMarginLoss+", {}, "no class '' among the miners"),
        ("pml:BaseMetricLossFunction", {}, "no class 'BaseMetricLossFunction' among the losses"),
        ("pml:WeightRegularizerMixin", {}, "no class 'WeightRegularizerMixin' among the losses"),
        ("pml:TripletMarginLoss+BaseMiner", {}, "no class 'BaseMiner' among the miners"),
        ("pml:TripletMarginLoss", {"scale": 2}, "has no option scale; it has .*margin"),
        ("pml:CrossBatchMemory", {}, "cannot be built: .*missing 1 required positional argument: 'loss'"),
    ],
)
def test_wrong_names_and_options(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_loss(name, 4, 6, **options)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(ValueError, match="needs pytorch-metric-learning: pip install pytorch-metric-learning"):
        build_loss("pml:TripletMarginLoss", 4, 6)


def test_batches_are_checked_as_for_every_loss() -> None:
    with pytest.raises(ValueError, match="label 9 is out of range"):
        build_loss("pml:TripletMarginLoss", 4, 6)(torch.randn(2, 6), torch.tensor([0, 9]))
