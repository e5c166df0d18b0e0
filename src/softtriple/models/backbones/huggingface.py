"""Vision models of transformers as backbones, from a folder or by name on the Hugging Face hub.

===================  ===========================================================================================
architecture         features
===================  ===========================================================================================
ViT, DINOv2, DINOv3  the class token after the final layer norm
CLIP                 the class token after the final layer norm, before the projection that text and images share
SigLIP               attention pooling of all tokens, the model's own
ConvNeXt             the mean of the feature map, then the final layer norm
Swin                 the mean of all tokens after the final layer norm
===================  ===========================================================================================

Size, mean and standard deviation of the input come from the model's image processor; images are resized bilinearly, the
short side first, and cropped in the centre, also where the processor would squeeze them. Weights are read from
safetensors only, and code that comes with a model is never run: the architecture is a class of the installed library.
"""

import importlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softtriple.errors import UserError, did_you_mean
from softtriple.models.backbones.stages import LibraryNetwork
from softtriple.models.preprocess import Preprocess

CONFIG = "config.json"
# What a model folder needs for us; neither code nor pickles.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
# Of a configuration: what is not about the network, and what would have code or other files loaded.
_NOT_KEPT = {
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


class Architecture(NamedTuple):
    """A class of transformers and where its parts are.

    ``stem`` and ``tail`` name modules before and after the list ``layers``; ``features`` makes pooled features from the
    model and the output of the last layer. ``interpolates`` says that the embeddings take images of other sizes if they
    are told so; ``grid`` says what a layer needs to know about the grid of tokens.
    """

    model: str
    stem: tuple[str, ...]
    layers: str
    tail: tuple[str, ...]
    features: Callable[[Any, Tensor], Tensor]
    interpolates: bool = False
    grid: str | None = None


def _class_token(name: str) -> Callable[[Any, Tensor], Tensor]:
    def features(model: Any, tokens: Tensor) -> Tensor:
        return model.get_submodule(name)(tokens[:, 0])  # type: ignore[no-any-return]

    return features


def _attention_pooled(model: Any, tokens: Tensor) -> Tensor:
    return model.head(model.post_layernorm(tokens))  # type: ignore[no-any-return]


def _mean_of_map(model: Any, x: Tensor) -> Tensor:
    return model.layernorm(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def _mean_of_tokens(model: Any, tokens: Tensor) -> Tensor:
    return model.layernorm(tokens).mean(dim=1)  # type: ignore[no-any-return]


_CLASS_TOKEN = _class_token("layernorm")
_CONVNEXT = Architecture("", ("embeddings",), "encoder.stages", ("layernorm",), _mean_of_map)
_DINOV2 = Architecture("", ("embeddings",), "encoder.layer", ("layernorm",), _CLASS_TOKEN)
_SWIN = Architecture("", ("embeddings",), "encoder.layers", ("layernorm",), _mean_of_tokens, True, "swin")

ARCHITECTURES = {
    "clip_vision_model": Architecture(
        "CLIPVisionModel",
        ("embeddings", "pre_layrnorm"),
        "encoder.layers",
        ("post_layernorm",),
        _class_token("post_layernorm"),
        interpolates=True,
    ),
    "convnext": _CONVNEXT._replace(model="ConvNextModel"),
    "convnextv2": _CONVNEXT._replace(model="ConvNextV2Model"),
    "dinov2": _DINOV2._replace(model="Dinov2Model"),
    "dinov2_with_registers": _DINOV2._replace(model="Dinov2WithRegistersModel"),
    "dinov3_vit": Architecture(
        "DINOv3ViTModel", ("embeddings",), "model.layer", ("norm",), _class_token("norm"), grid="rope"
    ),
    "siglip_vision_model": Architecture(
        "SiglipVisionModel", ("embeddings",), "encoder.layers", ("post_layernorm", "head"), _attention_pooled, True
    ),
    "swin": _SWIN._replace(model="SwinModel"),
    "swinv2": _SWIN._replace(model="Swinv2Model"),
    "vit": Architecture("ViTModel", ("embeddings",), "layers", ("layernorm",), _CLASS_TOKEN, interpolates=True),
}


def vision_model(name: str, *, pretrained: bool = True, input_size: int | None = None) -> "VisionNetwork":
    """The vision model ``name`` of transformers: a folder, or a name on the hub."""
    folder = model_folder(name, "hf")
    config = read_config(folder, "hf", name)
    config = config.get("vision_config", config) | {"model_type": _vision_type(config)}
    preprocess = _image_preprocess(folder, input_size)
    with torch.device("cpu"):  # Encoder.load builds networks on the meta device
        network = vision_network(config, preprocess, f"hf:{name}")
        if pretrained:
            network.network = load_pretrained(type(network.network), folder, network.network.config, f"hf:{name}")
            _drop_unused(network.network)
    return network


def restore_vision(files: Mapping[str, str], preprocess: Preprocess | None, name: str) -> "VisionNetwork":
    """The network of a saved encoder, without weights, from the ``files`` beside them alone."""
    if preprocess is None or CONFIG not in files:
        raise UserError(f"{name}: {CONFIG} and preprocess of the encoder are needed")
    return vision_network(parse_json(files[CONFIG], CONFIG), preprocess, name)


def vision_network(config: Mapping[str, Any], preprocess: Preprocess, name: str) -> "VisionNetwork":
    """The architecture that ``config`` describes, with random weights."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise UserError(
            f"{name}: model_type {kind!r} is not a supported vision model; {did_you_mean(str(kind), ARCHITECTURES)}"
        )
    architecture = ARCHITECTURES[kind]
    kept = clean_config(config, name)
    model = build_model(getattr(import_transformers(name), architecture.model), kept, name)
    _drop_unused(model)
    return VisionNetwork(model, architecture, preprocess, {CONFIG: json.dumps(kept, indent=2, sort_keys=True) + "\n"})


class VisionNetwork(LibraryNetwork):
    """A vision model of transformers in stages: embeddings, each layer, and the final norm with pooling."""

    def __init__(
        self, model: Any, architecture: Architecture, preprocess: Preprocess, files: Mapping[str, str]
    ) -> None:
        layers = model.get_submodule(architecture.layers)
        config = model.config
        super().__init__(
            model,
            blocks=[f"{architecture.layers}.{index}" for index in range(len(layers))],
            tail=architecture.tail,
            num_features=config.hidden_sizes[-1] if hasattr(config, "hidden_sizes") else config.hidden_size,
            preprocess=preprocess,
            files=files,
        )
        self._architecture = architecture

    def run_stem(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Tokens or map of the embeddings."""
        first, *rest = self._architecture.stem
        output: Any = self.network.get_submodule(first)(
            x, **({"interpolate_pos_encoding": True} if self._architecture.interpolates else {})
        )
        tokens: Tensor = output[0] if isinstance(output, tuple) else output
        for name in rest:
            tokens = self.network.get_submodule(name)(tokens)
        return tokens

    def run_block(self, index: int, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of layer ``index``."""
        layer = self.block(index)
        output: Any
        if self._architecture.grid == "swin":
            side = math.isqrt(x.shape[1])
            output = layer(x, (side, side))
        elif self._architecture.grid == "rope":
            output = layer(x, position_embeddings=self._rope(x))
        elif x.ndim == 3:
            output = layer(x, attention_mask=None)
        else:
            output = layer(x)
        tokens: Tensor = output[0] if isinstance(output, tuple) else output
        return tokens

    def run_tail(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Pooled features."""
        return self._architecture.features(self.network, x)

    def _rope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary position embeddings of a square image, of which the model looks at the shape alone."""
        model: Any = self.network
        patch = model.config.patch_size
        side = patch * math.isqrt(x.shape[1] - 1 - model.config.num_register_tokens)
        model.rope_embeddings.eval()  # random positions in training would differ from layer to layer
        position: tuple[Tensor, Tensor] = model.rope_embeddings(x.new_empty(()).expand(1, 1, side, side))
        return position


# What texts and images have in common: sentence_transformers.py uses it as well.


def import_transformers(name: str) -> Any:
    """The module transformers, or UserError if it, or torchvision below it, cannot be imported."""
    try:
        return importlib.import_module("transformers")
    except (ImportError, RuntimeError) as error:
        raise UserError(f"{name}: transformers cannot be imported ({error})") from error


def model_folder(name: str, prefix: str) -> Path:
    """The folder ``name``, or that of the model ``name`` in the hub's cache, downloaded if it is not there."""
    if Path(name).is_dir():
        return Path(name)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise UserError(f"{prefix}:{name}: neither a folder nor a model of the Hugging Face hub")
    hub = importlib.import_module("huggingface_hub")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=_FILES, local_files_only=True))
        if (folder / CONFIG).is_file() and any(folder.glob("*.safetensors")):
            return folder
    except (OSError, ValueError):
        pass  # not in the cache
    logging.getLogger(__name__).warning("%s:%s: downloading from the Hugging Face hub", prefix, name)
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # whatever the network raises
        raise UserError(
            f"{prefix}:{name}: neither a folder nor a model that can be loaded from the Hugging Face hub"
            f" ({(str(error).strip() or type(error).__name__).splitlines()[0]})"
        ) from error


def read_config(folder: Path, prefix: str, name: str) -> dict[str, Any]:
    """The configuration of the model in ``folder``."""
    content = read_json(folder / CONFIG)
    if content is None:
        raise UserError(f"{prefix}:{name}: {folder / CONFIG} is missing; expected a model of transformers")
    return content


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


def build_model(build: Callable[[Any], Any], config: Mapping[str, Any], name: str) -> Any:
    """The model that ``build`` makes of ``config``, with random weights."""
    kinds = import_transformers(name).CONFIG_MAPPING
    try:
        return build(kinds[config["model_type"]].from_dict(dict(config)))
    except Exception as error:  # whatever impossible values lead to
        raise UserError(f"{name}: {CONFIG} does not describe a network that can be built ({error})") from error


def clean_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """``config`` without what is private, what is not about the network, and what would have code loaded."""
    layers = config.get("num_hidden_layers", 0)
    depths = config.get("depths") or [0]
    if not isinstance(layers, int) or layers > _MOST_LAYERS or max(depths) > _MOST_LAYERS:
        raise UserError(f"{name}: {CONFIG} asks for more than {_MOST_LAYERS} layers")
    return _cleaned(config)


def _cleaned(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _cleaned(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if not key.startswith("_") and key not in _NOT_KEPT
    }


def load_pretrained(kind: Any, folder: Path, config: Any, name: str) -> Any:
    """The model of class ``kind`` with the weights in ``folder``, in float32; none may be missing."""
    options = {"use_safetensors": True, "local_files_only": True, "dtype": torch.float32}
    try:
        with _quiet():
            model, loaded = kind.from_pretrained(str(folder), config=config, output_loading_info=True, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{name}: no weights that can be loaded from {folder} ({error})") from error
    unused = ("pooler.", "mask_token")
    if missing := [key for key in sorted(loaded["missing_keys"]) if not any(part in key for part in unused)]:
        raise UserError(f"{name}: {folder} has no weights for {', '.join(missing[:5])}")
    for parameter in model.parameters():
        # Out of the mapped file: its tensors are not aligned, so results would change when the encoder is saved.
        parameter.data = parameter.data.clone()
    return model


def _drop_unused(model: Any) -> None:
    """Remove parameters that no feature depends on: masked training and the pooler of classification."""
    if isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    for module in model.modules():
        if getattr(module, "mask_token", None) is not None:
            module.mask_token = None


def _vision_type(config: Mapping[str, Any]) -> str:
    kind = str(config.get("model_type"))
    return f"{kind}_vision_model" if "vision_config" in config else kind


def _image_preprocess(folder: Path, input_size: int | None) -> Preprocess:
    path = folder / "preprocessor_config.json"
    settings = read_json(path)
    if settings is None:
        path = folder / "processor_config.json"
        settings = (read_json(path) or {}).get("image_processor")
    if settings is None:
        raise UserError(f"{folder}: preprocessor_config.json, the settings of the image processor, is missing")
    try:
        edge = _side(settings["size"])
        crop = _side(settings["crop_size"]) if settings.get("do_center_crop") else edge
        resize = max(edge, crop)
        if settings.get("crop_pct") and crop == edge < 384:  # ConvNeXt's rule
            resize = int(edge / settings["crop_pct"])
        size = input_size or crop
        normal = settings.get("do_normalize", True)
        return Preprocess(
            size=size,
            resize=round(size * resize / crop),
            channels="bgr" if settings.get("do_flip_channel_order") else "rgb",
            peak=255 * settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 255.0,
            mean=tuple(settings["image_mean"]) if normal else (0.0, 0.0, 0.0),
            std=tuple(settings["image_std"]) if normal else (1.0, 1.0, 1.0),
        )
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"{path}: not the settings of an image processor that can be used ({error!r})") from error


def _side(size: Any) -> int:
    if isinstance(size, dict):
        size = size.get("shortest_edge") or min(size["height"], size["width"])
    return int(size)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bar and the table of unused weights, which belong to what is left out on purpose."""
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
