"""Any network of timm as a backbone: pooled features before the classifier.

Networks of the classes in `LAYOUTS` are split into stages, the blocks of a transformer or the stages of a convolutional
network; all others are a single stage. Convolutional networks that timm pools by a plain mean return the feature map,
so that the encoder's pooling applies; the rest use their own pooling (class token, attention, mean and layer norm).
Images are resized bilinearly, even if timm's configuration of the weights says bicubic.
"""

import difflib
import math
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from softtriple.errors import UserError, first_line
from softtriple.models.backbones.libraries import import_library
from softtriple.models.backbones.stages import LibraryNetwork, StagedNetwork
from softtriple.models.preprocess import Preprocess
from softtriple.models.weights import load_exactly, read_weights


class Layout(NamedTuple):
    """The modules that ``forward_features`` of a class calls, in order: ``stem``, ``blocks``, ``norm``.

    A name in ``blocks`` is a block or, ending in ``*``, a sequence of blocks. ``head`` are the modules that
    ``forward_head`` uses. ``is_map``: the class pools by a plain mean, which is then left to the encoder.
    """

    stem: tuple[str, ...]
    blocks: tuple[str, ...]
    norm: tuple[str, ...] = ()
    head: tuple[str, ...] = ("head",)
    is_map: bool = False


_STEM_AND_STAGES = Layout(("stem",), ("stages.*",))
_SWIN = Layout(("patch_embed",), ("layers.*",), ("norm",))
_TOKEN_HEAD = ("attn_pool", "fc_norm", "head_drop")

LAYOUTS = {
    "ByobNet": Layout(("stem",), ("stages.*",), ("final_conv",)),
    "ConvNeXt": Layout(("stem",), ("stages.*",), ("norm_pre",)),
    "EfficientNet": Layout(("conv_stem", "bn1"), ("blocks.*",), ("conv_head", "bn2"), (), is_map=True),
    # Its tokens come with rotary position embeddings: `_EvaNetwork`.
    "Eva": Layout(("patch_embed", "_pos_embed", "norm_pre"), ("blocks.*",), ("norm",), _TOKEN_HEAD),
    "MaxxVit": Layout(("stem",), ("stages.*",), ("norm",)),
    "MetaFormer": _STEM_AND_STAGES,
    "MetaNeXt": _STEM_AND_STAGES,
    "MambaOut": _STEM_AND_STAGES,
    "MobileNetV3": Layout(("conv_stem", "bn1"), ("blocks.*",), (), ("conv_head", "norm_head", "act2")),
    "NormFreeNet": Layout(("stem",), ("stages.*",), ("final_conv", "final_act")),
    "RegNet": Layout(("stem",), ("s1", "s2", "s3", "s4"), ("final_conv",), (), is_map=True),
    "ResNet": Layout(
        ("conv1", "bn1", "act1", "maxpool"), ("layer1", "layer2", "layer3", "layer4"), (), (), is_map=True
    ),
    "ResNetV2": Layout(("stem",), ("stages.*",), ("norm",)),
    "SwinTransformer": _SWIN,
    "SwinTransformerV2": _SWIN,
    "VisionTransformer": Layout(
        ("patch_embed", "_pos_embed", "patch_drop", "norm_pre"), ("blocks.*",), ("norm",), _TOKEN_HEAD
    ),
}
_NONE = Layout((), (), (), ())
# Modules of timm whose networks have an option to take images of any size.
_DYNAMIC = ("vision_transformer", "deit", "eva")


def check_timm_name(name: str) -> None:
    """UserError if timm has no network called ``name``, timm:MODEL."""
    timm = import_library("timm", name)
    model = name.removeprefix("timm:")
    if not timm.is_model(model):  # also excludes names that timm would look up on a hub or in a folder
        close = difflib.get_close_matches(model, timm.list_models(), n=1)
        hint = f"; did you mean timm:{close[0]}?" if close else ""
        raise UserError(f"{name}: timm {timm.__version__} has no network of that name{hint}")


def timm_model(name: str, *, pretrained: bool, input_size: int | None = None) -> LibraryNetwork:
    """The network timm:MODEL with the preprocessing of timm's data configuration."""
    check_timm_name(name)
    timm, model = import_library("timm", name), name.removeprefix("timm:")
    options = {"dynamic_img_size": True} if timm.models.is_model_in_modules(model, _DYNAMIC) else {}
    try:
        network = timm.create_model(model, pretrained=pretrained, num_classes=0, **options)
    except Exception as error:  # a download raises many types, missing weights RuntimeError
        if not pretrained:
            raise
        raise UserError(
            f"{name}: its pretrained weights cannot be loaded ({first_line(error)});"
            " or pass the file of a state dict: --set model.weights=FILE"
        ) from error
    data = timm.data.resolve_model_data_config(network)
    size = input_size or data["input_size"][-1]
    if size != data["input_size"][-1] and hasattr(network, "set_input_size"):
        network.set_input_size(size)
    layout = LAYOUTS.get(type(network).__name__, _NONE)
    preprocess = Preprocess(
        size=size,
        resize=max(size, math.floor(size / data["crop_pct"])),
        channels="rgb",
        peak=1.0,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    )
    kind = _EvaNetwork if type(network).__name__ == "Eva" else _TimmNetwork
    return kind(network, layout, preprocess)


def load_timm_weights(network: StagedNetwork, source: str | None = None) -> None:
    """Load the state dict at the path or URL ``source``, without the classifier; by default it is loaded already."""
    if source is None:
        return
    inner: Any = network.get_submodule("network")
    classifier = inner.pretrained_cfg.get("classifier") or ()
    prefixes = tuple(f"{name}." for name in ([classifier] if isinstance(classifier, str) else classifier))
    weights = {name: value for name, value in read_weights(source).items() if not name.startswith(prefixes)}
    native, size = inner.pretrained_cfg["input_size"][-1], getattr(network.preprocess, "size", None)
    resized = size != native and hasattr(inner, "set_input_size")
    if resized:  # load position embeddings at their original size, then interpolate them
        inner.set_input_size(native)
    load_exactly(inner, weights, source)
    if resized:
        inner.set_input_size(size)


class _TimmNetwork(LibraryNetwork):
    """A network of timm, run by ``layout``."""

    def __init__(self, network: Any, layout: Layout, preprocess: Preprocess) -> None:
        blocks: list[str] = []
        for name in layout.blocks:
            parent, star, _ = name.partition(".*")
            children = [f"{parent}.{child}" for child, _ in network.get_submodule(parent).named_children()]
            blocks += children if star else [name]
        tail = [name for name in (*layout.norm, *layout.head) if isinstance(getattr(network, name, None), nn.Module)]
        features = network.num_features if layout.is_map else getattr(network, "head_hidden_size", network.num_features)
        super().__init__(
            network, blocks=blocks, tail=tail, num_features=features, preprocess=preprocess, pooled=not layout.is_map
        )
        self._layout = layout

    def run_stem(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Input of the first block; of a network without blocks, the pooled features."""
        if self._layout.blocks:
            return self._call(self._layout.stem, x)
        features = self.network.forward_features(x)  # type: ignore[operator]
        pooled: Tensor = self.network.forward_head(features, pre_logits=True)  # type: ignore[operator]
        return pooled

    def run_block(self, index: int, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of block ``index``."""
        output: Tensor = self.block(index)(x)
        return output

    def run_tail(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """The feature map, or features from the network's own pooling."""
        x = self._call(self._layout.norm, x)
        return x if self._layout.is_map else self.network.forward_head(x, pre_logits=True)  # type: ignore[operator]

    def _call(self, names: tuple[str, ...], x: Tensor) -> Tensor:
        for name in names:
            x = getattr(self.network, name)(x)
        return x


class _EvaNetwork(_TimmNetwork):
    """EVA and DINOv3: every block gets the rotary position embeddings of the grid of tokens."""

    def __init__(self, network: Any, layout: Layout, preprocess: Preprocess) -> None:
        super().__init__(network, layout, preprocess)
        if hasattr(network.rope, "aug_active"):
            network.rope.aug_active = False  # random positions in training would differ between blocks

    def run_stem(self, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Tokens, without the position embeddings that come with them."""
        patch_embed, pos_embed, norm_pre = (getattr(self.network, name) for name in self._layout.stem)
        tokens, _ = pos_embed(patch_embed(x))
        output: Tensor = norm_pre(tokens)
        return output

    def run_block(self, index: int, x: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        """Output of block ``index``."""
        network: Any = self.network
        rope = None
        if network.rope is not None:
            side = math.isqrt(x.shape[1] - network.num_prefix_tokens)
            rope = network.rope.get_embed(shape=(side, side))
            rope = rope[index] if getattr(network, "rope_mixed", False) else rope
        output: Tensor = self.block(index)(x, rope=rope)
        return output
