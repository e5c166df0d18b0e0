"""Any convolutional network of timm as a one-stage backbone."""

import importlib
import math
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models.backbones.stages import Chain
from softtriple.models.preprocess import Preprocess


def timm_model(name: str, *, pretrained: bool, input_size: int | None = None) -> Chain:
    """The timm network ``name``, preprocessed as timm's data configuration of its weights says."""
    timm: Any = importlib.import_module("timm")
    if not timm.is_model(name):
        raise UserError(f"timm:{name}: timm {timm.__version__} has no network of that name")
    network = timm.create_model(name, pretrained=pretrained, num_classes=0, global_pool="")
    data = timm.data.resolve_model_data_config(network)
    size = input_size or data["input_size"][-1]
    return Chain(
        {"network": _FeatureMap(network, name)},
        num_features=network.num_features,
        preprocess=Preprocess(
            size=size,
            resize=math.floor(size / data["crop_pct"]),
            channels="rgb",
            peak=1.0,
            mean=tuple(data["mean"]),
            std=tuple(data["std"]),
        ),
    )


class _FeatureMap(nn.Module):
    """A timm network that must return a feature map."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__()
        self.network = network
        self.name = name

    def forward(self, x: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels out_height out_width"]:
        output: Tensor = self.network(x)
        if output.ndim != 4 or output.shape[1] != self.network.num_features:
            raise UserError(
                f"timm:{self.name} returns {tuple(output.shape)}, not a feature map; choose a convolutional network"
            )
        return output
