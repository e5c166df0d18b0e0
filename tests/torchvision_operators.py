"""Make torchvision importable where its compiled operators cannot be loaded, as beside the CPU build of torch.

The wheel of torchvision is built against CUDA. Without it torchvision's C++ library does not load, and the import
fails at a Python registration for two operators that were never declared. Declaring them is enough: timm and
transformers use transforms and layers, never non-maximum suppression.
"""

import importlib.util
from pathlib import Path

import torch


def declare_missing_operators() -> torch.library.Library | None:
    """Declare torchvision's two operators unless its own library has them; keep the result for them to stay."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    try:
        torch.ops.load_library(Path(spec.origin).with_name("_C.so"))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


LIBRARY = declare_missing_operators()
