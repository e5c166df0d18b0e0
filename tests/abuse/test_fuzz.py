"""Losses and metrics on arbitrary shapes, precisions and magnitudes: finite results, or an error that says why."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from softtriple.losses import LOSSES, HTLLoss, build_loss
from softtriple.metrics import ami, first_hit_ranks, kmeans, nmi
from softtriple.metrics.evaluate import Embeddings, evaluate
from softtriple.papers.hdc import HDCLoss
from softtriple.search import nearest

T = TypeVar("T")
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@st.composite
def rows(draw: st.DrawFn, count: st.SearchStrategy[int], dim: st.SearchStrategy[int]) -> Tensor:
    """Vectors of any precision, with lengths anywhere between its smallest and largest number."""
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    values = torch.randn(draw(count), draw(dim), generator=generator, dtype=torch.float64)
    info = torch.finfo(dtype)
    least, most = math.log10(info.smallest_normal) - 3, math.log10(info.max)
    share = torch.rand(len(values), 1, generator=generator, dtype=torch.float64)
    if draw(st.booleans(), label="one magnitude for all"):
        share = share[:1]
    vectors = (values * 10 ** (least + (most - least) * share)).clamp(info.min, info.max).to(dtype)
    for value in draw(st.lists(st.sampled_from([0.0, info.max, info.min, info.tiny, math.nan, math.inf]), max_size=2)):
        vectors[draw(st.integers(0, len(vectors) - 1))] = value
    if draw(st.booleans(), label="equal rows"):  # where distances are zero and their roots have no derivative
        vectors[-1] = vectors[0]
    return vectors


def classes(draw: Callable[..., Any], count: int, num_classes: int) -> Tensor:
    return torch.tensor(draw(st.lists(st.integers(0, num_classes - 1), min_size=count, max_size=count)))


def attempt(function: Callable[[], T]) -> T | None:
    """The result of ``function``, or None if it raises a ValueError with an explanation."""
    try:
        return function()
    except ValueError as error:
        if len(str(error)) < 20:
            raise
        return None


@pytest.mark.parametrize("name", [*sorted(LOSSES), "hdc"])
@given(data=st.data())
def test_a_loss_and_its_gradient_are_finite_or_an_error_says_why(name: str, data: st.DataObject) -> None:
    num_classes, dim = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4))
    embeddings = data.draw(rows(st.integers(1, 9), st.just(dim)))
    labels = classes(data.draw, len(embeddings), num_classes)
    torch.manual_seed(0)
    loss = attempt(lambda: HDCLoss(num_classes, dim) if name == "hdc" else build_loss(name, num_classes, dim))
    if loss is None:
        return
    if isinstance(loss, HTLLoss):
        loss.start_epoch(torch.randn(3 * num_classes, dim), torch.arange(3 * num_classes) % num_classes)
    # Losses compute in float32 or wider; the gradient of a tiny half-precision number would overflow half precision.
    wide = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)).requires_grad_()
    for vectors in (embeddings, wide):
        value = attempt(lambda vectors=vectors: loss(vectors, labels))
        assert value is None or value.isfinite(), f"{name} is {value}"
    if value is not None:
        value.backward()
        for tensor in (wide, *loss.parameters()):
            assert tensor.grad is None or tensor.grad.isfinite().all(), f"the gradient of {name} is {tensor.grad}"


@given(data=st.data())
def test_a_report_is_finite_or_an_error_says_why(data: st.DataObject) -> None:
    vectors = data.draw(rows(st.integers(1, 12), st.integers(1, 5)))
    labels = classes(data.draw, len(vectors), 5) - 2
    budget = data.draw(st.sampled_from([1 << 12, 1 << 30]))
    report = attempt(lambda: evaluate(Embeddings(vectors, labels), memory_budget=budget))
    if report is None:
        return
    shares = [*report.recall.values(), report.r_precision, report.map_at_r, report.nmi]
    assert all(share is not None and 0 <= share <= 1 for share in shares), report
    assert report.ami is not None
    assert -1 <= report.ami <= 1
    for low, high in report.intervals.values():
        assert 0 <= low <= high <= 1


@given(data=st.data())
def test_neighbours_and_clusters_of_unit_vectors_are_complete(data: st.DataObject) -> None:
    drawn = data.draw(rows(st.integers(2, 12), st.integers(1, 5)))
    vectors = F.normalize(drawn.double().nan_to_num(), dim=1).float()  # some of them zeros
    labels = classes(data.draw, len(vectors), 4)
    k = data.draw(st.integers(1, len(vectors)))

    neighbors = nearest(vectors, vectors, k)
    assert neighbors.scores.isfinite().all()
    assert (neighbors.scores.diff(dim=1) <= 0).all()
    assert all(len(set(row)) == k and set(row) <= set(range(len(vectors))) for row in neighbors.rows.tolist())

    clusters = kmeans(vectors, k, seed=0)
    assert ((clusters.clusters >= 0) & (clusters.clusters < k)).all()
    assert math.isfinite(clusters.objective)
    assert 0 <= nmi(labels, clusters.clusters) <= 1
    assert -1 <= ami(labels, clusters.clusters) <= 1

    ranks = first_hit_ranks(vectors, labels)
    alone = (labels[:, None] == labels).sum(dim=1) == 1
    assert torch.equal(ranks == 0, alone)
    assert (ranks < len(vectors)).all()
