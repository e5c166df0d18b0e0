"""Files of a repository on the Hugging Face hub; `huggingface_hub` is imported when they are asked for."""

import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softtriple.errors import UserError
from softtriple.models.backbones.libraries import first_line


def check_repository(repo: str) -> None:
    """UserError unless ``repo`` has the form USER/NAME."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo):
        raise UserError(f"{repo!r} is not a repository of the Hugging Face hub; expected USER/NAME")


def connect(repo: str) -> Any:
    """The interface of huggingface_hub to the hub, or to the one at ``$HF_ENDPOINT``."""
    check_repository(repo)
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(f"{repo}: the hub needs huggingface_hub: pip install 'softtriple[huggingface]'") from error
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="softtriple")


def snapshot(repo: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """A folder with the files of ``repo`` whose names match ``patterns``, from the hub or, without network, its cache.

    ``revision`` is a branch, a tag or a commit. Nothing that is downloaded is executed.
    """
    api = connect(repo)
    try:
        return Path(api.snapshot_download(repo, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # whatever the network raises
        raise UserError(f"{repo}: cannot be downloaded from the Hugging Face hub ({first_line(error)})") from error
