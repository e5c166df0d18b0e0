"""The folder of a saved encoder: model.safetensors, encoder.json and any files needed to build its backbone."""

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from softtriple.errors import UserError, first_line
from softtriple.files import atomic_write, write_text
from softtriple.models.description import FORMAT, Description, EncoderConfig, identity, read_description
from softtriple.models.lora import merged_state
from softtriple.models.weights import (
    MissingFileError,
    allocate,
    check_fit,
    has_unsaved_buffers,
    read_shapes,
    read_tensors,
    sha256_of,
    tensors_as_bytes,
    write_tensors,
)

_WEIGHTS = "model.safetensors"
_DESCRIPTION = "encoder.json"

Module = TypeVar("Module", bound=nn.Module)


class SavedEncoder(NamedTuple):
    """A folder whose encoder.json has been read, with the texts of the backbone's ``files``."""

    folder: Path
    description: Description
    files: dict[str, str]


def write_encoder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: EncoderConfig,
    preprocess: Any,
    class_names: tuple[str, ...],
    files: Mapping[str, str],
) -> None:
    """Write an encoder to ``folder``, each file atomically.

    encoder.json is written last and contains the checksums of the other files, so a mixture of two encoders is noticed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / _WEIGHTS) as temporary:
        write_tensors(temporary, tensors)
        checksum = sha256_of(temporary)
    for name, text in files.items():
        write_text(folder / name, text)
    described_config, described_preprocess = identity(config, preprocess)
    description = {
        "format": FORMAT,
        "softtriple": importlib.metadata.version("softtriple"),
        "sha256": checksum,
        "config": described_config,
        "preprocess": described_preprocess,
        "class_names": class_names,
    }
    if files:
        description["files"] = {name: sha256_of(folder / name) for name in files}
    write_text(folder / _DESCRIPTION, json.dumps(description, indent=2, ensure_ascii=False) + "\n")


def open_encoder(folder: str | os.PathLike[str]) -> SavedEncoder:
    """Read the encoder.json in ``folder``, or in the run directory ``folder``, but not the weights."""
    inner = Path(folder) / "encoder"
    folder = inner if inner.is_dir() else Path(folder)
    for name in (_DESCRIPTION, _WEIGHTS):
        if not (folder / name).is_file():
            raise MissingFileError(f"{folder}: no encoder here, {name} is missing")
    description = read_description(folder / _DESCRIPTION)
    return SavedEncoder(folder, description, _read_files(folder, description.files))


def load_encoder(saved: SavedEncoder, build: Callable[[], Module]) -> Module:
    """The module that ``build`` returns, with the weights of ``saved``; UserError if they do not fit."""
    description, weights = saved.folder / _DESCRIPTION, saved.folder / _WEIGHTS
    try:
        # The meta device allocates nothing, so a corrupt description cannot exhaust the memory.
        with torch.device("meta"):
            encoder = build()
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{description}: no encoder can be built from this file ({first_line(error)})") from error
    check_fit(encoder, read_shapes(weights), str(weights))
    if saved.description.sha256 != sha256_of(weights):
        raise UserError(f"{weights}: damaged, or not the weights that {_DESCRIPTION} belongs to")
    if has_unsaved_buffers(encoder):  # only the constructor knows their values
        encoder = build()
    allocate(encoder)
    encoder.load_state_dict(read_tensors(weights))
    return encoder


def fingerprint(tensors: Mapping[str, Tensor], config: EncoderConfig, preprocess: Any) -> str:
    """A hash of everything that determines the embeddings."""
    digest = hashlib.sha256(tensors_as_bytes(tensors))
    digest.update(json.dumps(identity(config, preprocess), sort_keys=True).encode())
    return digest.hexdigest()[:16]


def separate_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The state of ``module`` as separate contiguous tensors; safetensors cannot write tied ones."""
    tensors: dict[str, Tensor] = {}
    storages = set()
    for name, tensor in merged_state(module).items():
        saved = tensor.cpu().contiguous()
        storage = saved.untyped_storage().data_ptr()
        tensors[name] = saved.clone() if storage in storages else saved
        storages.add(storage)
    return tensors


def _read_files(folder: Path, checksums: Mapping[str, str]) -> dict[str, str]:
    """The text of each file listed in encoder.json, which must be in ``folder`` itself and have its SHA-256."""
    files = {}
    for name, checksum in checksums.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise MissingFileError(f"{folder}: {name} is missing, which {_DESCRIPTION} lists")
        if sha256_of(path) != checksum:
            raise UserError(f"{path}: damaged, or not the file that {_DESCRIPTION} belongs to")
        files[name] = path.read_text(encoding="utf-8")
    return files
