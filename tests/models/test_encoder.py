import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.decomposition import PCA
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models import BACKBONES, Backbone, Encoder, EncoderConfig, check_trainable
from softtriple.models.backbones import restore_backbone
from softtriple.models.backbones.stages import Chain
from softtriple.models.heads import pca_head


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
        ('{"format": 2}', r"encoder\.json: written by a newer softtriple \(format 2, .*Update"),
        ('{"format": 1, "format2": 1}', r"encoder\.json: '\w+' is missing"),
    ],
)
def test_broken_description(tmp_path: Path, text: str, message: str) -> None:
    small().save(tmp_path)
    (tmp_path / "encoder.json").write_text(text)
    with pytest.raises(UserError, match=message):
        Encoder.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("config.depth", 3, "unknown key 'config.depth'"),
        ("config.dim", "4", "config.dim = '4' must be .*integer"),
        ("config.dim", 4.5, "config.dim = 4.5 must be .*integer"),
        ("config.dim", True, "config.dim = True must be .*integer"),
        ("config.dim", -1, "dim = -1 must be positive"),
        ("config.dim", 10**9, r"model\.safetensors: .* do not fit the network"),
        ("config.dim", 10**30, r"encoder\.json: no encoder can be built"),
        ("config.backbone", "conv-smal", "did you mean 'conv-small'"),
        ("config.backbone", "linear", "no encoder can be built .*linear"),
        ("config.pooling", "max", "config.pooling = 'max'"),
        ("config.heads", 3, "HDC"),
        ("preprocess.mean", [float("nan")], r"preprocess\.mean\.0 = nan"),
        ("preprocess.size", 10**6, "size = 1000000"),
        ("preprocess.colour", "red", "unknown key 'preprocess.colour'"),
        ("class_names", [1], r"class_names\.0 = 1 must be .*string"),
        ("sha256", None, "sha256 = None must be .*string"),
        ("author", "me", "unknown key 'author'"),
    ],
)
def test_wrong_values_in_the_description(tmp_path: Path, key: str, value: object, message: str) -> None:
    small().save(tmp_path)
    path = tmp_path / "encoder.json"
    description = json.loads(path.read_text())
    *groups, name = key.split(".")
    place = description[groups[0]] if groups else description
    place[name] = value
    path.write_text(json.dumps(description))
    with pytest.raises(UserError, match=message) as error:
        Encoder.load(tmp_path)
    assert str(tmp_path) in str(error.value)


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


def test_the_network_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small().save(tmp_path)
    devices = []

    def counted(*args: Any, **options: Any) -> Any:
        network = restore_backbone(*args, **options)
        devices.append(next(network.parameters()).device.type)
        return network

    monkeypatch.setattr("softtriple.models.encoder.restore_backbone", counted)
    loaded = Encoder.load(tmp_path)
    assert devices == ["meta"]
    assert all(tensor.device.type == "cpu" for tensor in (*loaded.parameters(), *loaded.buffers()))
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    convolution = loaded.get_parameter("backbone.block2.0.weight")
    assert convolution.is_contiguous(memory_format=torch.channels_last)


def test_buffers_that_are_not_saved_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 4)
            self.register_buffer("shift", torch.arange(4.0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) + self.shift

    shifted = Backbone(lambda in_features: Chain({"all": Shifted()}, num_features=4, preprocess=None), "vector")
    monkeypatch.setitem(BACKBONES, "shifted", shifted)
    encoder = Encoder.from_backbone("shifted", dim=2, in_features=3).eval()
    encoder.save(tmp_path)
    vectors = torch.rand(5, 3)
    assert torch.equal(Encoder.load(tmp_path)(vectors), encoder(vectors))


@pytest.mark.parametrize("name", ["conv-small", "mlp", "text"])
def test_fingerprint_of_memory_and_file_are_equal(tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"in_features": 3} if name == "mlp" else {}
    encoder = Encoder.from_backbone(name, dim=2, **options)
    encoder.save(tmp_path / "encoder")
    assert encoder.fingerprint() == Encoder.load(tmp_path).fingerprint()
    with torch.no_grad():
        encoder.head.bias[0] += 1e-3  # type: ignore[union-attr, index, operator]
    assert encoder.fingerprint() != Encoder.load(tmp_path).fingerprint()


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        small().save(tmp_path)
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"encoder.json": 0o644, "model.safetensors": 0o644}


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
