"""The files of an encoder: what they hold, and what is wrong with damaged ones."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.small_encoder import small
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models import BACKBONES, Backbone, Encoder, EncoderConfig
from softtriple.models.backbones import restore_backbone
from softtriple.models.backbones.stages import Chain


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
