"""Weight files, read safely and with a reason when they do not fit."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


def read_weights(source: str) -> dict[str, Tensor]:
    """The tensors of a PyTorch weight file, given by path or by http(s) URL.

    A URL is downloaded once, into PyTorch's cache directory. Where the file's name ends in the beginning of its
    SHA-256, as in ``bn_inception-52deb4733.pth``, the content is checked against it. Nothing is unpickled but
    tensors.
    """
    path = _download(source) if source.startswith(("http://", "https://")) else Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such weight file")
    expected = _checksum_in_name(path.name)
    actual = sha256_of(path)
    if not actual.startswith(expected):
        raise ValueError(f"{path}: its SHA-256 begins with {actual[: len(expected)]}, not {expected}")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged archives raise whatever their reader meets first
        raise ValueError(f"{path}: not a readable PyTorch weight file") from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ValueError(f"{path}: holds no state dict, a dictionary of tensors by name")
    return dict(weights)


def load_exactly(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load ``weights`` into ``module``, whose names and shapes they must have; ``source`` is named in errors."""
    refuse_misfits(module, weights, source)
    module.load_state_dict(weights, strict=False)


def refuse_misfits(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights whose names or shapes are not those of ``module``.

    Batch norm's step counters may be missing: old files have none.
    """
    wanted = module.state_dict()
    missing = [name for name in wanted if name not in weights and not name.endswith(".num_batches_tracked")]
    unexpected = [name for name in weights if name not in wanted]
    misshapen = [name for name in wanted if name in weights and weights[name].shape != wanted[name].shape]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    if any(problems.values()):
        lists = "; ".join(f"{kind}: {_abridged(names)}" for kind, names in problems.items() if names)
        raise ValueError(f"{source}: the weights do not fit the network ({lists})")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write ``tensors`` as safetensors; a failure is an OSError, as it is for any other file."""
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written ({error})") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a readable safetensors file ({error})") from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def downloaded_file(url: str) -> Path:
    """Where the weight file at ``url`` is kept once it is downloaded: in PyTorch's cache directory."""
    return Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]


def _download(url: str) -> Path:
    path = downloaded_file(url)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), _checksum_in_name(path.name), progress=False)
        except OSError as error:  # every failure of urllib is one
            raise FileNotFoundError(
                f"{url}: cannot be downloaded ({error}); get it elsewhere and give its path"
            ) from error
        except RuntimeError as error:  # how torch.hub reports a wrong checksum
            raise ValueError(f"{url}: {error}") from error
    return path


def _checksum_in_name(name: str) -> str:
    match = re.search(r"-([0-9a-f]{8,64})\.[a-z]+$", name)
    return match[1] if match else ""


def _abridged(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
