"""LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685): train low-rank updates of the attention projections only.

The weights of the transformer are frozen; each projection to queries, keys and values gets ``SCALE * up @ down`` added,
of rank `RANK`. Saved weights contain the sum, so a loaded encoder has no trace of LoRA.
"""

from jaxtyping import Float
from torch import Tensor, nn

from softtriple.errors import UserError

RANK = 16
SCALE = 2.0
# Names of the projections in timm and transformers, separate or combined.
_QUERIES = ("qkv", "Wqkv", "query_key_value", "q", "query", "q_proj", "q_lin")
_KEYS_AND_VALUES = ("kv", "k", "key", "k_proj", "k_lin", "v", "value", "v_proj", "v_lin")
PROJECTIONS = frozenset({*_QUERIES, *_KEYS_AND_VALUES})


class LowRank(nn.Module):
    """A linear layer plus a low-rank update, initially zero."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        rank = min(RANK, linear.in_features, linear.out_features)
        self.down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.up = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.normal_(self.down, std=linear.in_features**-0.5)

    # Some networks read the weight and bias of a projection instead of calling it.

    @property
    def weight(self) -> Tensor:
        """The updated weight."""
        return self.linear.weight + SCALE * self.up @ self.down

    @property
    def bias(self) -> Tensor | None:
        """The bias, which has no update."""
        return self.linear.bias

    def forward(self, x: Float[Tensor, "... in_features"]) -> Float[Tensor, "... out_features"]:
        """The output of the linear layer with the updated weight."""
        output: Tensor = self.linear(x) + SCALE * (x @ self.down.T @ self.up.T)
        return output


def add_low_rank(network: nn.Module, name: str) -> None:
    """Add low-rank updates to the attention projections of ``network``, which messages call ``name``."""
    layers = [
        (module, child, layer)
        for module in network.modules()
        for child, layer in module.named_children()
        # Subclasses have other uses, such as the output projection of nn.MultiheadAttention.
        if child in PROJECTIONS and type(layer) is nn.Linear
    ]
    if not layers:
        raise UserError(f"trainable = 'lora': {name} has no attention projections; use last:N, head or all")
    for module, child, layer in layers:
        setattr(module, child, LowRank(layer))


def freeze_all_but_low_rank(network: nn.Module) -> None:
    """Freeze everything but the low-rank updates."""
    network.requires_grad_(False)
    for layer in network.modules():
        if isinstance(layer, LowRank):
            layer.down.requires_grad_(True)
            layer.up.requires_grad_(True)


def merge_low_rank(network: nn.Module) -> None:
    """Replace layers with low-rank updates by linear layers with the updated weights."""
    for module in list(network.modules()):
        for child, layer in list(module.named_children()):
            if isinstance(layer, LowRank):
                layer.linear.weight.data = layer.weight.detach()
                setattr(module, child, layer.linear)


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict that ``module`` would have after `merge_low_rank`."""
    state: dict[str, Tensor] = dict(module.state_dict())
    for name, layer in module.named_modules():
        if isinstance(layer, LowRank):
            for tensor in ("linear.weight", "down", "up"):
                del state[f"{name}.{tensor}"]
            state[f"{name}.weight"] = layer.weight.detach()
            if layer.bias is not None:
                state[f"{name}.bias"] = state.pop(f"{name}.linear.bias")
    return state
