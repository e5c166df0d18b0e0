"""Agreement with the authors' code and with pytorch-metric-learning where they compute the same thing."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning.regularizers import SparseCentersRegularizer
from tests.losses.problems import with_centers
from torch import Tensor

from softtriple import NormalizedSoftmaxLoss, SoftTripleLoss

# Values and gradients of the authors' code (CPU, float64) on random input. Their embeddings are unit rows that the
# code does not normalise itself, their regulariser has 1e-5 under its root.
OFFICIAL = json.loads(Path(__file__).with_name("official_softtriple.json").read_text())


@pytest.mark.parametrize("case", OFFICIAL, ids=[f"case {i}" for i in range(len(OFFICIAL))])
def test_the_authors_code(case: dict[str, Any]) -> None:
    embeddings = torch.tensor(case["embeddings"], dtype=torch.float64, requires_grad=True)
    centers = torch.tensor(case["centers"], dtype=torch.float64)
    num_classes, k, dim = centers.shape
    options = {name: case[name] for name in ("scale", "gamma", "margin", "tau")}
    loss = with_centers(SoftTripleLoss(num_classes, dim, k, **options, smoothing=1e-5), centers)

    value = loss(embeddings, torch.tensor(case["labels"]))
    value.backward()

    assert value.item() == pytest.approx(case["loss"], rel=1e-10)
    theirs = torch.tensor(case["grad_embeddings"], dtype=torch.float64)
    x = embeddings.detach()
    on_the_sphere = theirs - (theirs * x).sum(1, keepdim=True) * x
    torch.testing.assert_close(embeddings.grad, on_the_sphere, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(
        loss.centers.grad, torch.tensor(case["grad_centers"], dtype=torch.float64), rtol=1e-8, atol=1e-10
    )


def batch(dim: int, num_classes: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(9, dim, generator=random, requires_grad=True)
    return embeddings, torch.randint(num_classes, (9,), generator=random)


def test_pytorch_metric_learning_softtriple() -> None:
    embeddings, labels = batch(dim=8, num_classes=6)
    theirs = peer.SoftTripleLoss(6, 8, centers_per_class=3, la=20, gamma=0.1, margin=0.01)
    ours = with_centers(SoftTripleLoss(6, 8, 3, tau=0.0), theirs.fc.T.reshape(6, 3, 8))
    torch.testing.assert_close(ours(embeddings, labels), theirs(embeddings, labels))
    (by_embeddings,) = torch.autograd.grad(theirs(embeddings, labels), embeddings)
    torch.testing.assert_close(torch.autograd.grad(ours(embeddings, labels), embeddings)[0], by_embeddings)


def test_pytorch_metric_learning_softtriple_with_its_regulariser() -> None:
    embeddings, labels = batch(dim=8, num_classes=6)
    regulariser = SparseCentersRegularizer(6, 3)
    theirs = peer.SoftTripleLoss(6, 8, 3, weight_regularizer=regulariser, weight_reg_weight=0.7).double()
    ours = with_centers(SoftTripleLoss(6, 8, 3, tau=0.7), theirs.fc.T.reshape(6, 3, 8))
    embeddings = embeddings.double()
    torch.testing.assert_close(ours(embeddings, labels), theirs(embeddings, labels))


def test_pytorch_metric_learning_normalised_softmax() -> None:
    embeddings, labels = batch(dim=8, num_classes=6)
    theirs = peer.NormalizedSoftmaxLoss(6, 8, temperature=0.05)
    ours = with_centers(NormalizedSoftmaxLoss(6, 8, scale=20.0), theirs.W.T[:, None])
    torch.testing.assert_close(ours(embeddings, labels), theirs(embeddings, labels))


def test_arguments_are_named_and_ordered_as_there() -> None:
    theirs, ours = peer.SoftTripleLoss(4, 6, 2), SoftTripleLoss(4, 6, 2)
    assert theirs.fc.T.reshape(4, 2, 6).shape == ours.centers.shape
    assert SoftTripleLoss(num_classes=4, embedding_size=6, centers_per_class=2).centers.shape == (4, 2, 6)
