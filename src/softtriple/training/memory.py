"""How much memory a training step needs, and whether there is enough of it."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softtriple.errors import UserError, byte_size
from softtriple.losses import Loss
from softtriple.models import Encoder
from softtriple.models.inputs import example_input
from softtriple.models.preprocess import Preprocess

MEMINFO = Path("/proc/meminfo")


class Memory(NamedTuple):
    """Bytes that one rank is known to need; the data come on top."""

    parameters: int
    gradients: int
    optimizer: int  # Adam's two moments
    scratch: int  # of the loss
    activations: int = 0  # of the encoder, kept for the backward pass

    def __str__(self) -> str:
        named = zip(("parameters", "gradients", "optimiser", "loss", "activations"), self, strict=True)
        parts = ", ".join(f"{name} {byte_size(count)}" for name, count in named)
        return f"{byte_size(sum(self))} ({parts}), plus data"


def estimate_memory(encoder: nn.Module, loss: Loss, batch_size: int, activations: int = 0) -> Memory:
    """Memory for this rank's state and a training step; ``batch_size`` counts the examples of all ranks."""
    learned = sum(_bytes(p) for p in encoder.parameters() if p.requires_grad)
    centers = sum(_bytes(p) for p in loss.parameters() if p.requires_grad)
    return Memory(
        parameters=sum(_bytes(p) for module in (encoder, loss) for p in module.parameters()),
        gradients=learned + loss.gradient_bytes(batch_size),
        optimizer=2 * (learned + centers),
        scratch=loss.working_bytes(batch_size),
        activations=activations,
    )


def activation_bytes(encoder: Encoder, half: torch.dtype | None = None) -> int:
    """What the backward pass keeps of one image; 0 for vectors, which need little, and texts, whose lengths differ."""
    if not isinstance(encoder.preprocess, Preprocess):
        return 0
    was_training = encoder.training
    encoder.eval()
    # What does not grow with the batch, such as parameters converted to half precision, is no activation.
    two, one = (_saved_bytes(encoder, count, half) for count in (2, 1))
    encoder.train(was_training)
    return two - one


def _saved_bytes(encoder: Encoder, count: int, half: torch.dtype | None) -> int:
    """Bytes of the tensors that autograd saves in a forward pass of ``count`` images."""
    device = next(encoder.parameters()).device
    inputs = example_input(encoder.preprocess, encoder.config.in_features, count).to(device)
    saved: dict[int, Tensor] = {}  # by address; the tensors stay alive, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None),
    ):
        encoder(inputs)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated, or None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not MEMINFO.is_file():
        return None
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines() if ":" in line)
    return 1024 * int(lines["MemAvailable"].split()[0]) if "MemAvailable" in lines else None


def check_memory(needed: Memory, device: torch.device) -> None:
    """UserError if training needs more memory than there is: better than being killed in the first step."""
    free = free_memory(device)
    if free is not None and sum(needed) > free:
        raise UserError(
            f"training needs about {needed}, but only {byte_size(free)} is free. Use a smaller train.batch_size (with "
            "a larger train.accumulate) or model.input_size, or train only the head: --set model.trainable=head"
        )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
