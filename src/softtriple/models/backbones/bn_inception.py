"""BN-Inception (Ioffe & Szegedy 2015, https://arxiv.org/abs/1502.03167), the network of the SoftTriple paper.

GoogLeNet with batch norm after every convolution and two 3x3 convolutions in place of each 5x5. Parameters are
named as in the public weight file, which was converted from Caffe: hence BGR input from 0 to 255, a bias before
batch norm, and pooling that rounds sizes up and counts padding.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from softtriple.models.backbones.stages import StagedNetwork
from softtriple.models.preprocess import Preprocess
from softtriple.models.weights import load_exactly, read_weights

PREPROCESS = Preprocess(
    size=224, resize=256, channels="bgr", peak=255.0, mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0)
)
BN_INCEPTION_URL = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"


class _Block(NamedTuple):
    """Channels of the branches of one inception block; (reduce, out) where a 1x1 convolution comes first."""

    name: str
    one: int | None
    three: tuple[int, int]
    double_three: tuple[int, int]
    pool: Literal["average", "max"]
    projection: int | None

    @property
    def stride(self) -> int:
        """2 for the blocks that halve the map, which have neither a 1x1 branch nor a projection."""
        return 2 if self.projection is None else 1


_BLOCKS = (
    _Block("inception_3a", 64, (64, 64), (64, 96), "average", 32),
    _Block("inception_3b", 64, (64, 96), (64, 96), "average", 64),
    _Block("inception_3c", None, (128, 160), (64, 96), "max", None),
    _Block("inception_4a", 224, (64, 96), (96, 128), "average", 128),
    _Block("inception_4b", 192, (96, 128), (96, 128), "average", 128),
    _Block("inception_4c", 160, (128, 160), (128, 160), "average", 128),
    _Block("inception_4d", 96, (128, 192), (160, 192), "average", 128),
    _Block("inception_4e", None, (128, 192), (192, 256), "max", None),
    _Block("inception_5a", 352, (192, 320), (160, 224), "average", 128),
    _Block("inception_5b", 352, (192, 320), (192, 224), "max", 128),
)


class BNInception(StagedNetwork):
    """BN-Inception up to its last feature map of 1024 channels."""

    def __init__(self, input_size: int = 224) -> None:
        super().__init__(
            stage_names=("conv1", "conv2", *(block.name for block in _BLOCKS)),
            num_features=1024,
            preprocess=PREPROCESS.at_size(input_size),
        )
        self._add_unit("conv1_7x7_s2", 3, 64, kernel=7, stride=2)
        self._add_unit("conv2_3x3_reduce", 64, 64)
        self._add_unit("conv2_3x3", 64, 192, kernel=3)
        channels = 192
        for block in _BLOCKS:
            channels = self._add_block(block, channels)

    def run_stage(self, index: int, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of a convolution with its pooling, or of an inception block."""
        if index == 0:
            return _halve(self._unit("conv1_7x7_s2", x))
        if index == 1:
            return _halve(self._unit("conv2_3x3", self._unit("conv2_3x3_reduce", x)))
        return self._block(_BLOCKS[index - 2], x)

    def _block(self, block: _Block, x: Tensor) -> Tensor:
        three = self._unit(f"{block.name}_3x3", self._unit(f"{block.name}_3x3_reduce", x))
        double = self._unit(f"{block.name}_double_3x3_reduce", x)
        double = self._unit(f"{block.name}_double_3x3_1", double)
        double = self._unit(f"{block.name}_double_3x3_2", double)
        if block.projection is None:
            return torch.cat([three, double, _halve(x)], dim=1)
        if block.pool == "average":
            pooled = F.avg_pool2d(x, 3, stride=1, padding=1)
        else:
            pooled = F.max_pool2d(x, 3, stride=1, padding=1)
        projected = self._unit(f"{block.name}_pool_proj", pooled)
        return torch.cat([self._unit(f"{block.name}_1x1", x), three, double, projected], dim=1)

    def _unit(self, name: str, x: Tensor) -> Tensor:
        return F.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)), inplace=True)

    def _add_block(self, block: _Block, channels: int) -> int:
        """Add the layers of ``block`` for ``channels`` input channels; returns the number of output channels."""
        name = block.name
        if block.one is not None:
            self._add_unit(f"{name}_1x1", channels, block.one)
        reduced, three = block.three
        self._add_unit(f"{name}_3x3_reduce", channels, reduced)
        self._add_unit(f"{name}_3x3", reduced, three, kernel=3, stride=block.stride)
        reduced, double = block.double_three
        self._add_unit(f"{name}_double_3x3_reduce", channels, reduced)
        self._add_unit(f"{name}_double_3x3_1", reduced, double, kernel=3)
        self._add_unit(f"{name}_double_3x3_2", double, double, kernel=3, stride=block.stride)
        if block.projection is None:
            return three + double + channels
        self._add_unit(f"{name}_pool_proj", channels, block.projection)
        return (block.one or 0) + three + double + block.projection

    def _add_unit(self, name: str, channels: int, out: int, kernel: int = 1, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(out))


def load_bn_inception_weights(network: StagedNetwork, source: str | None = None) -> None:
    """Load the public ImageNet weights from the path or URL ``source``, without the classifier.

    By default the file is downloaded once to PyTorch's cache directory and verified by the SHA-256 in its name.
    """
    source = source or BN_INCEPTION_URL
    weights = read_weights(source)
    load_exactly(network, {n: w for n, w in weights.items() if not n.startswith("last_linear.")}, source)


def _halve(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, stride=2, ceil_mode=True)
