"""An encoder on images of 32 pixels that is built in no time."""

from typing import Any

import torch

from softtriple.models import Encoder


def small(**options: Any) -> Encoder:
    torch.manual_seed(0)
    return Encoder.from_backbone("conv-small", **({"dim": 4, "width": 8} | options))
