"""Losses by name: options of the right name, type and value, and messages that name what is wrong."""

import re
import sys
from typing import Any

import numpy as np
import pytest
import torch

from softtriple.errors import UserError
from softtriple.losses import LOSSES, build_loss, check_loss, has_option, is_shardable

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.mark.parametrize(
    ("name", "option", "value", "expected"),
    [
        ("softtriple", "centers_per_class", 0, "at least 1"),
        ("softtriple", "gamma", 0.0, "above 0"),
        ("softtriple", "gamma", float("nan"), "finite"),
        ("softtriple", "scale", -1.0, "above 0"),
        ("softtriple", "scale", float("inf"), "finite"),
        ("softtriple", "tau", float("nan"), "finite"),
        ("softtriple", "synthesis", 1.5, "from 0 to 1"),
        ("softtriple", "margin", -0.1, "at least 0"),
        ("softtriple", "smoothing", -1e-5, "at least 0"),
        ("softtriple", "centers_per_class", 2.5, "an integer"),
        ("softtriple", "gamma", "abc", "a number"),
        ("softtriple", "scale", True, "a number"),
        ("lifted", "margin", [1], "a number"),
        ("n-pairs", "length", "x", "a number"),
        ("htl", "squared", "no", "true or false"),
        ("htl", "validate", 1, "true or false"),
        ("hard-triple", "similarity", [1], "a string"),
        ("hard-triple", "similarity", "cosine", "nearest, span"),
        ("hard-triple", "similarity", "nearst", "did you mean 'nearest'"),
    ],
)
def test_option_values(name: str, option: str, value: Any, expected: str) -> None:
    message = f"{re.escape(f'{option} = {value!r}')} .*{re.escape(expected)}"
    with pytest.raises(UserError, match=message):
        build_loss(name, 3, 6, **{option: value})
    with pytest.raises(UserError, match=message):
        check_loss(name, {option: value})


def test_none_is_a_length() -> None:
    assert build_loss("n-pairs", 3, 6, length=None).length is None


def test_numpy_numbers_are_numbers() -> None:
    loss = build_loss("softtriple", np.int64(3), np.int32(4), centers_per_class=np.uint8(2), gamma=np.float32(0.5))
    assert loss.centers.shape == (3, 2, 4)
    assert build_loss("htl", np.int64(3), 4).num_classes == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("xyz", {}, "unknown loss 'xyz'; choose from softtriple, .*proxy-anchor"),
        ("sofftriple", {}, "unknown loss 'sofftriple'; did you mean 'softtriple'"),
        ("proxynca", {}, "did you mean 'proxy-nca'"),
        ("softmax-norm", {"gamma": 0.1}, "softmax-norm has no option gamma; .*scale"),
        ("softtriple", {"gama": 0.1}, "softtriple has no option gama; did you mean 'gamma'"),
        ("pml:TripletMarginLos", {}, "'TripletMarginLos' .*losses; did you mean 'TripletMarginLoss'"),
        ("pml:TripletMarginLoss+MultiSimilarityMinr", {}, "miners; did you mean 'MultiSimilarityMiner'"),
        ("pml:TripletMarginLoss", {"margn": 1}, "has no option margn; did you mean 'margin'"),
    ],
)
def test_names_with_a_suggestion(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_loss(name, 3, 4, **options)
    with pytest.raises(UserError, match=message):
        check_loss(name, options)


def test_options_reach_the_loss() -> None:
    loss = build_loss("softtriple", 3, 4, gamma=0.2, centers_per_class=2)
    assert loss.gamma == 0.2
    assert "num_classes=3, embedding_size=4, centers_per_class=2, scale=20.0, gamma=0.2" in repr(loss)


@pytest.mark.parametrize("name", [*LOSSES, "pml:ArcFaceLoss", "pml:TripletMarginLoss+MultiSimilarityMiner"])
def test_checking_a_good_loss_changes_nothing(name: str) -> None:
    state = torch.get_rng_state()
    check_loss(name, {})
    assert torch.equal(torch.get_rng_state(), state)


def test_centers_per_class_only_where_a_loss_has_them() -> None:
    assert [name for name in LOSSES if has_option(name, "centers_per_class")] == ["softtriple", "hard-triple"]
    check_loss("softtriple", {}, centers_per_class=3)
    check_loss("softtriple", {"centers_per_class": 3}, centers_per_class=3)
    for name in ("proxy-nca", "pml:SubCenterArcFaceLoss"):
        with pytest.raises(UserError, match=f"centers_per_class = 3: {name}"):
            check_loss(name, {}, centers_per_class=3)
    with pytest.raises(UserError, match=r"centers_per_class = 3.*centers_per_class = 2"):
        check_loss("softtriple", {"centers_per_class": 2}, centers_per_class=3)
    with pytest.raises(UserError, match="centers_per_class = 0"):
        check_loss("softtriple", {}, centers_per_class=0)


def test_sample_rates_only_where_classes_can_be_sampled() -> None:
    assert [name for name in LOSSES if is_shardable(name)] == ["softtriple", "softmax-norm"]
    check_loss("softmax-norm", {}, sample_rate=0.1)
    for name in ("hard-triple", "pml:ArcFaceLoss"):
        with pytest.raises(UserError, match=f"sample_rate = 0.5: {name} .*softtriple and softmax-norm"):
            check_loss(name, {}, sample_rate=0.5)
    with pytest.raises(UserError, match=r"sample_rate = 1\.5"):
        check_loss("softtriple", {}, sample_rate=1.5)


def test_without_pytorch_metric_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning.losses", None)
    with pytest.raises(UserError, match="pip install pytorch-metric-learning"):
        check_loss("pml:TripletMarginLoss", {})
