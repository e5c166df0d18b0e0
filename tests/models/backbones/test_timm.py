import math
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from softtriple.errors import UserError
from softtriple.models import Encoder, build_backbone
from softtriple.models.backbones.timm import LAYOUTS
from softtriple.models.preprocess import Preprocess

# A small network of each class in LAYOUTS, and its number of blocks; the last ones have no layout.
NETWORKS = {
    "test_byobnet": 4,
    "resnet50_clip": 4,
    "test_convnext": 4,
    "test_efficientnet": 5,
    "vit_small_patch16_dinov3": 12,
    "eva02_tiny_patch14_224": 12,
    "vit_small_patch16_rope_mixed_224": 12,
    "coatnet_pico_rw_224": 4,
    "poolformer_s12": 4,
    "inception_next_atto": 4,
    "test_mambaout": 4,
    "mobilenetv3_small_050": 6,
    "nf_regnet_b0": 4,
    "regnetx_002": 4,
    "test_resnet": 4,
    "resnetv2_18": 4,
    "swin_tiny_patch4_window7_224": 4,
    "swinv2_tiny_window8_256": 4,
    "test_vit": 6,
    "test_vit2": 8,
    "vit_tiny_patch16_224": 12,
    "beit_base_patch16_224": 0,
    "tiny_vit_5m_224": 0,
}


def images_for(preprocess: Preprocess, count: int = 1) -> Tensor:
    size = preprocess.size
    return preprocess(torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8))


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_those_before_timms_classifier(name: str) -> None:
    torch.manual_seed(0)
    network = build_backbone(f"timm:{name}", pretrained=False).eval()
    inner = network.get_submodule("network")
    assert isinstance(network.preprocess, Preprocess)
    inputs = images_for(network.preprocess)
    with torch.inference_mode():
        expected = inner.forward_head(inner.forward_features(inputs), pre_logits=True)  # type: ignore[operator]
        features = network(inputs)
    assert features.ndim == (2 if network.pooled else 4)
    torch.testing.assert_close(features if network.pooled else features.mean(dim=(2, 3)), expected)
    assert features.shape[1] == network.num_features
    assert len([stage for stage in network.stage_names if stage not in ("stem", "tail", "network")]) == NETWORKS[name]


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_every_layout_is_tried() -> None:
    with torch.device("meta"):
        tried = {type(timm.create_model(name, num_classes=0)).__name__ for name in NETWORKS}
    assert LAYOUTS.keys() <= tried


def test_preprocessing_is_timms_data_configuration() -> None:
    network = build_backbone("timm:vit_tiny_patch16_224", pretrained=False)
    data = timm.data.resolve_model_data_config(network.get_submodule("network"))
    preprocess = network.preprocess
    assert isinstance(preprocess, Preprocess)
    assert (preprocess.size, preprocess.resize) == (224, math.floor(224 / data["crop_pct"])) == (224, 248)
    assert (preprocess.mean, preprocess.std, preprocess.channels) == (tuple(data["mean"]), tuple(data["std"]), "rgb")


def test_freezing_blocks_of_a_transformer() -> None:
    encoder = Encoder.from_backbone("timm:test_vit", dim=4, pretrained=False)
    assert encoder.set_trainable("last:2") == 6  # the norm with the pooling, and the last of six blocks
    learning = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    inner = "backbone.network."
    assert all(name.startswith((f"{inner}blocks.5.", f"{inner}norm.", "head.")) for name in learning)
    encoder.set_trainable("last:7")
    frozen = {name for name, parameter in encoder.named_parameters() if not parameter.requires_grad}
    assert frozen > {f"{inner}cls_token", f"{inner}pos_embed", f"{inner}patch_embed.proj.weight"}
    assert all(not name.startswith(f"{inner}blocks.") for name in frozen)


def test_own_pooling_is_kept() -> None:
    Encoder.from_backbone("timm:test_resnet", dim=4, pretrained=False, pooling="average+max")
    with pytest.raises(UserError, match=r"timm:test_vit has its own pooling.*average\+max"):
        Encoder.from_backbone("timm:test_vit", dim=4, pretrained=False, pooling="average+max")


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_resnet"])
def test_evaluation_at_another_size(name: str, tmp_path: Path) -> None:
    encoder = Encoder.from_backbone(name, dim=4, pretrained=False, input_size=64, eval_size=96).eval()
    pictures = [torch.randint(0, 256, (120, 100, 3), dtype=torch.uint8)]
    assert encoder.example().shape[-2:] == (96, 96)
    encoder.save(tmp_path)
    loaded = Encoder.load(tmp_path)
    assert loaded.config == encoder.config
    assert (loaded.embed(pictures) == encoder.embed(pictures)).all()


def test_a_network_of_one_size_only() -> None:
    with pytest.raises(UserError, match="timm:convit_tiny does not take images of eval_size = 100"):
        Encoder.from_backbone("timm:convit_tiny", dim=4, pretrained=False, eval_size=100)


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_weights_from_a_file(tmp_path: Path, name: str, suffix: str) -> None:
    torch.manual_seed(1)
    original = timm.create_model(name, num_classes=10).eval()
    path = tmp_path / f"weights.{suffix}"
    save_file(original.state_dict(), path) if suffix == "safetensors" else torch.save(original.state_dict(), path)
    network = build_backbone(f"timm:{name}", weights=str(path)).eval()
    assert isinstance(network.preprocess, Preprocess)
    inputs = images_for(network.preprocess)
    with torch.inference_mode():
        expected = original.forward_head(original.forward_features(inputs), pre_logits=True)
        features = network(inputs)
    torch.testing.assert_close(features if network.pooled else features.mean(dim=(2, 3)), expected)
    smaller = build_backbone(f"timm:{name}", weights=str(path), input_size=64)
    assert smaller(torch.zeros(1, 3, 64, 64)).shape[1] == network.num_features


def test_weights_of_another_network(tmp_path: Path) -> None:
    torch.save(timm.create_model("test_vit2").state_dict(), tmp_path / "weights.pth")
    with pytest.raises(UserError, match=r"weights\.pth: the weights do not fit"):
        build_backbone("timm:test_vit", weights=str(tmp_path / "weights.pth"))


def test_weights_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def offline(name: str, pretrained: bool, **options: object) -> object:
        if pretrained:
            raise OSError("no route to host\nand more")
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UserError, match=r"timm:test_vit.*no route to host\).*model\.weights=FILE"):
        build_backbone("timm:test_vit")


def test_without_timm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # makes "import timm" fail
    with pytest.raises(ValueError, match=r"timm:resnet18 needs .*: pip install 'softtriple\[timm\]'"):
        build_backbone("timm:resnet18")


@pytest.mark.parametrize("name", ["resnet19", "hf-hub:someone/network", "local-dir:/tmp"])
def test_unknown_network_of_timm(name: str) -> None:
    with pytest.raises(ValueError, match="has no network of that name"):
        build_backbone(f"timm:{name}", pretrained=False)
    with pytest.raises(ValueError, match="did you mean timm:resnet18"):
        build_backbone("timm:resnet1s8", pretrained=False)
