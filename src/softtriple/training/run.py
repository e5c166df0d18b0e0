"""A run directory: what a training run leaves behind, and the rule that nothing in it is lost.

config.toml           the resolved configuration
log.jsonl             a line for each epoch
checkpoints/          the newest states, each written whole or not at all
encoder/              all that inference needs
centers.safetensors   the centres of the loss
report.json           the evaluation, for programs
report.html           the same and more, for people
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softtriple.config import FORMAT, Config, read_config, write_config
from softtriple.files import append_line, remove_partial, write_whole
from softtriple.training.checkpoint import Position


@dataclass(frozen=True)
class RunDir:
    """The files of one run."""

    path: Path

    @property
    def config_file(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.toml"

    @property
    def log_file(self) -> Path:
        """One JSON object a line."""
        return self.path / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the newest states."""
        return self.path / "checkpoints"

    @property
    def encoder(self) -> Path:
        """Folder of the trained encoder."""
        return self.path / "encoder"

    @property
    def centers_file(self) -> Path:
        """The centres of the loss, where it has any."""
        return self.path / "centers.safetensors"

    @property
    def report_file(self) -> Path:
        """The evaluation as JSON."""
        return self.path / "report.json"

    @property
    def page_file(self) -> Path:
        """The evaluation as a page."""
        return self.path / "report.html"

    @property
    def _lock_file(self) -> Path:
        return self.path / ".lock"

    def read_config(self) -> Config:
        """The configuration the run was made with."""
        if not self.config_file.is_file():
            raise FileNotFoundError(f"{self.path}: not a run directory, config.toml is missing")
        return read_config(self.config_file)

    @contextmanager
    def opened(self, *, resume: bool) -> Iterator[None]:
        """Take the directory for this process: new, or with ``resume`` the one of an earlier start.

        A start that failed before it had learned anything leaves nothing to lose, and the directory is new.
        """
        if not resume:
            self._refuse_to_overwrite()
        self.path.mkdir(parents=True, exist_ok=True)
        with self._lock_file.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(f"{self.path}: another process is training in this directory") from None
            remove_partial(self.path)
            if not resume:
                self._refuse_to_overwrite()  # again: whoever had the lock may have got somewhere
                self.config_file.unlink(missing_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
            yield

    def write_config(self, config: Config) -> None:
        """Keep the resolved configuration; a resumed run must have the same."""
        text = write_config(config)
        if self.config_file.exists() and write_config(self.read_config()) != text:
            raise ValueError(
                f"{self.config_file}: the run was started with other settings; resume with the same, or start another"
            )
        write_whole(self.config_file, f"format = {FORMAT}\n{text}")

    def append_log(self, entry: dict[str, Any]) -> None:
        """Add a line to the log."""
        append_line(self.log_file, json.dumps(entry))

    def read_log(self) -> list[dict[str, Any]]:
        """The entries of the log, oldest first."""
        return [entry for _, entry in self._log_lines()]

    def forget_log_after(self, position: Position) -> None:
        """Drop the entries that a resumed run will write again, and a line that a crash cut short."""
        if not self.log_file.exists():
            return
        kept = []
        for line, entry in self._log_lines():
            # An entry without "batch" is that of a whole epoch.
            done = (entry["epoch"], 0) if "batch" not in entry else (entry["epoch"] - 1, entry["batch"])
            if done <= (position.epoch, position.batch):
                kept.append(line + "\n")
        write_whole(self.log_file, "".join(kept))

    def _log_lines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines of the log that are entries; one that a crash cut short, or that was damaged, is none."""
        if not self.log_file.exists():
            return
        for line in self.log_file.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = _entry(line)
            if entry is not None:
                yield line, entry

    def _refuse_to_overwrite(self) -> None:
        found = set(self.path.iterdir()) if self.path.exists() else set()
        only_started = {self._lock_file} <= found <= {self._lock_file, self.config_file, self.checkpoints}
        if found and not (only_started and not any(self.checkpoints.glob("*"))):
            raise FileExistsError(
                f"{self.path}: it exists and is not overwritten; continue it with --resume, or choose another --out"
            )


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return None
    numbers = {"epoch": int, "batch": int, "loss": float}
    found = {"batch": 0, **entry} if isinstance(entry, dict) else {}
    return entry if all(type(found.get(name)) is kind for name, kind in numbers.items()) else None
