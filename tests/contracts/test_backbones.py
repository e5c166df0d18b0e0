"""What every backbone must do, alone and inside an encoder."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tiny_models import save_text_model, save_vision_model
from torch import Tensor

from softtriple.models import BACKBONES, Encoder, Preprocess, StagedNetwork, build_backbone, check_backbone
from softtriple.models.backbones import LIBRARIES

OPTIONS: dict[str, dict[str, Any]] = {
    "bn-inception": {"input_size": 64},
    "efficientnet-lite0": {"input_size": 64},
    "efficientnet-lite1": {"input_size": 72},
    "efficientnet-lite2": {"input_size": 65},
    "conv-small": {"input_size": 32, "width": 16},
    "linear": {"in_features": 12},
    "mlp": {"in_features": 12, "hidden": (16, 8)},
    "text": {"buckets": 30, "width": 8},
    "timm:test_resnet": {"input_size": 64},
    "timm:test_convnext": {"input_size": 64},
    "timm:test_vit": {"input_size": 64},
    "timm:densenet121": {"input_size": 32},  # a class without a layout: one stage
    "hf:dinov2": {"input_size": 32},
    "hf:convnext": {"input_size": 32},
    "st:bert": {},
}


@pytest.fixture(scope="module", params=OPTIONS)
def name(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of a backbone; models of transformers are saved to a folder first."""
    library, _, model = request.param.partition(":")
    if library not in ("hf", "st"):
        return str(request.param)
    folder = tmp_path_factory.mktemp("models") / model
    save_text_model(folder) if library == "st" else save_vision_model(model, folder)
    return f"{library}:{folder}"


@pytest.fixture(scope="module")
def options(name: str) -> dict[str, Any]:
    library, _, folder = name.partition(":")
    return OPTIONS[f"{library}:{Path(folder).name}" if library in ("hf", "st") else name]


@pytest.fixture(scope="module")
def takes(name: str) -> str:
    return check_backbone(name, pretrained=False).takes


@pytest.fixture(scope="module")
def network(name: str, options: dict[str, Any]) -> StagedNetwork:
    torch.manual_seed(0)
    return build_backbone(name, pretrained=False, **options)


@pytest.fixture(scope="module")
def built_encoder(name: str, options: dict[str, Any]) -> Encoder:
    torch.manual_seed(0)
    return Encoder.from_backbone(name, dim=4, pretrained=False, **options)


@pytest.fixture
def encoder(built_encoder: Encoder) -> Encoder:
    """A copy for each test, because tests change it; building one takes longer."""
    return copy.deepcopy(built_encoder)


@pytest.fixture(scope="module")
def batch(takes: str, options: dict[str, Any]) -> Tensor | list[str]:
    generator, count = torch.Generator().manual_seed(1), 3
    if takes == "text":
        # Enough for each of the few buckets.
        return ["how do I reset my pin?", "where is the order that I placed last week", "please cancel the membership"]
    if takes == "vector":
        return torch.randn(count, options["in_features"], generator=generator)
    size = options["input_size"]
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def inputs(network: StagedNetwork, batch: Any) -> Tensor:
    prepared: Tensor = batch if network.preprocess is None else network.preprocess(batch)
    return prepared


def test_every_backbone_is_here() -> None:
    assert BACKBONES.keys() <= OPTIONS.keys()
    assert {name.partition(":")[0] for name in OPTIONS if ":" in name} == LIBRARIES.keys()


def test_vectors_have_no_preprocessing(takes: str, options: dict[str, Any], network: StagedNetwork) -> None:
    assert (network.preprocess is None) == (takes == "vector")
    if isinstance(network.preprocess, Preprocess):
        assert network.preprocess.size == options["input_size"]


def test_an_encoder_knows_what_it_takes(takes: str, encoder: Encoder) -> None:
    assert encoder.takes == takes
    with torch.inference_mode():
        assert encoder.eval()(encoder.example(2)).shape == (2, encoder.dim)


def test_output_has_num_features_channels(inputs: Tensor, network: StagedNetwork) -> None:
    output = network.eval()(inputs)
    assert output.shape[:2] == (3, network.num_features)
    assert output.ndim == (2 if network.pooled else 4)


def test_running_in_two_parts_is_running(inputs: Tensor, network: StagedNetwork) -> None:
    network.eval()
    with torch.inference_mode():
        whole = network(inputs)
        for count in range(len(network.stage_names) + 1):
            assert torch.equal(network.run(network.run(inputs, 0, count), count), whole), count


@pytest.mark.parametrize(("first", "last"), [(-1, None), (0, 99), (1, 0)])
def test_stages_that_do_not_exist(inputs: Tensor, network: StagedNetwork, first: int, last: int | None) -> None:
    with pytest.raises(ValueError, match="do not lie between 0 and"):
        network.run(inputs, first, last)


def test_every_parameter_belongs_to_one_stage(network: StagedNetwork) -> None:
    stages = range(len(network.stage_names))
    owned = [p for index in stages for module in network.stage_modules(index) for p in module.parameters()]
    assert sorted(map(id, owned)) == sorted(map(id, network.parameters()))


def test_gradient_reaches_every_parameter(batch: Any, encoder: Encoder) -> None:
    vectors = encoder.train()(encoder.prepare(batch))
    (vectors * torch.randn_like(vectors)).sum().backward()
    for parameter_name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


def test_encoder_gives_unit_vectors(batch: Any, encoder: Encoder) -> None:
    vectors = encoder.eval()(encoder.prepare(batch))
    assert vectors.shape == (3, encoder.dim)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))


def test_cached_features_give_the_same_vectors(batch: Any, encoder: Encoder) -> None:
    inputs = encoder.eval().prepare(batch)
    with torch.inference_mode():
        whole = encoder(inputs)
        for count in range(encoder.num_stages + 1):
            # What comes back from a cache file has lost its memory order, so sums may round differently.
            cached = encoder.backbone.run(inputs, 0, count).contiguous()
            torch.testing.assert_close(encoder.run_from(cached, count), whole, atol=1e-5, rtol=1e-4)


def test_saved_and_loaded_is_the_same(batch: Any, encoder: Encoder, tmp_path: Path) -> None:
    inputs = encoder.prepare(batch)
    encoder.train()(inputs)  # running statistics travel too
    encoder.eval().save(tmp_path)
    loaded = Encoder.load(tmp_path)
    assert not loaded.training
    assert loaded.config == encoder.config
    assert loaded.preprocess == encoder.preprocess
    with torch.inference_mode():
        assert torch.equal(loaded(inputs), encoder(inputs))


@pytest.mark.parametrize("part", ["all", "last:2", "head"])
def test_frozen_stages_do_not_move(batch: Any, encoder: Encoder, part: str) -> None:
    if part == "last:2" and encoder.num_stages < 2:
        part = "all"
    frozen = encoder.set_trainable(part)
    before = copy.deepcopy(encoder)
    step(encoder.train(), encoder.prepare(batch))
    moved = [
        any(
            not torch.equal(a, b)
            for old, new in zip(*(e.backbone.stage_modules(index) for e in (before, encoder)), strict=True)
            for a, b in zip(old.state_dict().values(), new.state_dict().values(), strict=True)
        )
        for index in range(encoder.num_stages)
    ]
    assert moved == [index >= frozen for index in range(encoder.num_stages)]


def step(encoder: Encoder, inputs: Tensor) -> None:
    """One step of gradient descent on what learns."""
    vectors = encoder(inputs)
    (vectors * torch.randn_like(vectors)).sum().backward()
    torch.optim.SGD([p for p in encoder.parameters() if p.requires_grad], lr=0.01).step()
