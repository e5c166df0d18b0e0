import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.tiny_models import PROCESSOR, SIZE, VISION, save_vision_model

from softtriple.errors import UserError
from softtriple.models import Encoder, build_backbone, check_backbone
from softtriple.models.backbones.huggingface import ARCHITECTURES
from softtriple.models.preprocess import Preprocess


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dinov2")
    save_vision_model("dinov2", folder)
    return folder


@pytest.mark.parametrize("name", VISION)
def test_features_are_the_models_own(name: str, tmp_path: Path) -> None:
    model: Any = save_vision_model(name, tmp_path / "model")
    model = getattr(model, "vision_model", model)
    encoder = Encoder.from_backbone(f"hf:{tmp_path / 'model'}", dim=4).eval()
    inputs = torch.randn(2, 3, SIZE, SIZE)
    with torch.inference_mode():
        output = model(inputs)
        # The pooler of a plain ViT belongs to its classifier.
        expected = output.last_hidden_state[:, 0] if name == "vit" else output.pooler_output
        torch.testing.assert_close(encoder.features(inputs), expected)
    encoder.save(tmp_path / "encoder")
    loaded = Encoder.load(tmp_path / "encoder")
    assert torch.equal(loaded(inputs), encoder(inputs))
    assert loaded.preprocess == encoder.preprocess
    larger = Encoder.from_backbone(f"hf:{tmp_path / 'model'}", dim=4, eval_size=48).eval()
    assert larger(larger.example()).shape == (1, 4)


def test_every_architecture_is_tried() -> None:
    assert ARCHITECTURES.keys() <= VISION.keys()


def test_a_saved_encoder_needs_nothing_else(dinov2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder.from_backbone(f"hf:{dinov2}", dim=4)
    encoder.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "encoder.json", "model.safetensors"]
    monkeypatch.setattr("softtriple.models.backbones.libraries.model_folder", None)
    assert Encoder.load(tmp_path).fingerprint() == encoder.fingerprint()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"config\.json: damaged"):
        Encoder.load(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"config\.json is missing"):
        Encoder.load(tmp_path)


def test_layers_can_be_frozen(dinov2: Path) -> None:
    encoder = Encoder.from_backbone(f"hf:{dinov2}", dim=4)
    assert encoder.backbone.stage_names == ("stem", *(f"encoder.layer.{n}" for n in range(3)), "tail")
    assert encoder.set_trainable("last:2") == 3
    learning = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert all("encoder.layer.2." in name or "layernorm." in name or name.startswith("head.") for name in learning)


def test_training_moves_the_whole_network(dinov2: Path) -> None:
    encoder = Encoder.from_backbone(f"hf:{dinov2}", dim=4).train()
    encoder(torch.randn(2, 3, SIZE, SIZE))[:, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"size": 32, "resize": 36, "peak": 1.0, "channels": "rgb", "mean": (0.5, 0.4, 0.3)}),
        ({"do_center_crop": False, "size": {"height": 24, "width": 24}}, {"size": 24, "resize": 24}),
        ({"do_center_crop": False, "size": {"shortest_edge": 28}, "crop_pct": 0.875}, {"size": 28, "resize": 32}),
        ({"size": 40, "crop_size": 32}, {"size": 32, "resize": 40}),
        ({"do_rescale": False}, {"peak": 255.0}),
        ({"rescale_factor": 2 / 255}, {"peak": 2.0}),
        ({"do_normalize": False}, {"mean": (0, 0, 0), "std": (1, 1, 1)}),
        ({"do_flip_channel_order": True}, {"channels": "bgr"}),
    ],
)
def test_settings_of_the_image_processor(
    dinov2: Path, tmp_path: Path, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text((dinov2 / "config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | changes))
    preprocess = build_backbone(f"hf:{tmp_path}", pretrained=False).preprocess
    assert isinstance(preprocess, Preprocess)
    assert {name: getattr(preprocess, name) for name in expected} == expected


def test_input_is_what_the_image_processor_makes(dinov2: Path) -> None:
    """Of an image that needs no resizing; where it does, interpolation may differ."""
    pixels = np.random.default_rng(0).integers(0, 256, (36, 36, 3), dtype=np.uint8)
    processor = transformers.AutoImageProcessor.from_pretrained(dinov2)
    expected = processor(pixels, return_tensors="pt")["pixel_values"]
    preprocess = build_backbone(f"hf:{dinov2}").preprocess
    assert isinstance(preprocess, Preprocess)
    ours = preprocess(torch.from_numpy(pixels[2:34, 2:34]).unsqueeze(0))
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, r"config\.json is missing"),
        ("config.json", "[]", r"config\.json: expected an object"),
        ("config.json", '{"model_type": "detr"}', "model_type 'detr'.*choose from"),
        ("config.json", '{"model_type": "dinov2", "num_hidden_layers": 1000000000}', "more than 1000 layers"),
        ("preprocessor_config.json", None, r"preprocessor_config\.json.* is missing"),
        ("preprocessor_config.json", '{"size": {"longest_edge": 8}}', r"preprocessor_config\.json: .*height"),
        ("model.safetensors", None, "no weights that can be loaded"),
    ],
)
def test_models_that_cannot_be_used(dinov2: Path, tmp_path: Path, file: str, content: str | None, message: str) -> None:
    for path in dinov2.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message):
        build_backbone(f"hf:{tmp_path}")


def test_missing_weights_are_not_made_up(dinov2: Path, tmp_path: Path) -> None:
    for path in dinov2.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(UserError, match=r"no weights for encoder\.layer\.3"):
        build_backbone(f"hf:{tmp_path}")


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"hf:any needs .*: pip install 'softtriple\[huggingface\]'"):
        check_backbone("hf:any")
