"""HDC: its loss against loops over heads and pairs, and its encoder against the layers that the authors describe."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import hdc_by_the_book as book
from torch import Tensor

from softtriple.data import ImageArray, Split, View
from softtriple.errors import UserError
from softtriple.models import Encoder, EncoderConfig, build_backbone
from softtriple.models.features import Reading, cached_feed, embed_feed
from softtriple.papers.hdc import (
    TAPS,
    HDCLoss,
    Tap,
    TappedBackbone,
    TappedHeads,
    build_hdc_encoder,
    in_cells,
    load_hdc_encoder,
)


@settings(deadline=None, max_examples=50)
@given(
    size=st.integers(1, 8),
    num_classes=st.integers(1, 4),
    shares=st.sampled_from([[1.0, 0.5, 0.2], [1.0, 1.0, 1.0], [0.6, 0.3, 0.9]]),
    cascade=st.booleans(),
    margin=st.sampled_from([0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient_are_the_papers(
    size: int, num_classes: int, shares: list[float], cascade: bool, margin: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(size, 6, generator=random, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(num_classes, (size,), generator=random)
    expected = book.hdc(embeddings, labels.tolist(), shares, cascade=cascade, margin=margin, factor=10.0)
    value = HDCLoss(num_classes, 6, shares=shares, cascade=cascade, margin=margin)(embeddings, labels)
    torch.testing.assert_close(value, expected)
    (by_book,) = torch.autograd.grad(expected + 0 * embeddings.sum(), embeddings)
    torch.testing.assert_close(torch.autograd.grad(value, embeddings)[0], by_book)


def test_a_cascade_hides_from_later_heads_what_earlier_ones_find_easy() -> None:
    random = torch.Generator().manual_seed(0)
    embeddings = torch.randn(8, 6, generator=random, dtype=torch.float64)
    labels = torch.arange(8) % 4
    cascade, alone = (HDCLoss(4, 6, shares=[0.3, 1.0, 1.0], cascade=flag) for flag in (True, False))
    few = embeddings.clone().requires_grad_()
    cascade(few, labels).backward()
    many = embeddings.clone().requires_grad_()
    alone(many, labels).backward()
    assert few.grad is not None
    assert many.grad is not None
    torch.testing.assert_close(few.grad[:, :2], many.grad[:, :2])  # the first head sees all in both
    assert (few.grad[:, 2:] == 0).all(dim=1).sum() > (many.grad[:, 2:] == 0).all(dim=1).sum()


@pytest.mark.parametrize("cascade", [True, False])
def test_pairs_that_a_head_has_solved_still_reach_those_after_it(cascade: bool) -> None:
    labels, random = torch.arange(30) % 3, torch.Generator().manual_seed(2)
    noise = torch.randn(30, 3, generator=random, dtype=torch.float64)
    solved = 100 * torch.eye(3, dtype=torch.float64)[labels] + noise
    collapsed = torch.ones(30, 6, dtype=torch.float64)
    value = HDCLoss(3, 9, cascade=cascade)(torch.cat([solved, collapsed], dim=1), labels)
    # Heads 2 and 3 keep as hard pairs all their negatives, at distance 0 and a loss of 10 each.
    assert value == pytest.approx(20, abs=0.1)


def test_each_head_is_normalised_by_itself() -> None:
    random = torch.Generator().manual_seed(1)
    embeddings, labels = torch.randn(6, 6, generator=random), torch.arange(6) % 3
    stretched = embeddings * torch.tensor([2.0, 2.0, 0.5, 0.5, 30.0, 30.0])
    torch.testing.assert_close(HDCLoss(3, 6)(stretched, labels), HDCLoss(3, 6)(embeddings, labels))


def test_heads_must_have_equal_width_and_sensible_shares() -> None:
    with pytest.raises(ValueError, match="embedding_size = 64 does not divide into 3 equal heads"):
        HDCLoss(3, 64)
    for shares in ([], [1.0, 0.5], [1.0, 0.5, 0.2, 0.1], [0.5, 0.0, 1.0], [1.5, 1.0, 1.0]):
        with pytest.raises(ValueError, match="must be 3 numbers above 0 and at most 1"):
            HDCLoss(3, 6, shares=shares)


def test_examples_per_class_are_an_option() -> None:
    assert HDCLoss(3, 6, per_class=5).per_class == 5
    with pytest.raises(ValueError, match="per_class = 0"):
        HDCLoss(3, 6, per_class=0)


# What every loss must do.


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    return torch.randn(12, 6, generator=random, dtype=dtype), torch.arange(12) % 5


def test_gradient_is_that_of_finite_differences() -> None:
    embeddings, labels = batch()
    assert torch.autograd.gradcheck(lambda x: HDCLoss(5, 6)(x, labels), embeddings.requires_grad_())


def test_order_of_the_batch_does_not_matter() -> None:
    embeddings, labels = batch()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    loss = HDCLoss(5, 6)
    torch.testing.assert_close(loss(embeddings[order], labels[order]), loss(embeddings, labels))


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        ([0, 1, 2], [1, 1, 1]),
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 0, 0, 0], [0, 0, 1, 1]),
        ([0, 0, 0], [2, 2, 2]),
        ([0], [4]),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_degenerate_batches_have_a_value_and_a_gradient(rows: list[int], labels: list[int], scale: float) -> None:
    embeddings = (scale * batch()[0][rows]).requires_grad_()
    value = HDCLoss(5, 6)(embeddings, torch.tensor(labels))
    value.backward()
    assert value.isfinite()
    assert embeddings.grad is not None
    assert embeddings.grad.isfinite().all()


def test_training_lowers_the_loss() -> None:
    embeddings, labels = batch()
    loss, embeddings = HDCLoss(5, 6), embeddings.requires_grad_()
    before = loss(embeddings, labels).item()
    optimizer = torch.optim.Adam([embeddings], lr=0.03)
    for _ in range(100):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    assert loss(embeddings, labels).item() < 0.7 * before


def test_float32_and_autocast_are_close_to_float64() -> None:
    loss, (embeddings, labels) = HDCLoss(5, 6), batch()
    torch.testing.assert_close(
        loss(embeddings.float(), labels).double(), loss(embeddings, labels), rtol=1e-4, atol=1e-4
    )
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(embeddings.float(), labels)
    torch.testing.assert_close(value, loss(embeddings.float(), labels))


# The encoder.


def config(**options: Any) -> EncoderConfig:
    return EncoderConfig(**({"backbone": "conv-small", "dim": 12, "width": 8} | options))


def encoder(**options: Any) -> Encoder:
    torch.manual_seed(0)
    return build_hdc_encoder(config(**options), ("a", "b")).eval()


def test_a_shallow_head_is_the_authors_on_a_grid_of_cells() -> None:
    torch.manual_seed(0)
    maps, vectors = torch.randn(3, 5, 8, 8), torch.randn(3, 7)
    heads = TappedHeads([Tap(5, 16), Tap(7, 1)], 6, dim=12).eval()
    deep = torch.randn(3, 6)
    parts = heads(torch.cat([in_cells(maps), in_cells(vectors), deep], dim=1)).split(4, dim=1)
    for tapped, part, layers in zip((maps, vectors[:, :, None, None]), parts, heads.heads, strict=False):
        _, reduce, _, _, hidden, _, last = layers
        cells = F.avg_pool2d(tapped, 2) if tapped.shape[2] > 1 else tapped
        x = F.conv2d(cells, reduce.weight[..., None], reduce.bias).relu().flatten(1)
        torch.testing.assert_close(part, F.normalize(last(hidden(x).relu()), dim=1))
    torch.testing.assert_close(parts[2], F.normalize(heads.heads[2](deep), dim=1))


def test_a_shallow_head_sees_where_something_is() -> None:
    tapped = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0)).relu()
    torch.manual_seed(0)
    heads = TappedHeads([Tap(8, 16)], 4, dim=6)
    deep = torch.zeros(2, 4)
    with torch.no_grad():
        straight, mirrored = (heads(torch.cat([in_cells(x), deep], dim=1)) for x in (tapped, tapped.flip(-1)))
    torch.testing.assert_close(tapped.mean(dim=(2, 3)), tapped.flip(-1).mean(dim=(2, 3)))
    assert (straight - mirrored)[:, :3].norm(dim=1).min() > 1e-3


@pytest.mark.parametrize("pooling", ["average", "average+max"])
def test_features_are_the_cells_of_two_maps_and_the_pooled_last(pooling: str) -> None:
    hdc, inputs = encoder(pooling=pooling), torch.randn(5, 1, 32, 32, generator=torch.Generator().manual_seed(1))
    network = hdc.backbone.network
    last = network(inputs)
    pooled = last.mean(dim=(2, 3)) + (last.amax(dim=(2, 3)) if pooling == "average+max" else 0)
    cells = [F.adaptive_avg_pool2d(network.run(inputs, 0, count), 4).flatten(1) for count in (2, 3)]
    torch.testing.assert_close(hdc.features(inputs), torch.cat([*cells, pooled], dim=1))
    embeddings = hdc(inputs)
    torch.testing.assert_close(embeddings.view(5, 3, 4).norm(dim=-1), torch.full((5, 3), 3**-0.5))
    torch.testing.assert_close(hdc.run_from(hdc.features(inputs), hdc.num_stages), embeddings)
    assert (hdc.dim, hdc.num_stages, hdc.class_names) == (12, 1, ("a", "b"))


def test_same_seed_same_weights_as_its_parts() -> None:
    """Parameters are drawn for the backbone first, then for the heads from shallow to deep."""
    hdc = encoder()
    torch.manual_seed(0)
    network = build_backbone("conv-small", width=8)
    heads = TappedHeads([Tap(8, 16), Tap(12, 16)], 16, dim=12)
    drawn = [*network.parameters(), *heads.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(hdc.parameters(), drawn, strict=True))


@pytest.mark.parametrize(
    ("options", "shallow"),
    [
        ({"backbone": "mlp", "in_features": 5, "hidden": (7,)}, (0, 0)),
        ({"backbone": "mlp", "in_features": 5, "hidden": (7, 6)}, (0, 1)),
        ({"backbone": "mlp", "in_features": 5, "hidden": (7, 6, 4, 3)}, (2, 3)),
        ({"backbone": "linear", "in_features": 5}, (0, 0)),
        ({"backbone": "text", "buckets": 9}, (1, 1)),
        ({"backbone": "conv-small"}, (2, 3)),
    ],
)
def test_depths_of_the_shallow_heads(options: dict[str, Any], shallow: tuple[int, int]) -> None:
    hdc = build_hdc_encoder(EncoderConfig(dim=6, **options)).eval()
    assert isinstance(hdc.backbone, TappedBackbone)
    assert hdc.backbone.shallow == shallow
    assert hdc(hdc.example(2)).shape == (2, 6)


def test_bn_inception_is_tapped_after_4a_and_4d() -> None:
    names = build_backbone("bn-inception", pretrained=False).stage_names
    assert [names[count - 1] for count in TAPS["bn-inception"]] == ["inception_4a", "inception_4d"]


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    hdc, inputs = encoder(), torch.randn(3, 1, 32, 32)
    hdc.save(tmp_path)
    loaded = load_hdc_encoder(tmp_path, config())
    assert torch.equal(loaded(inputs), hdc(inputs))
    assert loaded.class_names == ("a", "b")
    with pytest.raises(UserError, match=r"TappedBackbone.* backbone=module"):
        Encoder.load(tmp_path)


def test_training_parts() -> None:
    hdc = encoder()
    assert [hdc.set_trainable(part) for part in ("head", "all")] == [1, 0]


def test_heads_divide_the_dimension() -> None:
    with pytest.raises(UserError, match="dim = 64 must be a multiple of 3"):
        encoder(dim=64)


def test_cached_features_are_kept_apart_from_those_of_the_backbone_alone() -> None:
    split = Split(ImageArray(np.zeros((3, 32, 32), dtype=np.uint8)), np.zeros(3, dtype=np.int64))
    for network in (encoder(), Encoder(config())):
        feed = cached_feed(network, split, Reading(View(size=32, resize=32)), frozen=network.num_stages, views=1)
        assert embed_feed(network, feed).shape == (3, 12)
