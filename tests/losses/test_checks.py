"""Wrong input gets a sentence that names the thing."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import config
from torch import Tensor

from softtriple import SoftTripleLoss
from softtriple.losses import LOSSES, build_loss


@pytest.fixture(autouse=True)
def as_users_have_it() -> Iterator[None]:
    """Without the annotation checks of the tests, which would stop wrong input before the loss sees it."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("centers_per_class", 0, "centers_per_class = 0 must be a whole number of at least 1"),
        ("gamma", 0.0, "gamma = 0.0 must be a finite number above 0"),
        ("gamma", float("nan"), "gamma = nan must be a finite number above 0"),
        ("scale", -1.0, "scale = -1.0 must be a finite number above 0"),
        ("scale", float("inf"), "scale = inf must be a finite number above 0"),
        ("tau", -0.2, "tau = -0.2 must be a finite number of at least 0"),
        ("margin", -0.1, "margin = -0.1 must be a finite number of at least 0"),
        ("smoothing", -1e-5, "smoothing = -1e-05 must be a finite number of at least 0"),
    ],
)
def test_settings(option: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build_loss("softtriple", 3, 4, **{option: value})


@pytest.mark.parametrize(
    ("name", "option", "value", "wanted"),
    [
        ("softtriple", "centers_per_class", 2.5, "a whole number"),
        ("softtriple", "gamma", "abc", "a number"),
        ("softtriple", "scale", True, "a number"),
        ("lifted", "margin", [1], "a number"),
        ("n-pairs", "length", "x", "a number"),
        ("htl", "squared", "no", "true or false"),
        ("htl", "validate", 1, "true or false"),
        ("hard-triple", "similarity", [1], "a text"),
    ],
)
def test_kinds_of_settings(name: str, option: str, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name}: {option} = {value!r} is not {wanted}")):
        build_loss(name, 3, 6, **{option: value})


def test_no_length_is_a_setting_too() -> None:
    assert build_loss("n-pairs", 3, 6, length=None).length is None


def test_numbers_of_numpy() -> None:
    loss = build_loss("softtriple", np.int64(3), np.int32(4), centers_per_class=np.uint8(2), gamma=np.float32(0.5))
    assert loss.centers.shape == (3, 2, 4)
    assert build_loss("htl", np.int64(3), 4).num_classes == 3


@pytest.mark.parametrize(
    ("embeddings", "labels", "message"),
    [
        (torch.randn(2, 5), torch.tensor([0, 1]), "embeddings have shape (2, 5), expected (batch, 6)"),
        (torch.randn(6), torch.tensor([0]), "embeddings have shape (6,), expected (batch, 6)"),
        (torch.ones(2, 6, dtype=torch.int64), torch.tensor([0, 1]), "embeddings are torch.int64"),
        (torch.randn(0, 6), torch.empty(0, dtype=torch.int64), "the batch is empty"),
        (torch.randn(2, 6), torch.tensor([0.0, 1.0]), "labels are torch.float32, expected integers"),
        (torch.randn(2, 6), torch.tensor([True, False]), "labels are torch.bool, expected integers"),
        (torch.randn(2, 6), torch.tensor([[0], [1]]), "labels have shape (2, 1), expected (2,)"),
        (torch.randn(2, 6), torch.tensor([0, 3]), "label 3 is out of range"),
        (torch.randn(2, 6), torch.tensor([0, 3]), "num_classes=3, so labels go from 0 to 2"),
        (torch.randn(2, 6), torch.tensor([-1, 2]), "label -1 is out of range"),
        (torch.tensor([[1.0] * 6, [float("nan")] * 6]), torch.tensor([0, 1]), "in 1 of 2 rows (first: row 1)"),
        (torch.tensor([[float("-inf")] * 6] * 2), torch.tensor([0, 1]), "in 2 of 2 rows (first: row 0)"),
        (torch.full((2, 6), 3e38), torch.tensor([0, 1]), "overflowing numbers in 2 of 2 rows"),
    ],
)
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_batches(name: str, embeddings: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build_loss(name, 3, 6)(embeddings, labels)


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    ],
)
def test_integer_labels_of_any_kind(dtype: torch.dtype) -> None:
    loss, embeddings, labels = SoftTripleLoss(3, 4), torch.randn(3, 4), torch.tensor([2, 0, 1])
    torch.testing.assert_close(loss(embeddings, labels.to(dtype)), loss(embeddings, labels))


def test_values_are_not_looked_at_when_told_not_to() -> None:
    loss = SoftTripleLoss(3, 4, validate=False)
    assert loss(torch.full((2, 4), float("nan")), torch.tensor([0, 1])).isnan()
    with pytest.raises(ValueError, match="embeddings have shape"):
        loss(torch.randn(2, 5), torch.tensor([0, 1]))


def test_losses_by_name() -> None:
    with pytest.raises(ValueError, match="unknown loss 'triplet'; choose from clustering, hard-triple, htl"):
        build_loss("triplet", 3, 4)
    with pytest.raises(ValueError, match="softmax-norm has no option gamma; it has scale, validate"):
        build_loss("softmax-norm", 3, 4, gamma=0.1)
    loss = build_loss("softtriple", 3, 4, gamma=0.2, centers_per_class=2)
    assert loss.gamma == 0.2
    assert "centers_per_class=2, scale=20.0, gamma=0.2" in repr(loss)


def test_span_similarity_must_be_known() -> None:
    with pytest.raises(ValueError, match="similarity = 'cosine' is unknown; choose from nearest, span"):
        build_loss("hard-triple", 3, 4, similarity="cosine")
