"""Preprocessing: from 8-bit images or texts to the input that a network's weights expect."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from softtriple.data.images import View
from softtriple.errors import UserError

# ITU-R BT.601, as in Pillow's convert("L").
_LUMA = (0.299, 0.587, 0.114)
# No network needs more; a corrupt encoder.json must not exhaust the memory.
MAX_SIDE = 8192


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Size, channel order and scale of a network's input.

    Calling it turns RGB images, already cropped to ``size`` by ``size``, into network input:
    ``(value * peak / 255 - mean) / std`` for each channel, in the order of ``channels``.
    ``resize`` is the short side of an image before it is cropped. ``eval_size`` replaces ``size`` in evaluation, and
    the short side changes in proportion.
    """

    size: int
    resize: int
    channels: Literal["rgb", "bgr", "gray"]
    peak: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    eval_size: int | None = None

    def __post_init__(self) -> None:
        if self.channels not in ("rgb", "bgr", "gray"):
            raise UserError(f"preprocess: channels = {self.channels!r} must be rgb, bgr or gray")
        if not 1 <= self.size <= self.resize <= MAX_SIDE:
            raise UserError(
                f"preprocess: size = {self.size} and resize = {self.resize} must satisfy 1 ≤ size ≤ resize ≤ {MAX_SIDE}"
            )
        if self.eval_size is not None and not 1 <= self.eval_size * self.resize / self.size <= MAX_SIDE:
            raise UserError(f"preprocess: eval_size = {self.eval_size} must give a short side from 1 to {MAX_SIDE}")
        if not len(self.mean) == len(self.std) == self.num_channels:
            raise UserError(f"preprocess: mean and std need {self.num_channels} numbers for {self.channels}")

    @property
    def num_channels(self) -> int:
        """Number of channels of the network input."""
        return 1 if self.channels == "gray" else 3

    @property
    def eval_view(self) -> View:
        """The view of an image in evaluation: short side resized, centre cropped."""
        evaluated = self.at_size(self.eval_size or self.size)
        return View(size=evaluated.size, resize=evaluated.resize)

    def at_size(self, size: int) -> "Preprocess":
        """The same preprocessing at another ``size``; the short side changes in proportion."""
        return replace(self, size=size, resize=round(size * self.resize / self.size))

    def __call__(self, images: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch channels height width"]:
        """Network input in the default float type, on the device of ``images``."""
        # A view: the result keeps the memory order of the images, which is PyTorch's channels_last.
        pixels = images.permute(0, 3, 1, 2).to(torch.get_default_dtype())
        if self.channels == "bgr":
            pixels = pixels.flip(1)
        elif self.channels == "gray":
            pixels = (pixels * pixels.new_tensor(_LUMA).view(3, 1, 1)).sum(dim=1, keepdim=True)
        mean = pixels.new_tensor(self.mean).view(-1, 1, 1)
        std = pixels.new_tensor(self.std).view(-1, 1, 1)
        return (pixels * (self.peak / 255) - mean) / std


IMAGENET = Preprocess(
    size=224, resize=256, channels="rgb", peak=1.0, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)


@runtime_checkable
class TextPreprocess(Protocol):
    """A function from texts to network input."""

    def __call__(self, texts: list[str]) -> Int64[Tensor, "texts ..."]:
        """A row of numbers for each text."""
