from typing import Any

import pytest

from softtriple.models import build_backbone


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet", {}, "unknown backbone 'resnet'; choose from bn-inception, efficientnet-lite0"),
        ("mlp", {}, "mlp takes vectors and needs in_features"),
        ("mlp", {"in_features": 3, "width": 8}, "mlp takes vectors and has no option width"),
        ("efficientnet-lite0", {"in_features": 3}, "takes images and has no option in_features"),
        ("conv-small", {"weights": "x.pth"}, "conv-small takes no weights file"),
        ("bn-inception", {"weights": "x.pth", "pretrained": False}, "contradicts pretrained = false"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_backbone(name, **options)
