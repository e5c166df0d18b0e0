from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.decomposition import PCA
from tests.models.small_encoder import small
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models import Encoder, check_trainable
from softtriple.models.heads import pca_head


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 1, 32, 32, generator=torch.Generator().manual_seed(1))


# The way from input to unit vectors, rebuilt by hand.


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("pooling", ["average", "average+max"])
@pytest.mark.parametrize("dim", [4, None])
def test_forward_by_hand(pooling: str, layer_norm: bool, dim: int | None) -> None:
    encoder = small(pooling=pooling, layer_norm=layer_norm, dim=dim).eval()
    maps = encoder.backbone(images()).flatten(2)
    x = maps.mean(dim=2) + (maps.max(dim=2).values if pooling == "average+max" else 0)
    torch.testing.assert_close(encoder.features(images()), x)
    if layer_norm:
        x = (x - x.mean(dim=1, keepdim=True)) / (x.var(dim=1, correction=0, keepdim=True) + 1e-5).sqrt()
    if encoder.head is not None:
        x = x @ encoder.head.weight.T + encoder.head.bias
    expected = x / x.norm(dim=1, keepdim=True)
    torch.testing.assert_close(encoder(images()), expected)
    assert encoder.dim == expected.shape[1]


def test_layer_norm_and_pooling_add_no_parameters() -> None:
    assert small(layer_norm=True, pooling="average+max").state_dict().keys() == small().state_dict().keys()


def test_same_seed_same_encoder() -> None:
    for first, second in zip(small().parameters(), small().parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim = 0 must be positive"),
        ({"hidden": (3,)}, "conv-small takes images and has no option hidden"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


@pytest.mark.usefixtures("unchecked")
def test_unknown_pooling() -> None:
    with pytest.raises(ValueError, match="pooling = 'max' must be average or average"):
        small(pooling="max")


def test_vectors_are_not_pooled() -> None:
    with pytest.raises(ValueError, match=r"linear takes vectors: .*average\+max"):
        Encoder.from_backbone("linear", in_features=3, pooling="average+max")


# What learns.


def statistics(encoder: Encoder) -> list[Tensor]:
    return [buffer.clone() for name, buffer in encoder.named_buffers() if "running" in name]


def affine(encoder: Encoder) -> list[nn.Parameter]:
    return [p for m in encoder.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]


@pytest.mark.parametrize(
    ("mode", "statistics_move", "affine_learns"),
    [("off", True, True), ("statistics", False, True), ("statistics+affine", False, False)],
)
def test_frozen_batch_norm(mode: Any, statistics_move: bool, affine_learns: bool) -> None:
    encoder = small()
    encoder.freeze_batch_norm(mode)
    encoder.eval().train()
    before = statistics(encoder)
    encoder(images()).sum().backward()
    moved = [not torch.equal(old, new) for old, new in zip(before, statistics(encoder), strict=True)]
    assert all(moved) == any(moved) == statistics_move
    assert all(p.requires_grad == affine_learns for p in affine(encoder))
    assert all((p.grad is not None) == affine_learns for p in affine(encoder))
    # Frozen statistics make training and evaluation one function.
    same = torch.allclose(encoder.train()(images()), encoder.eval()(images()), atol=1e-6)
    assert same != statistics_move


def test_batch_norm_can_be_thawed() -> None:
    encoder = small().train()
    encoder.freeze_batch_norm("statistics+affine")
    encoder.freeze_batch_norm("off")
    assert all(p.requires_grad for p in encoder.parameters())
    assert all(module.training for module in encoder.modules())


@pytest.mark.parametrize("batch_norm_first", [False, True])
def test_order_of_freezing_does_not_matter(batch_norm_first: bool) -> None:
    encoder = small()
    if batch_norm_first:
        encoder.freeze_batch_norm("statistics+affine")
    assert encoder.set_trainable("last:1") == 3
    encoder.freeze_batch_norm("statistics+affine")
    learning = {name for name, p in encoder.named_parameters() if p.requires_grad}
    assert learning == {"backbone.block4.0.weight", "head.weight", "head.bias"}


def test_trainable_counts_frozen_stages() -> None:
    encoder = small()
    parts = ["head", "last:1", "last:3", "last:4", "all"]
    assert [encoder.set_trainable(part) for part in parts] == [4, 3, 1, 0, 0]
    assert all(p.requires_grad for p in encoder.parameters())


@pytest.mark.parametrize("part", ["last:0", "last:", "last:-1", "last:1.5", "last:²", "tail", "heads", "", "all\n"])
def test_unknown_part(part: str) -> None:
    for check in (check_trainable, small().set_trainable):
        with pytest.raises(UserError, match=r"trainable = .*head, all or last:N"):
            check(part)


def test_more_stages_than_there_are() -> None:
    check_trainable("last:5")
    with pytest.raises(UserError, match="trainable = 'last:5': conv-small has only 4 stages"):
        small().set_trainable("last:5")
    with pytest.raises(UserError, match=r"text has only 1 stage$"):
        Encoder.from_backbone("text", dim=2).set_trainable("last:2")


def test_no_head_to_train() -> None:
    with pytest.raises(ValueError, match="this encoder has no head"):
        small(dim=None).set_trainable("head")


@pytest.mark.usefixtures("unchecked")
def test_unknown_batch_norm_mode() -> None:
    with pytest.raises(ValueError, match="'all' must be one of off, statistics, statistics"):
        small().freeze_batch_norm("all")  # type: ignore[arg-type]


# The start of the head.


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_head_set_to_pca_is_scikit_learns(layer_norm: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    spread = torch.linspace(3, 0.5, 6)
    features = torch.randn(50, 6, generator=generator) * spread + 1
    encoder = Encoder.from_backbone("linear", dim=3, in_features=6, layer_norm=layer_norm)
    encoder.set_head(*pca_head(encoder.head_input(features), 3))
    rows = F.layer_norm(features, (6,)) if layer_norm else features
    expected = torch.from_numpy(PCA(3).fit_transform(rows.double().numpy())).float()
    assert encoder.head is not None
    projected = encoder.head(rows)
    torch.testing.assert_close(projected.abs(), expected.abs(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(encoder.head.weight @ encoder.head.weight.T, torch.eye(3))


def test_the_head_can_be_set() -> None:
    encoder, weight, bias = small(), torch.rand(4, 16, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    encoder.set_head(weight, bias)
    features = torch.rand(3, 16)
    torch.testing.assert_close(encoder.project(features), F.normalize(features @ weight.float().T + bias.float()))
    with pytest.raises(UserError, match="no linear head"):
        small(dim=None).set_head(weight, bias)


# Another size in evaluation.


def test_evaluation_at_another_size(tmp_path: Path) -> None:
    encoder = small(input_size=32, eval_size=48).eval()
    picture = torch.randint(0, 256, (60, 80, 3), dtype=torch.uint8)
    # The short side becomes 48 pixels as conv-small crops nothing; bilinear, as everywhere.
    pixels = torch.from_numpy(np.array(Image.fromarray(picture.numpy()).resize((64, 48), Image.Resampling.BILINEAR)))
    expected = encoder(encoder.prepare(pixels[:, 8:56].unsqueeze(0)))
    torch.testing.assert_close(torch.from_numpy(encoder.embed(picture)), expected)
    assert encoder.example().shape == (1, 1, 48, 48)
    encoder.save(tmp_path)
    loaded = Encoder.load(tmp_path)
    assert (loaded.config, loaded.preprocess) == (encoder.config, encoder.preprocess)
    assert loaded.fingerprint() == encoder.fingerprint() != small(input_size=32).fingerprint()


def test_an_encoder_without_it_says_nothing_of_it(tmp_path: Path) -> None:
    """So that fingerprints of encoders, which stores keep, are those of earlier versions."""
    small().save(tmp_path)
    assert "eval_size" not in (tmp_path / "encoder.json").read_text()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"in_features": 3, "eval_size": 32}, "eval_size = 32: mlp does not take images"),
        ("conv-small", {"eval_size": 8}, "conv-small does not take images of eval_size = 8"),
    ],
)
def test_impossible_evaluation_sizes(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Encoder.from_backbone(name, dim=2, **options)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_truncated_encoder_gives_the_first_numbers(layer_norm: bool, tmp_path: Path) -> None:
    encoder = small(dim=4, layer_norm=layer_norm).eval()
    short = encoder.truncated(2)
    expected = F.normalize(encoder(images())[:, :2], dim=-1)
    torch.testing.assert_close(short(images()), expected)
    assert short.dim == 2
    assert short.preprocess == encoder.preprocess
    short.save(tmp_path)
    torch.testing.assert_close(Encoder.load(tmp_path)(images()), expected)
    torch.testing.assert_close(encoder.truncated(4)(images()), encoder(images()))


@pytest.mark.parametrize("dim", [0, -1, 5])
def test_it_cannot_be_cut_to_any_width(dim: int) -> None:
    with pytest.raises(UserError, match=f"dim = {dim} must be from 1 to 4"):
        small(dim=4).truncated(dim)
    with pytest.raises(UserError, match="no linear head"):
        small(dim=None).truncated(1)
