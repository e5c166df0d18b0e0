"""Any nn.Module as a backbone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models import Encoder, Preprocess
from softtriple.models.backbones.module import module_backbone
from softtriple.models.preprocess import IMAGENET

SMALL = Preprocess(size=8, resize=10, channels="gray", peak=1.0, mean=(0.5,), std=(0.5,))


class Tokens(nn.Module):
    """Token ids to one vector for each token; its two tables are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 6)
        self.output = nn.Linear(6, 256)
        self.output.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(ids)
        return vectors


def letters(texts: list[str]) -> Tensor:
    width = max(map(len, texts), default=0) or 1
    return torch.tensor([list(text.ljust(width).encode()) for text in texts])


def vector_module() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU())


def image_module() -> nn.Module:
    return nn.Conv2d(1, 5, 3)


def build(kind: str, **options: Any) -> Encoder:
    torch.manual_seed(0)
    match kind:
        case "vector":
            return Encoder.from_module(vector_module(), dim=4, in_features=3, **options)
        case "image":
            return Encoder.from_module(image_module(), dim=4, preprocess=SMALL, **options)
        case _:
            return Encoder.from_module(Tokens(), dim=4, preprocess=letters, **options)


ITEMS: dict[str, Any] = {
    "vector": np.random.default_rng(0).standard_normal((5, 3)),
    "image": np.random.default_rng(0).integers(0, 256, (5, 12, 11, 3), dtype=np.uint8),
    "text": ["one", "two or three", "x", "longer than the others", "five"],
}
MODULES: dict[str, Any] = {"vector": vector_module, "image": image_module, "text": Tokens}


@pytest.mark.parametrize("kind", ITEMS)
def test_it_is_an_encoder_like_any_other(kind: str) -> None:
    encoder = build(kind, class_names=("a", "b"))
    assert encoder.takes == kind
    assert encoder.class_names == ("a", "b")
    assert encoder.embed(ITEMS[kind]).shape == (5, 4)
    assert encoder(encoder.example(2)).shape == (2, 4)
    assert encoder.set_trainable("head") == encoder.num_stages == 1
    assert not any(parameter.requires_grad for parameter in encoder.backbone.parameters())


@pytest.mark.parametrize("pooling", ["average", "average+max"])
def test_feature_maps_are_pooled(pooling: Any) -> None:
    encoder = build("image", pooling=pooling).eval()
    maps = encoder.backbone(encoder.example(2))
    assert maps.shape == (2, 5, 6, 6)
    expected = maps.mean(dim=(2, 3)) + (maps.amax(dim=(2, 3)) if pooling == "average+max" else 0)
    torch.testing.assert_close(encoder.features(encoder.example(2)), expected)


def test_tokens_are_averaged() -> None:
    encoder = build("text").eval()
    ids = letters(["abc", "abd"])
    expected = F.embedding(ids, encoder.get_parameter("backbone.module.embedding.weight")).mean(dim=1)
    torch.testing.assert_close(encoder.features(ids), expected)


def test_preprocessing_by_default() -> None:
    module = nn.Conv2d(3, 5, 3, stride=32)
    assert Encoder.from_module(module).preprocess == IMAGENET
    grey = nn.Conv2d(1, 5, 3)
    grey.preprocess = SMALL
    assert Encoder.from_module(grey).preprocess == SMALL


def test_finding_the_width_changes_nothing() -> None:
    module = vector_module().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    assert module_backbone(module, in_features=3).num_features == 8
    assert module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("kind", ITEMS)
def test_saved_and_loaded_into_a_module_that_is_given(kind: str, tmp_path: Path) -> None:
    encoder = build(kind)
    encoder.save(tmp_path)
    module = MODULES[kind]()
    loaded = Encoder.load(tmp_path, backbone=module, preprocess=letters if kind == "text" else None)
    assert np.array_equal(loaded.embed(ITEMS[kind]), encoder.embed(ITEMS[kind]))
    assert loaded.config == encoder.config
    assert loaded.fingerprint() == encoder.fingerprint()
    assert next(module.parameters()) is next(loaded.backbone.parameters())
    if kind == "text":
        assert module.output.weight is module.embedding.weight


def test_loading_says_what_to_pass(tmp_path: Path) -> None:
    build("vector").save(tmp_path / "own")
    with pytest.raises(UserError, match=r"own: .*torch\.nn\.modules\.container\.Sequential.*pass .*backbone=module"):
        Encoder.load(tmp_path / "own")
    with pytest.raises(UserError, match=r"do not fit the network .*backbone\.module\.0\.weight"):
        Encoder.load(tmp_path / "own", backbone=nn.Sequential(nn.Linear(3, 9)))
    Encoder.from_backbone("linear", in_features=3).save(tmp_path / "named")
    with pytest.raises(UserError, match=r"named: .*linear; leave out .*backbone=module"):
        Encoder.load(tmp_path / "named", backbone=vector_module())


class _Other(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.Linear(3, 4), {}, "Linear fails on an example input .*in_features="),
        (nn.Linear(3, 4), {"in_features": 5}, "Linear fails on an example input"),
        (_Other({"features": 1}), {"in_features": 3}, "_Other returns dict for 2 items"),
        (_Other(torch.zeros(2)), {"in_features": 3}, r"_Other returns \(2,\) for 2 items"),
        (_Other(torch.zeros(3, 4)), {"in_features": 3}, r"_Other returns \(3, 4\) for 2 items"),
        (nn.Linear(3, 4), {"in_features": 3, "preprocess": SMALL}, "one or the other"),
    ],
)
def test_mistakes_are_named(module: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Encoder.from_module(module, **options)


def test_features_of_user_code_are_not_cached() -> None:
    vectors = Encoder.from_module(nn.Linear(3, 4), in_features=3, dim=2)
    assert not vectors.backbone.cacheable
    assert Encoder.from_backbone("mlp", in_features=3, dim=2).backbone.cacheable


def test_pooling_that_would_do_nothing() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(UserError, match=r"own pooling.*average\+max"):
        Encoder.from_module(network, dim=2, pooling="average+max")
