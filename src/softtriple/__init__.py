"""Learn a similarity metric from labels, without sampling triplets, and search with it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softtriple.config import Config as Config
    from softtriple.data import Benchmark as Benchmark
    from softtriple.errors import UserError as UserError
    from softtriple.interop.sklearn import SoftTripleEmbedding as SoftTripleEmbedding
    from softtriple.losses import HardTripleLoss as HardTripleLoss
    from softtriple.losses import MergedCenters as MergedCenters
    from softtriple.losses import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
    from softtriple.losses import SoftmaxLoss as SoftmaxLoss
    from softtriple.losses import SoftTripleLoss as SoftTripleLoss
    from softtriple.metrics import Embeddings as Embeddings
    from softtriple.metrics import Report as Report
    from softtriple.metrics.evaluate import evaluate as evaluate
    from softtriple.models import Encoder as Encoder
    from softtriple.search import Neighbors as Neighbors
    from softtriple.search import nearest as nearest
    from softtriple.training import Run as Run
    from softtriple.training.train import train as train

__version__ = "0.1.0"

# Imported on first use: --help must not wait for torch, and the loss alone needs neither faiss nor matplotlib.
_HOMES = {
    "Benchmark": "softtriple.data",
    "Config": "softtriple.config",
    "Embeddings": "softtriple.metrics",
    "Encoder": "softtriple.models",
    "HardTripleLoss": "softtriple.losses",
    "MergedCenters": "softtriple.losses",
    "Neighbors": "softtriple.search",
    "NormalizedSoftmaxLoss": "softtriple.losses",
    "Report": "softtriple.metrics",
    "Run": "softtriple.training",
    "SoftTripleEmbedding": "softtriple.interop.sklearn",
    "SoftTripleLoss": "softtriple.losses",
    "SoftmaxLoss": "softtriple.losses",
    "UserError": "softtriple.errors",
    "evaluate": "softtriple.metrics",
    "nearest": "softtriple.search",
    "train": "softtriple.training",
}

__all__ = sorted([*_HOMES, "__version__"])  # `from softtriple import *` imports them


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'softtriple' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
