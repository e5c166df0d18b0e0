"""Shared by backbones from other libraries: imports, and the folder, configuration and weights of a model.

Models of transformers come from a folder or from the Hugging Face hub. Weights are read from safetensors only, and code
in a model's repository is never run: the architecture is a class of the installed library.
"""

import importlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softtriple.errors import UserError, did_you_mean, first_line

CONFIG = "config.json"
# Files to download of a model; neither code nor pickles.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
# Removed from a configuration: what does not describe the network, or would load code or other files.
_REMOVED = {
    "architectures",
    "attn_implementation",
    "auto_map",
    "dtype",
    "experts_implementation",
    "kernel_config",
    "quantization_config",
    "torch_dtype",
    "transformers_version",
    "use_kernels",
}
_MOST_LAYERS = 1000
_TORCHVISION = "install the torchvision that belongs to the installed torch"


def import_library(package: str, name: str) -> Any:
    """The module ``package``, or UserError if it, or torchvision below it, cannot be imported."""
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:  # torchvision raises either if it does not fit the installed torch
        raise UserError(f"{name}: {package} cannot be imported ({first_line(error)}); {_TORCHVISION}") from error


def model_folder(name: str) -> Path:
    """The folder of the model ``name``, prefix:FOLDER or prefix:MODEL, downloaded from the hub if it is not cached."""
    model = name.partition(":")[2]
    if Path(model).is_dir():
        return Path(model)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        raise UserError(f"{name}: neither a folder nor a model of the Hugging Face hub")
    hub = importlib.import_module("huggingface_hub")
    try:
        folder = Path(hub.snapshot_download(model, allow_patterns=_FILES, local_files_only=True))
        if (folder / CONFIG).is_file() and any(folder.glob("*.safetensors")):
            return folder
    except (OSError, ValueError):
        pass  # not in the cache
    logging.getLogger(__name__).warning("%s: downloading from the Hugging Face hub", name)
    try:
        return Path(hub.snapshot_download(model, allow_patterns=_FILES))
    except Exception as error:  # huggingface_hub and its HTTP client raise many types
        raise UserError(
            f"{name}: neither a folder nor a model that can be loaded from the Hugging Face hub ({first_line(error)})"
        ) from error


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file."""
    if not path.is_file():
        return None
    return parse_json(path.read_text(encoding="utf-8", errors="replace"), str(path))


def parse_json(text: str, source: str) -> dict[str, Any]:
    """The object in the text of a JSON file; errors name ``source``."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{source}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{source}: expected an object, found a {type(content).__name__}")
    return content


def read_config(folder: Path, name: str) -> dict[str, Any]:
    """The configuration of the model in ``folder``."""
    content = read_json(folder / CONFIG)
    if content is None:
        raise UserError(f"{name}: {folder / CONFIG} is missing; expected the folder of a transformers model")
    return content


def clean_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """``config`` without private keys, keys that do not describe the network, and keys that would load code."""
    layers = config.get("num_hidden_layers", 0)
    depths = config.get("depths") or [0]
    if not isinstance(layers, int) or layers > _MOST_LAYERS or max(depths) > _MOST_LAYERS:
        raise UserError(f"{name}: {CONFIG} asks for more than {_MOST_LAYERS} layers")
    return _cleaned(config)


def _cleaned(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _cleaned(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not key.startswith("_") and key not in _REMOVED
    }


def config_text(config: Mapping[str, Any]) -> str:
    """The content of the config.json that is saved with an encoder."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def check_model_type(config: Mapping[str, Any], supported: Iterable[str], kind: str, name: str) -> str:
    """The ``model_type`` of ``config``, or UserError if it is none of ``supported``."""
    model_type = str(config.get("model_type"))
    if model_type not in supported:
        hint = did_you_mean(model_type, supported)
        raise UserError(f"{name}: model_type {model_type!r} is not a supported {kind}; {hint}")
    return model_type


def build_model(build: Callable[[Any], Any], config: Mapping[str, Any], name: str) -> Any:
    """The model that ``build`` makes of ``config``, with random weights."""
    kinds = import_library("transformers", name).CONFIG_MAPPING
    try:
        model = build(kinds[config["model_type"]].from_dict(dict(config)))
    except ImportError as error:  # transformers imports a model's module, and what it needs, only now
        raise UserError(f"{name}: the network cannot be imported ({first_line(error)}); {_TORCHVISION}") from error
    except Exception as error:  # invalid values raise many types
        raise UserError(f"{name}: {CONFIG} does not describe a network that can be built ({error})") from error
    return _without_unused(model)


def load_pretrained(model: Any, folder: Path, name: str) -> Any:
    """A copy of ``model`` with the weights in ``folder``, in float32; none may be missing."""
    options = {"use_safetensors": True, "local_files_only": True, "dtype": torch.float32}
    try:
        with _quiet():
            loaded, info = type(model).from_pretrained(
                str(folder), config=model.config, output_loading_info=True, **options
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{name}: no weights that can be loaded from {folder} ({error})") from error
    unused = ("pooler.", "mask_token")
    if missing := [key for key in sorted(info["missing_keys"]) if not any(part in key for part in unused)]:
        raise UserError(f"{name}: {folder} has no weights for {', '.join(missing[:5])}")
    for parameter in loaded.parameters():
        # Copied out of the memory-mapped file, whose tensors are not aligned: results would change after saving.
        parameter.data = parameter.data.clone()
    return _without_unused(loaded)


def _without_unused(model: Any) -> Any:
    """``model`` without parameters that do not affect features: the mask token and the pooler of a classifier."""
    if isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    for module in model.modules():
        if getattr(module, "mask_token", None) is not None:
            module.mask_token = None
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bar and the table of unused weights, which are left out on purpose."""
    library = importlib.import_module("transformers.utils.logging")
    level = library.get_verbosity()
    bar = library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bar:
            library.enable_progress_bar()
