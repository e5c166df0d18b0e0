"""The table of losses, and building one by name; its signature defines its options."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from softtriple.errors import UserError, did_you_mean
from softtriple.losses.base import Loss, is_integer, is_number
from softtriple.losses.clustering import ClusteringLoss
from softtriple.losses.hardtriple import HardTripleLoss
from softtriple.losses.htl import HTLLoss
from softtriple.losses.pairs import LiftedStructureLoss, MarginLoss, NPairsLoss, SemiHardTripletLoss
from softtriple.losses.pml import PREFIX, build_external_loss
from softtriple.losses.proxies import ProxyAnchorLoss, ProxyNCALoss
from softtriple.losses.sampled import check_rate
from softtriple.losses.softmax import NormalizedSoftmaxLoss, SoftmaxLoss
from softtriple.losses.softtriple import SoftTripleLoss

LOSSES: dict[str, type[Loss]] = {
    "softtriple": SoftTripleLoss,
    "hard-triple": HardTripleLoss,
    "softmax-norm": NormalizedSoftmaxLoss,
    "softmax": SoftmaxLoss,
    "semi-hard": SemiHardTripletLoss,
    "lifted": LiftedStructureLoss,
    "clustering": ClusteringLoss,
    "n-pairs": NPairsLoss,
    "proxy-nca": ProxyNCALoss,
    "margin": MarginLoss,
    "htl": HTLLoss,
    "proxy-anchor": ProxyAnchorLoss,
}

# For each annotation of an option: what a value must be, and the test for it.
KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("an integer", is_integer),
    float: ("a number", is_number),
    float | None: ("a number", lambda value: value is None or is_number(value)),
    Sequence[float]: (
        "a list of numbers",
        lambda value: isinstance(value, list | tuple) and all(map(is_number, value)),
    ),
    Sequence[int]: (
        "a list of integers",
        lambda value: isinstance(value, list | tuple) and all(map(is_integer, value)),
    ),
    str: ("a string", lambda value: isinstance(value, str)),
}


def build_loss(name: str, num_classes: int, embedding_size: int, **options: Any) -> Loss:
    """Build the loss called ``name``; its signature defines which ``options`` exist and their types.

    ``pml:NAME`` or ``pml:NAME+MINER`` is a loss of pytorch-metric-learning.
    """
    if name.startswith(PREFIX):
        return build_external_loss(name, num_classes, embedding_size, options)
    known = option_annotations(name)
    for option, value in options.items():
        if option not in known:
            raise UserError(f"{name} has no option {option}; {did_you_mean(option, sorted(known))}")
        expected, fits = KINDS[known[option]]
        if not fits(value):
            raise UserError(f"{name}: {option} = {value!r} must be {expected}")
    return LOSSES[name](num_classes, embedding_size, **options)


def check_loss(
    name: str, options: Mapping[str, Any], *, centers_per_class: int | None = None, sample_rate: float = 1.0
) -> None:
    """Raise ``UserError`` if the loss ``name`` cannot be built with these settings, before the data are known."""
    options = dict(options)
    if centers_per_class is not None:
        if not has_option(name, "centers_per_class"):
            raise UserError(f"centers_per_class = {centers_per_class}: {name} has no such option")
        if options.setdefault("centers_per_class", centers_per_class) != centers_per_class:
            raise UserError(
                f"centers_per_class = {centers_per_class}, but the options of {name} say "
                f"centers_per_class = {options['centers_per_class']}; remove one of them"
            )
    if check_rate(sample_rate) < 1 and not is_shardable(name):
        shardable = " and ".join(known for known in LOSSES if is_shardable(known))
        raise UserError(f"sample_rate = {sample_rate}: {name} cannot sample classes; {shardable} can")
    with torch.random.fork_rng(devices=[]):  # building draws centres, which must not change later random numbers
        build_loss(name, num_classes=4, embedding_size=12, **options)


def option_annotations(name: str) -> dict[str, Any]:
    """The options of the loss ``name`` in the table, with their type annotations."""
    if name not in LOSSES:
        raise UserError(f"unknown loss {name!r}; {did_you_mean(name, [*LOSSES, PREFIX + 'NAME'])}")
    parameters = inspect.signature(LOSSES[name]).parameters
    return {key: p.annotation for key, p in parameters.items() if key not in ("num_classes", "embedding_size")}


def has_option(name: str, option: str) -> bool:
    """Whether the loss ``name`` has an option called ``option``; False for losses of other libraries."""
    return not name.startswith(PREFIX) and option in option_annotations(name)


def is_shardable(name: str) -> bool:
    """Whether the loss ``name`` can split its classes over ranks, and sample them."""
    return name in LOSSES and issubclass(LOSSES[name], SoftTripleLoss)
