"""A faster view of a network: batch norms with fixed statistics are folded into the preceding convolutions.

With running mean μ, variance σ², scale γ and shift β, the batch norm of a convolution with weight w and bias b is a
convolution with weight w·s and bias β + (b − μ)·s, where s = γ / √(σ² + ε). Forward and backward then scale the weights
instead of the much larger feature maps. On a CPU, depthwise convolutions with a stride or a kernel larger than 3 run in
float32 under autocast, because their backward pass in bfloat16 takes several times as long.
"""

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)
Pairs = tuple[tuple[str, str], ...]

# Positions in the feature maps of a batch per weight of an output channel; with fewer, folding does not pay off.
FEWEST_PLACES = 2


class FastConvolution(nn.Module):
    """A convolution and its batch norm, if any, as one convolution where statistics are fixed and maps are large.

    Weights are folded in each call, so both modules can still be trained.
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d | None) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch out rows columns"]:
        """The normalised feature map, after the activation if that is part of the norm."""
        norm: Any = self.norm
        if norm is None or norm.training or not _saves(self.conv, x):
            output = _convolve(self.conv, x, self.conv.weight, self.conv.bias)
            return output if norm is None else norm(output)
        output = _convolve(self.conv, x, *folded_weights(self.conv, norm))
        return norm.act(norm.drop(output)) if _has_activation(norm) else output


def folded_weights(
    conv: nn.Conv2d, norm: nn.BatchNorm2d
) -> tuple[Float[Tensor, "out channels rows columns"], Float[Tensor, " out"]]:
    """Weight and bias of a convolution equal to ``conv`` followed by ``norm``; differentiable."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    mean = norm.running_mean if conv.bias is None else norm.running_mean - conv.bias
    return conv.weight * scale.view(-1, 1, 1, 1), norm.bias - mean * scale


def _convolve(conv: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not _is_slow_in_bfloat16(conv) or x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        output: Tensor = conv._conv_forward(x, weight, bias)
        return output
    with torch.autocast("cpu", enabled=False):
        output = conv._conv_forward(x.float(), weight, bias)
    return output.to(torch.get_autocast_dtype("cpu"))


def find_pairs(network: nn.Module, inputs: Tensor) -> Pairs:
    """Names of convolutions in ``network`` whose output is only used by a batch norm, with the name of that norm.

    Found in the autograd graph of one forward pass, so it works for any network.
    """
    calls: Counter[str] = Counter()
    convolutions: dict[Any, str] = {}
    norms: dict[Any, str] = {}
    handles = []
    for name, module in network.named_modules():

        def before(_: nn.Module, arguments: tuple[Tensor, ...], name: str = name) -> None:
            calls[name] += 1
            norms[arguments[0].grad_fn] = name

        def after(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            calls[name] += 1
            convolutions[output.grad_fn] = name

        if type(module) is nn.Conv2d and module.padding_mode == "zeros":
            handles.append(module.register_forward_hook(after))
        elif _is_foldable(module):
            handles.append(module.register_forward_pre_hook(before))
    try:
        with torch.inference_mode(False), torch.enable_grad():  # the caller may be in inference mode
            output = network(inputs.detach().clone().requires_grad_())
    finally:
        for handle in handles:
            handle.remove()
    used = _uses(output.grad_fn)
    return tuple(
        (name, norms[node])
        for node, name in convolutions.items()
        if node in norms and used[node] == 1 and calls[name] == calls[norms[node]] == 1
    )


def fast_view(network: Module, pairs: Pairs) -> Module:
    """``network`` with its ``pairs`` folded, in the same mode; parameters and buffers are shared."""
    replaced: dict[str, nn.Module] = {
        name: FastConvolution(module, None)
        for name, module in network.named_modules()
        if type(module) is nn.Conv2d and _is_slow_in_bfloat16(module)
    }
    for conv, norm in pairs:
        modules = network.get_submodule(conv), network.get_submodule(norm)
        replaced |= {conv: FastConvolution(*modules), norm: nn.Identity()}  # type: ignore[arg-type]
    return _with_modules(network, replaced)


def _with_modules(module: Module, replaced: Mapping[str, nn.Module]) -> Module:
    """A shallow copy of ``module`` with some of its submodules replaced, by dotted name."""
    changed = copy.copy(module)
    changed.__dict__["_modules"] = dict(module._modules)
    inner: dict[str, dict[str, nn.Module]] = {}
    for name, replacement in replaced.items():
        child, _, rest = name.partition(".")
        if rest:
            inner.setdefault(child, {})[rest] = replacement
        else:
            changed._modules[child] = replacement
    for child, names in inner.items():
        changed._modules[child] = _with_modules(module.get_submodule(child), names)
    return changed


def _uses(root: Any) -> Counter[Any]:
    """The number of nodes of an autograd graph that use the output of each node."""
    uses: Counter[Any] = Counter()
    waiting, seen = [root], {root}
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None:
                uses[node] += 1
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
    return uses


def _saves(conv: nn.Conv2d, x: Tensor) -> bool:
    places = x.shape[0] * x.shape[2] * x.shape[3] // (conv.stride[0] * conv.stride[1])
    return places >= FEWEST_PLACES * conv.weight[0].numel()


def _is_slow_in_bfloat16(conv: nn.Conv2d) -> bool:
    return conv.groups == conv.in_channels > 1 and (max(conv.stride) > 1 or max(conv.kernel_size) > 3)


def _is_foldable(module: nn.Module) -> bool:
    known = type(module) is nn.BatchNorm2d or _has_activation(module)
    return known and module.affine and module.track_running_stats  # type: ignore[return-value]


def _has_activation(module: nn.Module) -> bool:
    """Whether it is timm's batch norm with an activation."""
    return type(module).__name__ == "BatchNormAct2d"
