"""Downloading from a repository on the Hugging Face hub; `huggingface_hub` is imported on first use."""

import importlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softtriple.errors import UserError, first_line


def check_repository(repo: str) -> None:
    """UserError unless ``repo`` has the form USER/NAME."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", repo):
        raise UserError(f"{repo!r} is not a repository of the Hugging Face hub; expected USER/NAME")


def connect(repo: str) -> Any:
    """A huggingface_hub client, for the hub at ``$HF_ENDPOINT`` if that is set."""
    check_repository(repo)
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise UserError(f"{repo}: the hub needs huggingface_hub: pip install 'softtriple[huggingface]'") from error
    return hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="softtriple")


def snapshot(repo: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """A local folder with the files of ``repo`` that match ``patterns``; without network, from the hub's cache.

    ``revision`` is a branch, a tag or a commit. No downloaded file is executed.
    """
    api = connect(repo)
    try:
        return Path(api.snapshot_download(repo, revision=revision, allow_patterns=list(patterns)))
    except Exception as error:  # huggingface_hub and its HTTP client raise many types
        raise UserError(f"{repo}: cannot be downloaded from the Hugging Face hub ({first_line(error)})") from error
