"""Losses of pytorch-metric-learning, with or without a miner: ``pml:TripletMarginLoss+MultiSimilarityMiner``.

Tested with version 2.9; version 3 needs Python 3.12, and the tests run on 3.11.
"""

import importlib
import inspect
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from softtriple.errors import UserError, did_you_mean
from softtriple.losses.base import Labels, Loss, Vectors

PREFIX = "pml:"
PER_CLASS = 4  # a common choice for miners and losses over pairs


class ExternalLoss(Loss):
    """A loss of pytorch-metric-learning; a ``miner`` selects its pairs or triplets.

    Batches should contain 4 examples per class, unless the loss learns class vectors (``per_class`` is then None).
    """

    def __init__(self, num_classes: int, embedding_size: int, loss: nn.Module, miner: nn.Module | None = None) -> None:
        super().__init__(num_classes, embedding_size)
        self.loss, self.miner = loss, miner
        self.per_class = None if "embedding_size" in argument_names(type(loss)) else PER_CLASS

    def forward(self, embeddings: Vectors, labels: Labels) -> Float[Tensor, ""]:
        """Loss of ``embeddings`` with classes ``labels``."""
        embeddings, labels = self.check_batch(embeddings, labels)
        mined = None if self.miner is None else self.miner(embeddings, labels)
        value: Tensor = self.loss(embeddings, labels, mined)
        return value


def build_external_loss(name: str, num_classes: int, embedding_size: int, options: dict[str, Any]) -> ExternalLoss:
    """Build the loss ``name``, "pml:LOSS" or "pml:LOSS+MINER"; ``options`` are arguments of the loss."""
    loss_name, plus, miner_name = name.removeprefix(PREFIX).partition("+")
    constructor = _find(name, "losses", loss_name)
    known = argument_names(constructor)
    for option in options.keys() - known:
        raise UserError(f"{name} has no option {option}; {did_you_mean(option, sorted(known))}")
    sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
    arguments = {key: value for key, value in sizes.items() if key in known} | options
    try:
        loss = constructor(**arguments)
        miner = _find(name, "miners", miner_name)() if plus else None
    except TypeError as error:
        raise UserError(f"{name} cannot be built: {error}") from error
    return ExternalLoss(num_classes, embedding_size, loss, miner)


def argument_names(constructor: type) -> set[str]:
    """Names of the arguments of a class, including those it passes on to its base classes."""
    names: set[str] = set()
    for ancestor in constructor.__mro__:
        if "__init__" not in vars(ancestor):
            continue
        parameters = list(inspect.signature(ancestor).parameters.values())
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return names


def _find(name: str, module_name: str, class_name: str) -> type:
    try:
        module = importlib.import_module(f"pytorch_metric_learning.{module_name}")
    except ModuleNotFoundError as error:
        raise UserError(f"{name} needs pytorch-metric-learning: pip install pytorch-metric-learning") from error
    classes: dict[str, type] = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and not key.startswith("Base")  # nor mixins
    }
    if class_name not in classes:
        raise UserError(f"{name}: there is no {class_name!r} in its {module_name}; {did_you_mean(class_name, classes)}")
    return classes[class_name]
