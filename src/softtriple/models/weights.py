"""Weight files: read without unpickling code, and checked against the network before loading."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn

from softtriple.data.download import DownloadError, Progress, RemoteFile, fetch
from softtriple.errors import UserError

_METADATA = {"format": "pt"}
_LARGEST = 10**11  # bytes of a weight file by URL


class MissingFileError(UserError, FileNotFoundError):
    """A file that the user must provide."""


def read_weights(source: str) -> dict[str, Tensor]:
    """The tensors of a PyTorch or safetensors file, given by path or by http(s) URL.

    A URL is downloaded once, into PyTorch's cache directory. If the file name ends in the start of a SHA-256, as in
    ``bn_inception-52deb4733.pth``, the content is verified. Only tensors are unpickled.
    """
    path = download_weights(source) if is_url(source) else check_weights_file(source)
    expected = _checksum_in_name(path.name)
    actual = sha256_of(path)
    if not actual.startswith(expected):
        raise UserError(f"{path}: its SHA-256 begins with {actual[: len(expected)]}, expected {expected}")
    if path.suffix == ".safetensors":
        return read_tensors(path)
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise many types
        raise UserError(f"{path}: not a readable PyTorch weight file") from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UserError(f"{path}: not a state dict, which maps names to tensors")
    return dict(weights)


def check_weights_file(path: str) -> Path:
    """``path`` as a Path, or MissingFileError if there is no file."""
    if not Path(path).is_file():
        raise MissingFileError(f"{path}: no such weight file")
    return Path(path)


def load_exactly(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Load ``weights`` into ``module``; names and shapes must match. Errors name ``source``.

    Old files may lack the step counters of batch norm.
    """
    counters = {name: value for name, value in module.state_dict().items() if name.endswith(".num_batches_tracked")}
    complete = {**counters, **weights}
    check_fit(module, {name: value.shape for name, value in complete.items()}, source)
    module.load_state_dict(complete)


def check_fit(module: nn.Module, shapes: Mapping[str, Sequence[int]], source: str) -> None:
    """UserError unless ``shapes`` has the names and shapes of the tensors of ``module``."""
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    missing = [name for name in wanted if name not in shapes]
    unexpected = [name for name in shapes if name not in wanted]
    misshapen = [name for name, shape in wanted.items() if name in shapes and tuple(shapes[name]) != shape]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    if any(problems.values()):
        lists = "; ".join(f"{problem}: {_abridged(names)}" for problem, names in problems.items() if names)
        raise UserError(f"{source}: the weights do not fit the network ({lists})")


def allocate(module: nn.Module) -> None:
    """Allocate the parameters and buffers that are on the meta device."""
    for part in module.modules():
        if any(tensor.is_meta for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False))):
            part.to_empty(device="cpu", recurse=False)


def has_unsaved_buffers(module: nn.Module) -> bool:
    """Whether a buffer on the meta device is not in the state dict, so that loading would not fill it."""
    saved = module.state_dict().keys()
    return any(buffer.is_meta and name not in saved for name, buffer in module.named_buffers())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write ``tensors`` as safetensors, with the permissions of any new file; a failure is an OSError."""
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata=_METADATA)
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written ({error})") from error
    path.chmod(mode)  # safetensors writes files that only their owner may read


def tensors_as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of the file that `write_tensors` writes."""
    return save(dict(tensors), metadata=_METADATA)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path}: not a readable safetensors file ({error})") from error


def read_shapes(path: Path) -> dict[str, list[int]]:
    """The shape of every tensor of a safetensors file, from its header."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{path}: not a readable safetensors file ({error})") from error


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_url(source: str) -> bool:
    """Whether ``source`` is an http(s) URL rather than a path."""
    return source.startswith(("http://", "https://"))


def downloaded_file(url: str) -> Path:
    """Where the weight file at ``url`` is cached, below PyTorch's cache directory.

    Files without a checksum in their name get a folder of their own for each URL.
    """
    folder, name = Path(torch.hub.get_dir()) / "checkpoints", url.rsplit("/", 1)[-1]
    return folder / name if _checksum_in_name(name) else folder / hashlib.sha256(url.encode()).hexdigest()[:16] / name


def download_weights(url: str, folder: Path | None = None, *, progress: Progress = lambda *_: None) -> Path:
    """The path of the weight file at ``url`` in ``folder`` or the cache, downloaded if it is not there yet."""
    path = downloaded_file(url)
    checksum = f"sha256:{expected}" if (expected := _checksum_in_name(path.name)) else None
    file = RemoteFile(name=path.name, urls=(url,), checksum=checksum, limit=_LARGEST)
    try:
        return fetch(file, folder or path.parent, progress=progress)
    except DownloadError as error:
        raise MissingFileError(f"{error}. Get the file elsewhere and give its path") from error


def _checksum_in_name(name: str) -> str:
    match = re.search(r"-([0-9a-f]{8,64})\.[a-z]+$", name)
    return match[1] if match else ""


def _abridged(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
