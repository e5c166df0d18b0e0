"""Any nn.Module as a one-stage backbone."""

import torch
from torch import Tensor, nn

from softtriple.errors import UserError
from softtriple.models.backbones.stages import Chain, StagedNetwork
from softtriple.models.inputs import example_input
from softtriple.models.preprocess import IMAGENET, Preprocess, TextPreprocess

MODULE = "module"  # name of the stage, and prefix of the backbone's name


def module_backbone(
    module: nn.Module, preprocess: Preprocess | TextPreprocess | None = None, in_features: int | None = None
) -> StagedNetwork:
    """A backbone of the single stage ``module``, which returns feature vectors, tokens or feature maps.

    ``in_features`` is the width of the vectors it takes. Without it, the module takes images or, if ``preprocess`` is a
    function of a list of strings, texts; the default is ``module.preprocess``, or else ImageNet's preprocessing. The
    module is run once to determine the number of features. A `StagedNetwork` is returned unchanged.
    """
    if isinstance(module, StagedNetwork):
        return module
    if in_features is None:
        preprocess = preprocess or getattr(module, "preprocess", None) or IMAGENET
    elif preprocess is not None:
        raise UserError(f"in_features = {in_features} means vectors, which have no preprocess: pass one or the other")
    shape = _output_shape(module, preprocess, in_features)
    return Chain(
        {MODULE: module},
        num_features=shape[2 if len(shape) == 3 else 1],
        preprocess=preprocess,
        pooled=len(shape) == 2,
        cacheable=False,  # the user's code may change while name and weights stay the same
    )


def module_name(module: nn.Module) -> str:
    """The name in encoder.json of a backbone that is the user's own ``module``; for information only."""
    return f"{MODULE}:{type(module).__module__}.{type(module).__qualname__}"


@torch.no_grad()
def _output_shape(
    module: nn.Module, preprocess: Preprocess | TextPreprocess | None, in_features: int | None
) -> torch.Size:
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    was_training = module.training
    module.eval()
    try:
        inputs = example_input(preprocess, in_features, count=2)
        output = module(inputs.to(device))
    except Exception as error:  # the user's code may raise anything
        raise UserError(
            f"{type(module).__name__} fails on an example input ({error});"
            " pass the preprocess= of its images or texts, or the in_features= of its vectors"
        ) from error
    finally:
        module.train(was_training)
    if not isinstance(output, Tensor) or output.ndim not in (2, 3, 4) or len(output) != 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UserError(
            f"{type(module).__name__} returns {shape} for 2 items; expected a tensor of shape"
            " (2, features), (2, tokens, features) or (2, features, height, width)"
        )
    return output.shape
