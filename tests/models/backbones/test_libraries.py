"""Models of other libraries: where they come from, and what is kept of their configuration."""

import sys
from pathlib import Path

import pytest
import transformers
from tests.tiny_models import save_vision_model

from softtriple.errors import UserError
from softtriple.models import build_backbone
from softtriple.models.backbones.libraries import clean_config


def test_a_torchvision_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("softtriple.models.backbones.libraries.importlib.import_module", fail)
    with pytest.raises(UserError, match=r"torchvision::nms does not exist.*install the torchvision"):
        build_backbone("timm:resnet18", pretrained=False)


def test_a_torchvision_that_does_not_fit_a_model_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers imports the module of a model, and torchvision with it, when its class is looked up."""
    save_vision_model("vit", tmp_path)

    class Lazy:
        __spec__ = transformers.__spec__
        CONFIG_MAPPING = transformers.CONFIG_MAPPING

        def __getattr__(self, name: str) -> None:
            raise ModuleNotFoundError(f"Could not import module {name!r}")

    monkeypatch.setitem(sys.modules, "transformers", Lazy())
    with pytest.raises(UserError, match=r"Could not import module 'ViTModel'\).*install the torchvision"):
        build_backbone(f"hf:{tmp_path}")


def test_a_configuration_loses_what_would_load_code() -> None:
    harmful = {
        "auto_map": {"AutoModel": "own.Model"},
        "attn_implementation": "some/kernel",
        "_attn_implementation": "k",
    }
    nested = {"rope": {"theta": 1.0, "auto_map": {}}}
    assert clean_config({"hidden_size": 8} | harmful | nested, "hf:x") == {"hidden_size": 8, "rope": {"theta": 1.0}}


@pytest.mark.parametrize("library", ["hf", "st"])
def test_no_such_folder(tmp_path: Path, library: str) -> None:
    with pytest.raises(UserError, match="nowhere: neither a folder nor a model"):
        build_backbone(f"{library}:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("complete", [True, False])
def test_the_cache_comes_before_the_network(
    tmp_path: Path, complete: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is in the cache is used as it is; a download that was interrupted is completed, with a note."""
    save_vision_model("dinov2", tmp_path / "whole")
    asked = []

    def snapshot_download(name: str, allow_patterns: list[str], local_files_only: bool = False) -> str:
        asked.append((name, local_files_only))
        assert not any(pattern.endswith((".py", ".bin")) for pattern in allow_patterns)
        return str(tmp_path if local_files_only and not complete else tmp_path / "whole")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert build_backbone("hf:facebook/dinov2-tiny").num_features == 32
    assert asked == [("facebook/dinov2-tiny", True)] + [("facebook/dinov2-tiny", False)] * (not complete)
    assert ("facebook/dinov2-tiny: downloading" in caplog.text) != complete


def test_a_model_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(name: str, **_: object) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(UserError, match=r"hf:some/model: neither a folder nor .*no route to host"):
        build_backbone("hf:some/model")
