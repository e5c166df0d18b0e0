"""Losses of pytorch-metric-learning by name, alone or with a miner: ``pml:TripletMarginLoss+MultiSimilarityMiner``."""

import importlib
import inspect
from typing import Any

from jaxtyping import Float, Integer
from torch import Tensor, nn

from softtriple.losses.centers import param_groups
from softtriple.losses.checks import checked_batch

PREFIX = "pml:"
PER_CLASS = 4  # what most miners and losses over pairs are used with


class ExternalLoss(nn.Module):
    """A loss of pytorch-metric-learning as ``loss(embeddings, labels)``; a ``miner`` chooses its pairs or triplets.

    Wants batches of 4 examples a class, or any (``per_class`` is None) if the loss has vectors of its own for classes.
    """

    def __init__(self, num_classes: int, embedding_size: int, loss: nn.Module, miner: nn.Module | None = None) -> None:
        super().__init__()
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.loss, self.miner = loss, miner
        self.per_class = None if "embedding_size" in argument_names(type(loss)) else PER_CLASS

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Loss of ``embeddings`` of classes ``labels``."""
        embeddings, labels = checked_batch(embeddings, labels, self.num_classes, self.embedding_size, True)
        chosen = None if self.miner is None else self.miner(embeddings, labels)
        value: Tensor = self.loss(embeddings, labels, chosen)
        return value

    param_groups = param_groups


def build_external_loss(name: str, num_classes: int, embedding_size: int, options: dict[str, Any]) -> ExternalLoss:
    """Build the loss called ``name``, LOSS or LOSS+MINER after "pml:"; ``options`` are arguments of the loss."""
    loss_name, plus, miner_name = name.removeprefix(PREFIX).partition("+")
    constructor = _find(name, "losses", loss_name)
    known = argument_names(constructor)
    unknown = options.keys() - known
    if unknown:
        raise ValueError(f"{name} has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    sizes = {"num_classes": num_classes, "embedding_size": embedding_size}
    arguments = {key: value for key, value in sizes.items() if key in known} | options
    try:
        loss = constructor(**arguments)
        miner = _find(name, "miners", miner_name)() if plus else None
    except TypeError as error:
        raise ValueError(f"{name} cannot be built: {error}") from error
    return ExternalLoss(num_classes, embedding_size, loss, miner)


def argument_names(constructor: type) -> set[str]:
    """Names of the arguments of a class, those among them that it passes on to its ancestors."""
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
        raise ValueError(f"{name} needs pytorch-metric-learning: pip install pytorch-metric-learning") from error
    classes: dict[str, type] = {
        key: value
        for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, nn.Module) and not key.startswith("Base")  # nor mixins
    }
    if class_name not in classes:
        known = ", ".join(sorted(classes))
        raise ValueError(f"{name}: no class {class_name!r} among the {module_name}; there are {known}")
    return classes[class_name]
