"""Push a run to the Hugging Face hub, or pull one. No pulled file is executed.

A pushed run contains the encoder, centres, configuration, metrics and model card, but neither report.html, which shows
images of the data, nor the paths of the data.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from softtriple.config import Config
from softtriple.data.sources import EMBEDDED, SCHEMES
from softtriple.errors import UserError, first_line
from softtriple.files import atomic_folder
from softtriple.interop.export import export_encoder
from softtriple.models.repository import check_repository, connect, snapshot
from softtriple.models.saving import open_encoder
from softtriple.models.weights import is_url
from softtriple.training import Run
from softtriple.training.card import write_card
from softtriple.training.directory import RunDir

# Files of a run; push does not replace other files of a repository, and pull does not fetch them.
SHARED = (
    "README.md",
    "added.safetensors",
    "baseline.json",
    "calibration.json",
    "centers.safetensors",
    "config.toml",
    "data.json",
    "encoder.onnx",
    "encoder/*",
    "log.jsonl",
    "prefixes.json",
    "report.json",
    "validation.json",
)


def push(
    path: Path, repo: str, *, private: bool = False, licence: str | None = None, onnx: bool = False, trust: bool = False
) -> str:
    """Push the run in ``path`` to the repository ``repo`` as one commit; returns the address of the repository.

    Creates the repository if needed. ``onnx`` adds the encoder as encoder.onnx. Files of an earlier push that the run
    does not have are removed.
    """
    check_repository(repo)
    run = Run.load(path, trust=trust)
    assert run.directory is not None
    _ = run.report  # UserError unless the run is finished
    api = connect(repo)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for file in _shared_files(path):
            _copy(file, path, folder)
        staged = RunDir(folder)
        staged.config_file.unlink()
        staged.write_config(_without_paths(run.config))
        write_card(run, staged.card_file, repo=repo, licence=licence)
        if onnx:
            export_encoder(run.encoder, folder / "encoder.onnx", force=True)
        try:
            return _commit(api, folder, repo, private)
        except UserError:
            raise
        except Exception as error:  # huggingface_hub and its HTTP client raise many types
            raise UserError(
                f"{repo}: cannot be written on the Hugging Face hub ({first_line(error)}). To log in: hf auth login"
            ) from error


def pull(repo: str, out: Path, *, revision: str | None = None) -> None:
    """Write the run in the repository ``repo`` to the new folder ``out``."""
    check_repository(repo)
    if out.exists():
        raise UserError(f"{out} already exists. Choose another --out.")
    downloaded = snapshot(repo, SHARED, revision)
    if not (downloaded / "config.toml").is_file():
        raise UserError(
            f"{repo} does not contain a run: config.toml is missing. Push one with: softtriple push RUN USER/NAME"
        )
    with atomic_folder(out) as temporary:
        for file in _shared_files(downloaded):
            _copy(file, downloaded, temporary)
        open_encoder(temporary)  # UserError unless there is one


def _commit(api: Any, folder: Path, repo: str, private: bool) -> str:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    url = api.create_repo(repo, private=True if private else None, exist_ok=True)
    names = [file.relative_to(folder).as_posix() for file in _shared_files(folder)]
    gone = {name for name in api.list_repo_files(repo) if _is_shared(name)} - set(names)
    operations = [
        *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name) for name in names),
        *(CommitOperationDelete(path_in_repo=name) for name in sorted(gone)),
    ]
    api.create_commit(repo, operations=operations, commit_message="Push a run of softtriple")
    return str(url)


def _shared_files(folder: Path) -> Iterator[Path]:
    return (file for pattern in SHARED for file in sorted(folder.glob(pattern)) if file.is_file())


def _is_shared(name: str) -> bool:
    return any(Path(name).match(pattern) and name.count("/") == pattern.count("/") for pattern in SHARED)


def _copy(file: Path, source: Path, target: Path) -> None:
    to = target / file.relative_to(source)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


def _without_paths(config: Config) -> Config:
    """``config`` without paths of this machine: a benchmark keeps its name, weights their URL."""
    name, weights = config.dataset.partition(":")[0], config.model.weights
    return replace(
        config,
        dataset=name if name in SCHEMES or name in EMBEDDED else "",
        data=replace(config.data, exclude=None, labels=None),
        model=replace(config.model, weights=weights if weights is not None and is_url(weights) else None),
        train=replace(config.train, start=None),
    )
