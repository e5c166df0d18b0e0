"""LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685): train low-rank changes of the attention projections only.

The weights of a transformer stay as they are, and each projection of queries, keys and values gets
``SCALE * up @ down`` added, of rank `RANK`. Saved weights have the sum, so that loading needs nothing of this.
"""

from jaxtyping import Float
from torch import Tensor, nn

from softtriple.errors import UserError

RANK = 16
SCALE = 2.0
# Names of projections in timm and transformers: of queries, keys and values, alone or in one.
_QUERIES = ("qkv", "Wqkv", "query_key_value", "q", "query", "q_proj", "q_lin")
_KEYS_AND_VALUES = ("kv", "k", "key", "k_proj", "k_lin", "v", "value", "v_proj", "v_lin")
PROJECTIONS = frozenset({*_QUERIES, *_KEYS_AND_VALUES})


class LowRank(nn.Module):
    """A linear layer plus a product of two small matrices, which starts at zero."""

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
        """The weight of the sum."""
        return self.linear.weight + SCALE * self.up @ self.down

    @property
    def bias(self) -> Tensor | None:
        """The bias, which is not changed."""
        return self.linear.bias

    def forward(self, x: Float[Tensor, "... in_features"]) -> Float[Tensor, "... out_features"]:
        """The output of the linear layer with the sum as its weight."""
        output: Tensor = self.linear(x) + SCALE * (x @ self.down.T @ self.up.T)
        return output


def add_low_rank(network: nn.Module, name: str) -> None:
    """Add low-rank changes to the attention projections of ``network``, called ``name``."""
    layers = [
        (module, child, layer)
        for module in network.modules()
        for child, layer in module.named_children()
        # Subclasses are used in other ways, such as the output projection of nn.MultiheadAttention.
        if child in PROJECTIONS and type(layer) is nn.Linear
    ]
    if not layers:
        raise UserError(f"trainable = 'lora': {name} has no attention projections; use last:N, head or all")
    for module, child, layer in layers:
        setattr(module, child, LowRank(layer))


def freeze_all_but_low_rank(network: nn.Module) -> None:
    """Let only what `add_low_rank` added be trained."""
    network.requires_grad_(False)
    for layer in network.modules():
        if isinstance(layer, LowRank):
            layer.down.requires_grad_(True)
            layer.up.requires_grad_(True)


def merge_low_rank(network: nn.Module) -> None:
    """Make linear layers of what `add_low_rank` added, with the sums as weights."""
    for module in list(network.modules()):
        for child, layer in list(module.named_children()):
            if isinstance(layer, LowRank):
                layer.linear.weight.data = layer.weight.detach()
                setattr(module, child, layer.linear)


def merged_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of ``module`` as it would be after `merge_low_rank`."""
    state: dict[str, Tensor] = dict(module.state_dict())
    for name, layer in module.named_modules():
        if isinstance(layer, LowRank):
            for tensor in ("linear.weight", "down", "up"):
                del state[f"{name}.{tensor}"]
            state[f"{name}.weight"] = layer.weight.detach()
            if layer.bias is not None:
                state[f"{name}.bias"] = state.pop(f"{name}.linear.bias")
    return state
