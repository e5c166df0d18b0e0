"""Changes that people make in the gallery: tags, proposed labels and deletions, in a log beside the store.

The log has a JSON object per line and is only appended to; undoing is a line of its own. Beside it lies a table of what
the log amounts to, with the columns that ``softtriple train --labels`` reads.
"""

import base64
import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from softtriple.errors import UserError
from softtriple.files import append_line, write_text
from softtriple.search import Item, Store, Stored

Action = Literal["tag", "untag", "relabel", "delete"]


class Changes:
    """The changes of a store; every method that writes must be called from one thread."""

    def __init__(self, store: Store, log: Path) -> None:
        self._store, self._log = store, log
        self._done: list[dict[str, Any]] = []
        self.tags: dict[str, tuple[str, ...]] = {}
        self.labels: dict[str, str] = {}  # proposed; "" for deleted items
        self._classes: dict[str, str] = {}  # of changed items, as stored
        if log.exists():
            for number, line in enumerate(log.read_text(encoding="utf-8").splitlines(), start=1):
                try:
                    self._remember(json.loads(line))
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise UserError(f"{log}, line {number}: not a line of a log of changes ({error})") from error
        self._fold()

    @property
    def table(self) -> Path:
        """The file that ``softtriple train --labels`` reads."""
        return self._log.with_suffix(".csv")

    @property
    def last(self) -> dict[str, Any] | None:
        """The latest change, which `undo` takes back."""
        return self._done[-1] if self._done else None

    def apply(self, action: Action, ids: Sequence[str], value: str = "") -> int:
        """Change items, of which those that are not stored are passed over; returns how many there were."""
        known = self._store.known(list(ids))
        if not known:
            return 0
        line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "action": action, "value": value}
        if action == "delete":
            stored = self._store.get(list(known))
            self._write(line | {"items": [_packed(one) for one in stored]})
            self._store.delete(list(known))
        else:
            self._write(line | {"items": [{"id": one.id, "class_name": one.class_name} for one in known.values()]})
        return len(known)

    def undo(self) -> bool:
        """Take the latest change back; whether there was one."""
        if not self._done:
            return False
        last = self._done[-1]
        if last["action"] == "delete":
            stored = [_unpacked(one) for one in last["items"]]
            self._store.put([one.item for one in stored], np.stack([one.vector for one in stored]))
        self._write({"time": datetime.now(UTC).isoformat(timespec="seconds"), "action": "undo"})
        return True

    def csv(self) -> str:
        """What all changes amount to: an item per row, with its new label, empty if it was deleted."""
        text = StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["item", "label", "before", "tags"])
        for one in sorted({*self.labels, *self.tags}):
            label = self.labels.get(one, self._classes[one])
            rows.writerow([one, label, self._classes[one], " ".join(self.tags.get(one, ()))])
        return text.getvalue()

    def _write(self, line: dict[str, Any]) -> None:
        append_line(self._log, json.dumps(line))
        self._remember(line)
        self._fold()
        write_text(self.table, self.csv())

    def _remember(self, line: dict[str, Any]) -> None:
        if line["action"] == "undo":
            self._done.pop()
        else:
            self._done.append(line)

    def _fold(self) -> None:
        """Tags and labels from the changes that were not taken back."""
        tags: dict[str, tuple[str, ...]] = {}
        labels: dict[str, str] = {}
        for change in self._done:
            for one in change["items"]:
                self._classes.setdefault(one["id"], one["class_name"])
                before = tags.get(one["id"], ())
                match change["action"]:
                    case "tag":
                        tags[one["id"]] = tuple(dict.fromkeys([*before, change["value"]]))
                    case "untag":
                        tags[one["id"]] = tuple(tag for tag in before if tag != change["value"])
                    case "relabel":
                        labels[one["id"]] = change["value"]
                    case "delete":
                        labels[one["id"]] = ""
        self.tags, self.labels = {one: some for one, some in tags.items() if some}, labels


def _packed(stored: Stored) -> dict[str, Any]:
    vector = np.asarray(stored.vector, dtype="<f4")
    return asdict(stored.item) | {"vector": base64.b64encode(vector.tobytes()).decode()}


def _unpacked(one: dict[str, Any]) -> Stored:
    vector = np.frombuffer(base64.b64decode(one["vector"]), dtype="<f4").astype(np.float32)
    return Stored(Item(**{name: value for name, value in one.items() if name != "vector"}), vector)
