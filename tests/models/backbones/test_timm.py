import sys

import pytest
import torch

from softtriple.models import build_backbone


def test_without_timm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # makes "import timm" fail
    with pytest.raises(ValueError, match=r"timm:resnet18 needs .*: pip install 'softtriple\[timm\]'"):
        build_backbone("timm:resnet18")


@pytest.mark.parametrize("name", ["resnet18", "convnext_atto"])
def test_network_of_timm(name: str) -> None:
    network = build_backbone(f"timm:{name}", pretrained=False, input_size=64).eval()
    assert network.preprocess is not None
    images = torch.zeros(2, 64, 64, 3, dtype=torch.uint8)
    assert network(network.preprocess(images)).shape == (2, network.num_features, 2, 2)


def test_unknown_network_of_timm() -> None:
    with pytest.raises(ValueError, match="has no network of that name"):
        build_backbone("timm:resnet19", pretrained=False)


def test_tokens_are_refused() -> None:
    network = build_backbone("timm:vit_tiny_patch16_224", pretrained=False)
    with pytest.raises(ValueError, match="choose a convolutional network"):
        network(torch.zeros(1, 3, 224, 224))
