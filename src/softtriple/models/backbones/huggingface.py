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

Size, mean and standard deviation of the input come from the model's image processor. Images are always resized
bilinearly by their short side and cropped in the centre, even if the processor would change their aspect ratio.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from softtriple.errors import UserError
from softtriple.models.backbones import libraries
from softtriple.models.backbones.libraries import CONFIG
from softtriple.models.backbones.stages import LibraryNetwork
from softtriple.models.preprocess import Preprocess


class Architecture(NamedTuple):
    """A class of transformers and where its parts are.

    ``stem`` and ``tail`` name the modules before and after the list ``layers``; ``features`` computes pooled features
    from the model and the output of the last layer. ``interpolates``: the embeddings have an option to take images of
    other sizes. ``grid``: the kind of position argument that layers need.
    """

    layers: str
    tail: tuple[str, ...]
    features: Callable[[Any, Tensor], Tensor]
    model: str = ""
    stem: tuple[str, ...] = ("embeddings",)
    interpolates: bool = False
    grid: str | None = None


_CONVNEXT = Architecture(
    layers="encoder.stages", tail=("layernorm",), features=lambda model, x: model.layernorm(x.mean(dim=(2, 3)))
)
_DINOV2 = Architecture(layers="encoder.layer", tail=("layernorm",), features=lambda model, x: model.layernorm(x[:, 0]))
_SWIN = Architecture(
    layers="encoder.layers",
    tail=("layernorm",),
    features=lambda model, x: model.layernorm(x).mean(dim=1),
    interpolates=True,
    grid="swin",
)

ARCHITECTURES = {
    "clip_vision_model": Architecture(
        model="CLIPVisionModel",
        stem=("embeddings", "pre_layrnorm"),
        layers="encoder.layers",
        tail=("post_layernorm",),
        features=lambda model, x: model.post_layernorm(x[:, 0]),
        interpolates=True,
    ),
    "convnext": _CONVNEXT._replace(model="ConvNextModel"),
    "convnextv2": _CONVNEXT._replace(model="ConvNextV2Model"),
    "dinov2": _DINOV2._replace(model="Dinov2Model"),
    "dinov2_with_registers": _DINOV2._replace(model="Dinov2WithRegistersModel"),
    "dinov3_vit": Architecture(
        model="DINOv3ViTModel",
        layers="model.layer",
        tail=("norm",),
        features=lambda model, x: model.norm(x[:, 0]),
        grid="rope",
    ),
    "siglip_vision_model": Architecture(
        model="SiglipVisionModel",
        layers="encoder.layers",
        tail=("post_layernorm", "head"),
        features=lambda model, x: model.head(model.post_layernorm(x)),
        interpolates=True,
    ),
    "swin": _SWIN._replace(model="SwinModel"),
    "swinv2": _SWIN._replace(model="Swinv2Model"),
    "vit": _DINOV2._replace(model="ViTModel", layers="layers", interpolates=True),
}


def vision_model(name: str, *, pretrained: bool = True, input_size: int | None = None) -> "VisionNetwork":
    """The vision model hf:FOLDER or, on the hub, hf:NAME."""
    folder = libraries.model_folder(name)
    config = libraries.read_config(folder, name)
    if "vision_config" in config:  # a model of images and texts
        config = config["vision_config"] | {"model_type": f"{config.get('model_type')}_vision_model"}
    preprocess = _image_preprocess(folder, input_size)
    with torch.device("cpu"):  # Encoder.load builds networks on the meta device
        network = vision_network(config, preprocess, name)
        if pretrained:
            network.network = libraries.load_pretrained(network.network, folder, name)
    return network


def restore_vision(files: Mapping[str, str], preprocess: Preprocess | None, name: str) -> "VisionNetwork":
    """The network of a saved encoder, without weights, from its ``files``."""
    if preprocess is None or CONFIG not in files:
        raise UserError(f"{name}: {CONFIG} and preprocess of the encoder are needed")
    return vision_network(libraries.parse_json(files[CONFIG], CONFIG), preprocess, name)


def vision_network(config: Mapping[str, Any], preprocess: Preprocess, name: str) -> "VisionNetwork":
    """The architecture that ``config`` describes, with random weights."""
    architecture = ARCHITECTURES[libraries.check_model_type(config, ARCHITECTURES, "vision model", name)]
    kept = libraries.clean_config(config, name)
    transformers = libraries.import_library("transformers", name)
    # Looking up the class imports its module, which may fail: that too is left to build_model.
    model = libraries.build_model(lambda config: getattr(transformers, architecture.model)(config), kept, name)
    return VisionNetwork(model, architecture, preprocess, {CONFIG: libraries.config_text(kept)})


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
            pooled=True,
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
        """Rotary position embeddings; the model uses only the shape of the image, which is square."""
        model: Any = self.network
        patch = model.config.patch_size
        side = patch * math.isqrt(x.shape[1] - 1 - model.config.num_register_tokens)
        model.rope_embeddings.eval()  # random positions in training would differ from layer to layer
        position: tuple[Tensor, Tensor] = model.rope_embeddings(x.new_empty(()).expand(1, 1, side, side))
        return position


def _image_preprocess(folder: Path, input_size: int | None) -> Preprocess:
    path = folder / "preprocessor_config.json"
    settings = libraries.read_json(path)
    if settings is None:
        path = folder / "processor_config.json"
        settings = (libraries.read_json(path) or {}).get("image_processor")
    if settings is None:
        raise UserError(f"{folder}: preprocessor_config.json, the settings of the image processor, is missing")
    try:
        edge = _side(settings["size"])
        crop = _side(settings["crop_size"]) if settings.get("do_center_crop") else edge
        resize = max(edge, crop)
        if settings.get("crop_pct") and crop == edge < 384:  # ConvNeXt's rule
            resize = int(edge / settings["crop_pct"])
        normal = settings.get("do_normalize", True)
        native = Preprocess(
            size=crop,
            resize=resize,
            channels="bgr" if settings.get("do_flip_channel_order") else "rgb",
            peak=255 * settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 255.0,
            mean=tuple(settings["image_mean"]) if normal else (0.0, 0.0, 0.0),
            std=tuple(settings["image_std"]) if normal else (1.0, 1.0, 1.0),
        )
        return native.at_size(input_size or crop)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise UserError(f"{path}: not the settings of an image processor that can be used ({error!r})") from error


def _side(size: Any) -> int:
    if isinstance(size, dict):
        size = size.get("shortest_edge") or min(size["height"], size["width"])
    return int(size)
