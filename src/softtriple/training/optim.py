"""The paper's optimiser: Adam with one rate for the backbone and another for the centres, dropped in steps."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from softtriple.config import TrainConfig
from softtriple.losses import Loss
from softtriple.models import Encoder

# Numbers of a parameter that a step over rows takes at once: with their gradient and moments they stay in cache.
AT_ONCE_CPU = 1 << 16
AT_ONCE_GPU = 1 << 26


def build_optimizer(encoder: Encoder, loss: Loss, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam over everything that learns; each group carries its ``base_lr`` and the ``part`` it belongs to."""
    head = list(encoder.head.parameters()) if encoder.head is not None else []
    backbone = [parameter for parameter in encoder.backbone.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"part": "backbone", "params": backbone, "lr": config.lr},
        {"part": "head", "params": head, "lr": config.lr if config.head_lr == "auto" else config.head_lr},
        *({"part": "loss", **group} for group in loss.param_groups(center_lr=config.center_lr)),
    ]
    groups = [{**group, "base_lr": group["lr"]} for group in groups if group["params"]]
    if loss.sparse_gradients:
        return RowAdam(groups, eps=config.adam_epsilon, weight_decay=config.weight_decay)
    # Fused: one pass over a parameter and its moments, ten times faster at tens of thousands of centres.
    return torch.optim.Adam(groups, eps=config.adam_epsilon, weight_decay=config.weight_decay, fused=True)


class RowAdam(torch.optim.Optimizer):
    """Adam that takes a sparse gradient for what it is: rows it does not name stay as they are, with their moments.

    Each row counts its own steps. So one that is drawn for the first time late in training starts as gently as any
    other; with a common count its first step would be three times too long. Where every row is named in every step,
    this is ``torch.optim.Adam``. Dense gradients are for ``torch.optim.adam``, fused.
    """

    def __init__(
        self,
        params: Sequence[dict[str, Any]] | Sequence[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        # torch puts the counts of a loaded state on the device of their parameters only where a group says "fused".
        shared = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "fused": True}
        super().__init__(params, shared)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient."""
        assert closure is None, "closures are for optimisers that evaluate the loss again"
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in learning:
                if parameter.grad.is_sparse:
                    self._step_rows(parameter, group)
            self._step_dense([parameter for parameter in learning if not parameter.grad.is_sparse], group)

    def _step_dense(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        if not parameters:
            return
        states = [self._state(parameter, parameter.new_zeros(())) for parameter in parameters]
        adam(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            max_exp_avg_sqs=[],
            state_steps=[state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _step_rows(self, parameter: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        assert parameter.grad is not None
        rows, gradient = _distinct_rows(parameter.grad)
        counts = (-1, *(1 for _ in parameter.shape[1:]))
        state = self._state(parameter, parameter.new_zeros(len(parameter)))
        at_once = AT_ONCE_CPU if parameter.device.type == "cpu" else AT_ONCE_GPU
        size = max(1, at_once // max(1, parameter[:1].numel()))
        for some, slope in zip(torch.split(rows, size), torch.split(gradient, size), strict=True):
            step, mean, square = (state[name].index_select(0, some) for name in ("step", "exp_avg", "exp_avg_sq"))
            value = parameter.index_select(0, some)
            step += 1
            slope = slope.add(value, alpha=group["weight_decay"]) if group["weight_decay"] else slope
            mean.lerp_(slope, 1 - beta1)
            square.mul_(beta2).addcmul_(slope, slope, value=1 - beta2)
            length = group["lr"] / (1 - beta1**step).view(counts)
            spread = (1 - beta2**step).rsqrt_().view(counts)
            value.addcdiv_(mean * length, square.sqrt().mul_(spread).add_(group["eps"]), value=-1)
            for whole, part in (
                (parameter, value),
                (state["step"], step),
                (state["exp_avg"], mean),
                (state["exp_avg_sq"], square),
            ):
                whole.index_copy_(0, some, part)

    def _state(self, parameter: Tensor, no_steps: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = no_steps
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def _distinct_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that a sparse gradient names, each once, and their values."""
    # What a draw of classes gave has ascending rows already; accumulated batches name some rows twice.
    rows = gradient._indices()[0]
    if not (rows[1:] > rows[:-1]).all():
        gradient = gradient.coalesce()
    return gradient._indices()[0], gradient._values()


def set_rates(optimizer: torch.optim.Optimizer, epoch: int, config: TrainConfig) -> None:
    """Set the rates for ``epoch``, counted from 0: the backbone waits during warm-up, all follow the schedule."""
    if config.schedule == "cosine":
        assert config.epochs != "auto"
        factor = cosine_factor(epoch, config.epochs)
    else:
        assert config.milestones != "auto"
        factor = rate_factor(epoch, config.milestones)
    for group in optimizer.param_groups:
        waits = group["part"] == "backbone" and epoch < config.warm_up_epochs
        group["lr"] = 0.0 if waits else group["base_lr"] * factor


def cosine_factor(epoch: int, epochs: int) -> float:
    """Half a period of a cosine: 1 in the first epoch, near 0 in the last.

    Example:
        >>> [round(cosine_factor(epoch, 4), 2) for epoch in range(4)]
        [1.0, 0.85, 0.5, 0.15]
    """
    return (1 + math.cos(math.pi * epoch / max(epochs, 1))) / 2


def rate_factor(epoch: int, milestones: Sequence[int]) -> float:
    """A tenth for each milestone that ``epoch`` epochs have passed.

    Example:
        >>> [rate_factor(epoch, (20, 40)) for epoch in (0, 19, 20, 40)]
        [1.0, 1.0, 0.1, 0.01]
    """
    passed = sum(epoch >= milestone for milestone in milestones)
    return float(f"1e-{passed}")
