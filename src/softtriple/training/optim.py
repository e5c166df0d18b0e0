"""The optimiser of the paper: Adam with a rate for the backbone and another for the centres, dropped in steps."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from softtriple.config import TrainConfig
from softtriple.models import Encoder


def build_optimizer(encoder: Encoder, loss: nn.Module, config: TrainConfig) -> torch.optim.Adam:
    """Adam over everything that learns; each group carries its ``base_lr`` and the ``part`` it belongs to."""
    head = list(encoder.head.parameters()) if encoder.head is not None else []
    backbone = [parameter for parameter in encoder.backbone.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"part": "backbone", "params": backbone, "lr": config.lr},
        {"part": "head", "params": head, "lr": config.lr if config.head_lr is None else config.head_lr},
        *({"part": "loss", **group} for group in loss_groups(loss, config.center_lr)),
    ]
    groups = [{**group, "base_lr": group["lr"]} for group in groups if group["params"]]
    # Fused: one pass over a parameter and its moments, ten times faster at tens of thousands of centres.
    return torch.optim.Adam(groups, eps=config.adam_epsilon, weight_decay=config.weight_decay, fused=True)


def loss_groups(loss: nn.Module, center_lr: float) -> list[dict[str, Any]]:
    """The parameter groups a loss asks for, or one with all of its parameters."""
    own_groups = getattr(loss, "param_groups", None)
    if own_groups is not None:
        groups: list[dict[str, Any]] = own_groups(center_lr=center_lr)
        return groups
    return [{"params": list(loss.parameters()), "lr": center_lr}]


def set_rates(optimizer: torch.optim.Optimizer, epoch: int, config: TrainConfig) -> None:
    """Set the rates for ``epoch``, counted from 0: the backbone waits during warm-up, all drop at the milestones."""
    factor = rate_factor(epoch, config.milestones)
    for group in optimizer.param_groups:
        waits = group["part"] == "backbone" and epoch < config.warm_up_epochs
        group["lr"] = 0.0 if waits else group["base_lr"] * factor


def rate_factor(epoch: int, milestones: Sequence[int]) -> float:
    """A tenth for each milestone that ``epoch`` epochs have passed.

    Example:
        >>> [rate_factor(epoch, (20, 40)) for epoch in (0, 19, 20, 40)]
        [1.0, 1.0, 0.1, 0.01]
    """
    passed = sum(epoch >= milestone for milestone in milestones)
    return float(f"1e-{passed}")
