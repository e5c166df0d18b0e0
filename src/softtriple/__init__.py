"""Learn a similarity metric from labels, without sampling triplets, and search with it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softtriple.interop.sklearn import SoftTripleEmbedding as SoftTripleEmbedding
    from softtriple.losses import HardTripleLoss as HardTripleLoss
    from softtriple.losses import MergedCenters as MergedCenters
    from softtriple.losses import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
    from softtriple.losses import SoftmaxLoss as SoftmaxLoss
    from softtriple.losses import SoftTripleLoss as SoftTripleLoss
    from softtriple.metrics import Report as Report
    from softtriple.metrics.evaluate import Embeddings as Embeddings
    from softtriple.metrics.evaluate import evaluate as evaluate
    from softtriple.models import Encoder as Encoder
    from softtriple.search import Neighbors as Neighbors
    from softtriple.search import nearest as nearest

__version__ = "0.1.0"

# Imported when first used: `softtriple --help` must not wait for torch.
_HOME = {
    "Embeddings": "softtriple.metrics.evaluate",
    "Encoder": "softtriple.models",
    "HardTripleLoss": "softtriple.losses",
    "MergedCenters": "softtriple.losses",
    "Neighbors": "softtriple.search",
    "NormalizedSoftmaxLoss": "softtriple.losses",
    "Report": "softtriple.metrics",
    "SoftTripleEmbedding": "softtriple.interop.sklearn",
    "SoftTripleLoss": "softtriple.losses",
    "SoftmaxLoss": "softtriple.losses",
    "evaluate": "softtriple.metrics.evaluate",
    "nearest": "softtriple.search",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'softtriple' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
