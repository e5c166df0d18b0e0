"""Any convolutional network of the timm library, as a backbone of one stage, when timm is installed."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from softtriple.models.backbones.stages import Chain
from softtriple.models.preprocess import Preprocess


def timm_model(name: str, *, pretrained: bool, input_size: int | None = None) -> Chain:
    """The timm network ``name`` with the input that timm's data configuration gives for its weights."""
    try:
        import timm
    except ImportError as error:
        raise ValueError(f"timm:{name} needs the timm library: pip install softtriple[timm]") from error
    if not timm.is_model(name):
        raise ValueError(f"timm:{name}: timm {timm.__version__} has no network of that name")
    network = timm.create_model(name, pretrained=pretrained, num_classes=0, global_pool="")
    data = timm.data.resolve_model_data_config(network)
    size = input_size or data["input_size"][-1]
    return Chain(
        {"network": _FeatureMap(network, name)},
        num_features=network.num_features,
        taps=(1, 1, 1),
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
    """A timm network that must give a feature map, not tokens: pooling needs to know where the channels are."""

    def __init__(self, network: nn.Module, name: str) -> None:
        super().__init__()
        self.network = network
        self.name = name

    def forward(self, x: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch channels out_height out_width"]:
        output: Tensor = self.network(x)
        if output.ndim != 4 or output.shape[1] != self.network.num_features:
            raise ValueError(
                f"timm:{self.name} gives {tuple(output.shape)}, not a map of channels; choose a convolutional network"
            )
        return output
