from pathlib import Path

import pytest
import torch
from tests.tiny_models import save_text_model, save_vision_model
from torch import nn

from softtriple.errors import UserError
from softtriple.models import Encoder
from softtriple.models.lora import RANK, LowRank

# Eva and Swin V2 read the weight of a projection instead of calling it.
NETWORKS = ("timm:test_vit", "timm:eva02_tiny_patch14_224", "timm:swinv2_cr_tiny_ns_224", "hf:dinov2", "st:bert")


def build(name: str, folder: Path) -> Encoder:
    library, _, model = name.partition(":")
    if library == "timm":
        return Encoder.from_backbone(name, dim=4, pretrained=False)
    save_text_model(folder) if library == "st" else save_vision_model(model, folder)
    return Encoder.from_backbone(f"{library}:{folder}", dim=4)


@pytest.mark.parametrize("name", NETWORKS)
def test_only_the_changes_are_trained_and_they_are_saved_merged(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = build(name, tmp_path / "model").eval()
    inputs = encoder.prepare(["ab", "a b c"]) if name == "st:bert" else torch.randn(2, *encoder.example().shape[1:])
    names, before = set(encoder.state_dict()), encoder(inputs)
    assert encoder.set_trainable("lora") == 0
    torch.testing.assert_close(encoder(inputs), before)  # the changes start at zero
    frozen = {key: p.clone() for key, p in encoder.named_parameters() if not p.requires_grad}
    learning = [key for key, p in encoder.named_parameters() if p.requires_grad]
    assert {key.rpartition(".")[2] for key in learning} == {"up", "down", "weight", "bias"}
    assert {key for key in learning if not key.endswith((".up", ".down"))} == {"head.weight", "head.bias"}

    optimizer = torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=1.0)
    for _ in range(2):  # the first step moves only "up": it starts at zero, so "down" has no gradient yet
        optimizer.zero_grad()
        encoder(inputs)[:, 0].sum().backward()
        assert all(p.grad is not None for p in encoder.parameters() if p.requires_grad)
        optimizer.step()
    assert all(torch.equal(p, frozen[key]) for key, p in encoder.named_parameters() if key in frozen)
    trained = encoder(inputs)
    assert not torch.allclose(trained, before, atol=1e-4)

    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder")
    assert loaded.state_dict().keys() == names
    assert not any(isinstance(module, LowRank) for module in loaded.modules())
    torch.testing.assert_close(loaded(inputs), trained, atol=1e-4, rtol=1e-4)
    assert loaded.fingerprint() == encoder.fingerprint()


def test_training_something_else_merges_first() -> None:
    torch.manual_seed(0)
    encoder = Encoder.from_backbone("timm:test_vit", dim=4, pretrained=False).eval()
    inputs = torch.randn(2, *encoder.example().shape[1:])
    names = list(encoder.state_dict())
    encoder.set_trainable("lora")
    for layer in encoder.modules():
        if isinstance(layer, LowRank):
            nn.init.normal_(layer.up, std=0.1)
    changed = encoder(inputs)
    for part in ("lora", "all"):
        encoder.set_trainable(part)
        torch.testing.assert_close(encoder(inputs), changed, atol=1e-5, rtol=1e-4)
    assert list(encoder.state_dict()) == names
    assert all(p.requires_grad for p in encoder.parameters())


def test_the_sum_by_hand() -> None:
    linear = nn.Linear(40, 30)
    layer = LowRank(linear)
    nn.init.normal_(layer.up)
    assert layer.up.shape == (30, RANK)
    x = torch.randn(5, 40)
    expected = x @ linear.weight.T + linear.bias + 2.0 * (x @ layer.down.T) @ layer.up.T
    torch.testing.assert_close(layer(x), expected)
    torch.testing.assert_close(nn.functional.linear(x, layer.weight, layer.bias), expected)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "timm:test_resnet"])
def test_networks_without_attention(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} has no attention projections"):
        Encoder.from_backbone(name, dim=4, pretrained=False, input_size=64).set_trainable("lora")
