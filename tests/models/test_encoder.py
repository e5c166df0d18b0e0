import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sklearn.decomposition import PCA
from torch import Tensor, nn

from softtriple.models import Encoder, EncoderConfig


def small(**options: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder.from_backbone("conv-small", **({"dim": 4, "width": 8} | options))


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
        ({"dim": 0}, "dim = 0 is not positive"),
        ({"hidden": (3,)}, "conv-small takes images and has no option hidden"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**options)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: without the type checks of the test suite, which would come before the error."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
def test_unknown_pooling() -> None:
    with pytest.raises(ValueError, match="pooling = 'max' is not average or average"):
        small(pooling="max")


def test_vectors_are_not_pooled() -> None:
    with pytest.raises(ValueError, match="linear takes vectors: there is nothing to pool"):
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


@pytest.mark.parametrize("part", ["last:0", "last:5", "last:", "last:-1", "tail", "heads", ""])
def test_unknown_part(part: str) -> None:
    with pytest.raises(ValueError, match="is not head, all or last:N with N from 1 to the 4 stages of conv-small"):
        small().set_trainable(part)


def test_no_head_to_train() -> None:
    with pytest.raises(ValueError, match="this encoder has no head"):
        small(dim=None).set_trainable("head")


@pytest.mark.usefixtures("unchecked")
def test_unknown_batch_norm_mode() -> None:
    with pytest.raises(ValueError, match="'all' is not one of off, statistics, statistics"):
        small().freeze_batch_norm("all")  # type: ignore[arg-type]


# PCA.


@pytest.mark.parametrize("layer_norm", [False, True])
def test_head_from_pca_is_scikit_learns(layer_norm: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    spread = torch.linspace(3, 0.5, 6)
    features = torch.randn(50, 6, generator=generator) * spread + 1
    encoder = Encoder.from_backbone("linear", dim=3, in_features=6, layer_norm=layer_norm)
    encoder.initialize_head_from_pca(features)
    rows = F.layer_norm(features, (6,)) if layer_norm else features
    expected = torch.from_numpy(PCA(3).fit_transform(rows.double().numpy())).float()
    assert encoder.head is not None
    projected = encoder.head(rows)
    torch.testing.assert_close(projected.abs(), expected.abs(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(encoder.head.weight @ encoder.head.weight.T, torch.eye(3))


def test_pca_needs_enough_items() -> None:
    encoder = Encoder.from_backbone("linear", dim=3, in_features=6)
    with pytest.raises(ValueError, match="needs more than 3 items"):
        encoder.initialize_head_from_pca(torch.rand(3, 6))


def test_pca_needs_a_head() -> None:
    with pytest.raises(ValueError, match="only a single linear head starts from PCA"):
        small(dim=None).initialize_head_from_pca(torch.rand(20, 16))


# Files.


def test_everything_travels(tmp_path: Path) -> None:
    encoder = Encoder(
        EncoderConfig(backbone="mlp", dim=None, in_features=6, hidden=(5, 4), layer_norm=True), ["été", "b"]
    )
    encoder.save(tmp_path / "run" / "encoder")
    for folder in (tmp_path / "run", tmp_path / "run" / "encoder", str(tmp_path / "run")):
        loaded = Encoder.load(folder)
        assert loaded.config == encoder.config
        assert loaded.class_names == ("été", "b")
    description = json.loads((tmp_path / "run" / "encoder" / "encoder.json").read_text(encoding="utf-8"))
    assert description.keys() == {"format", "softtriple", "sha256", "config", "preprocess", "class_names"}
    files = sorted(path.name for path in (tmp_path / "run" / "encoder").iterdir())
    assert files == ["encoder.json", "model.safetensors"]


def test_loading_needs_no_pretrained_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.from_backbone("efficientnet-lite0", dim=2, input_size=64)
    encoder.save(tmp_path)
    monkeypatch.setattr("softtriple.models.backbones.efficientnet_lite.read_weights", None)
    assert Encoder.load(tmp_path).config.pretrained


def test_preprocessing_comes_from_the_file(tmp_path: Path) -> None:
    small().save(tmp_path)
    path = tmp_path / "encoder.json"
    description = json.loads(path.read_text())
    description["preprocess"]["mean"] = [0.25]
    path.write_text(json.dumps(description))
    preprocess = Encoder.load(tmp_path).preprocess
    assert preprocess is not None
    assert preprocess.mean == (0.25,)


def test_saving_again_replaces(tmp_path: Path) -> None:
    encoder = small()
    encoder.save(tmp_path)
    with torch.no_grad():
        encoder.head.weight.fill_(3)  # type: ignore[union-attr]
    encoder.save(tmp_path)
    assert Encoder.load(tmp_path).head.weight.unique().tolist() == [3]  # type: ignore[union-attr]


def test_a_failed_save_leaves_the_old_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = small()
    encoder.save(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()

    def fail(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr("softtriple.models.weights.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        encoder.save(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == content
    Encoder.load(tmp_path)


def test_no_encoder_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no encoder here, encoder\.json is missing"):
        Encoder.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the description of an encoder"),
        ("[]", "not the description of an encoder"),
        ('{"config": {}}', r"encoder\.json: 'preprocess' is missing"),
        ('{"config": {"depth": 3}, "preprocess": null, "class_names": []}', "there is no 'config.depth'"),
        ('{"config": {"dim": "4"}, "preprocess": null, "class_names": []}', "config.dim = '4' is not a whole number"),
        ('{"format": 2}', "written by a newer softtriple"),
        ('{"config": {"backbone": "linear", "in_features": -1}, "preprocess": null, "class_names": []}', "in_features"),
        ('{"config": {"dim": 1000000000}, "preprocess": null, "class_names": []}', "do not fit the network"),
    ],
)
def test_broken_description(tmp_path: Path, text: str, message: str) -> None:
    small().save(tmp_path)
    (tmp_path / "encoder.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        Encoder.load(tmp_path)


def test_truncated_weights(tmp_path: Path) -> None:
    small().save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        Encoder.load(tmp_path)


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    small().save(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["head.bias"]
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"model\.safetensors: .* do not fit .*\(missing: head\.bias\)"):
        Encoder.load(tmp_path)


def test_flipped_weights(tmp_path: Path) -> None:
    small().save(tmp_path)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors: damaged"):
        Encoder.load(tmp_path)


def test_an_encoder_of_before_the_checksum_is_read(tmp_path: Path) -> None:
    small().save(tmp_path)
    path = tmp_path / "encoder.json"
    description = json.loads(path.read_text())
    del description["format"], description["sha256"]
    path.write_text(json.dumps(description))
    assert Encoder.load(tmp_path).config == small().config


def test_three_heads_tap_three_depths(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = Encoder.from_backbone("conv-small", dim=12, heads=3).eval()
    inputs = torch.randn(5, 1, 32, 32)
    embedded = encoder(inputs)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(5))
    parts = embedded.view(5, 3, 4)
    torch.testing.assert_close(parts.norm(dim=-1), torch.full((5, 3), 3**-0.5))  # each head has its share
    deepest = encoder.backbone(inputs).mean(dim=(2, 3))
    assert torch.equal(encoder.features(inputs)[:, -deepest.shape[1] :], deepest)
    torch.testing.assert_close(encoder.run_from(encoder.run_trunk(inputs, 1), 1), embedded)
    torch.testing.assert_close(encoder.run_from(encoder.features(inputs), encoder.num_stages), embedded)
    with pytest.raises(ValueError, match="the first of 3 heads taps the backbone after 2 stages, and 3 are"):
        encoder.run_from(encoder.run_trunk(inputs, 3), 3)
    encoder.save(tmp_path)
    torch.testing.assert_close(Encoder.load(tmp_path)(inputs), embedded)


def test_three_heads_divide_the_dimension() -> None:
    with pytest.raises(ValueError, match="a dim that is a multiple of 3"):
        Encoder.from_backbone("conv-small", dim=64, heads=3)
