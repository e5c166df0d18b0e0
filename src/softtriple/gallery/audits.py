"""The audit page: what ``audit.json`` says, with pictures from the store; another process writes it on first use."""

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from torch import Tensor

from softtriple.data.benchmark import absolute_path
from softtriple.errors import UserError
from softtriple.gallery.analysis import Snapshot
from softtriple.gallery.schemas import AuditAnswer, AuditKind, Finding, FindingPage, FoundItem, ItemAnswer, ItemGroup
from softtriple.losses.centers import spherical_kmeans
from softtriple.search import Item, Store

EXAMPLES = 4  # items of a class beside a finding
LOG = "audit.log"  # what the process says
COPIES = 12  # of one group
COMPARED = 2000  # items of a class that examples are chosen from
ISSUES = ("merge", "confusable", "split", "few")  # gravest first


class _Place(BaseModel):
    """Where an item is in the data; without ``item``, its id in a store, its path tells it."""

    item: str = ""
    path: str = ""
    text: str | None = None
    split: str
    row: int
    label: str

    @property
    def id(self) -> str:
        return self.item or (absolute_path(self.path) if self.path else "")


class _Suspect(_Place):
    suggested: str
    odds: float
    wrong: float


class _Odd(_Place):
    reason: str = "far from every centre"
    closeness: float | None = None


class _Copies(BaseModel):
    how: Literal["exact", "picture", "embedding"]
    similarity: float
    conflict: bool
    leak: bool
    items: list[_Place]


class _ClassIssue(BaseModel):
    kind: Literal["few", "split", "merge", "confusable"]
    classes: list[str]
    value: float


class _Leak(BaseModel):
    test_items: int
    with_copies: dict[str, float] | None = Field(alias="with")
    without_copies: dict[str, float] | None = Field(alias="without")


_Finding = _Suspect | _Copies | _Odd | _ClassIssue


class AuditFile(BaseModel):
    """The content of an ``audit.json``."""

    name: str
    items: int
    features: str
    notes: list[str]
    suspects: list[_Suspect]
    duplicates: list[_Copies]
    leak: _Leak
    unreadable: list[_Odd]
    odd: list[_Odd]
    outliers: list[_Odd]
    classes: list[_ClassIssue]

    def findings(self, kind: AuditKind) -> Sequence[_Finding]:
        """The findings of a kind, gravest first."""
        match kind:
            case "labels":
                return sorted(self.suspects, key=lambda one: (-one.wrong, -one.odds))
            case "leaks":
                return [one for one in self.duplicates if one.leak]
            case "copies":
                return sorted((one for one in self.duplicates if not one.leak), key=lambda one: not one.conflict)
            case "odd":
                return [*self.unreadable, *self.odd, *self.outliers]
            case "classes":
                return sorted(self.classes, key=lambda one: ISSUES.index(one.kind))


KINDS: tuple[AuditKind, ...] = ("labels", "leaks", "copies", "odd", "classes")


def read_audit(file: Path) -> AuditFile:
    """The audit in ``file``, or a UserError."""
    try:
        return AuditFile.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{file}: no such file. Make it with: softtriple audit RUN --out {file.parent}") from None
    except ValidationError as error:
        raise UserError(f"{file}: not an audit of this version; make it again with softtriple audit") from error


class Audits:
    """The audit in ``folder``; if there is none, or one older than ``run``, the data of ``run`` are audited on request.

    By a process of its own, so that the server stays responsive. Not safe to use from threads.
    """

    def __init__(self, folder: Path, run: Path | None = None, *, trust: bool = False) -> None:
        self._folder, self._run, self._trust = folder, run, trust
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: str | None = None
        self._found: AuditFile | None = None

    def answer(self) -> AuditAnswer:
        """What there is: the audit in numbers, or how far it is, or why there is none; starts it if need be."""
        found = self._current()
        if found is None:
            if self._failure is not None:
                return AuditAnswer(state="failed", message=self._failure)
            return AuditAnswer(state="computing", message=self._last_line())
        leak = found.leak
        return AuditAnswer(
            state="ready",
            name=found.name,
            items=found.items,
            features=found.features,
            notes=found.notes,
            counts={kind: len(found.findings(kind)) for kind in KINDS},
            leaked_items=leak.test_items,
            recall_with_leak=None if leak.with_copies is None else leak.with_copies["recall@1"],
            recall_without_leak=None if leak.without_copies is None else leak.without_copies["recall@1"],
        )

    def content(self) -> AuditFile:
        """The audit, if it is there."""
        found = self._current()
        if found is None:
            state = "is being computed" if self._failure is None else "failed"
            raise HTTPException(404, f"the audit {state}; the page Audit says more")
        return found

    def close(self) -> None:
        """Stop computing."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _current(self) -> AuditFile | None:
        """The audit, read or started first if need be."""
        if self._found is not None or self._failure is not None:
            return self._found
        try:
            if self._process is not None:
                if self._process.poll() is None:
                    return None
                if self._process.returncode != 0:
                    raise UserError(self._last_line())
            elif self._run is not None and not self._is_fresh(self._run):
                self._start(self._run)
                return None
            self._found = read_audit(self._folder / "audit.json")
        except (UserError, OSError) as error:
            self._failure = str(error)
        return self._found

    def _is_fresh(self, run: Path) -> bool:
        made, report = self._folder / "audit.json", run / "report.json"
        return made.is_file() and (not report.is_file() or made.stat().st_mtime >= report.stat().st_mtime)

    def _start(self, run: Path) -> None:
        code = "import os; hasattr(os, 'nice') and os.nice(10); from softtriple.cli import main; main()"
        arguments = ["audit", str(run), "--out", str(self._folder), *(["--trust"] if self._trust else [])]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / LOG).open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        # So that it does not stay a zombie until the next request.
        threading.Thread(target=self._process.wait, name="gallery-audit", daemon=True).start()

    def _last_line(self) -> str:
        lines = (self._folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "").removeprefix("softtriple: ")


Show = Callable[[Item], ItemAnswer]


def findings_page(
    audit: AuditFile, kind: AuditKind, offset: int, limit: int, snapshot: Snapshot, store: Store, show: Show
) -> FindingPage:
    """Some of the findings of a kind, with items of the classes concerned; ``show`` answers with a stored item."""
    every = audit.findings(kind)
    shown = every[offset : offset + limit]
    known = store.known([place.id for one in shown for place in _places(one) if place.id])

    def group(class_name: str, rows: Sequence[int]) -> ItemGroup:
        return ItemGroup(class_name=class_name, items=[show(snapshot.items[row]) for row in rows])

    def found(place: _Place, leave_out: bool) -> FoundItem:
        item = known.get(place.id)
        name = place.id or f"{place.split} row {place.row}"
        missing = ItemAnswer(id=name, class_name=place.label, text=place.text, has_picture=False)
        return FoundItem(
            item=missing if item is None else show(item),
            stored=item is not None,
            split=place.split,
            row=place.row,
            path=place.path or None,
            leave_out=leave_out,
        )

    def tell(one: _Finding) -> Finding:
        match one:
            case _Suspect():
                classes = [one.label, one.suggested]
                beside = [group(name, _nearest(snapshot, name, one)) for name in classes]
                return Finding(
                    kind="label", items=[found(one, False)], classes=classes, probability=one.wrong, beside=beside
                )
            case _Copies():
                tested = [place for place in one.items if place.split != "train"]
                kept = None if one.conflict else (tested or one.items)[0]
                return Finding(
                    kind="copies",
                    items=[found(place, place is not kept) for place in one.items[:COPIES]],
                    count=len(one.items),
                    note=one.how,
                    conflict=one.conflict,
                    score=one.similarity,
                )
            case _Odd():
                return Finding(kind="odd", items=[found(one, True)], note=one.reason, score=one.closeness)
            case _ClassIssue():
                beside = [group(name, rows) for name, rows in _sides(one, snapshot)]
                return Finding(kind=one.kind, classes=one.classes, score=one.value, beside=beside)

    more = offset + limit < len(every)
    return FindingPage(
        findings=[tell(one) for one in shown], total=len(every), next_offset=offset + limit if more else None
    )


def _places(one: _Finding) -> Sequence[_Place]:
    match one:
        case _Copies(items=items):
            return items[:COPIES]
        case _Place():
            return [one]
    return []


def _nearest(snapshot: Snapshot, class_name: str, place: _Place) -> list[int]:
    """The rows of a class nearest to an item, without the item itself; its first rows if the item is not there."""
    rows = snapshot.rows_of(class_name)[:COMPARED]
    own = snapshot.row_of(place.id)
    if own is not None:
        rows = rows[(snapshot.vectors[rows] @ snapshot.vectors[own]).argsort(descending=True)]
    return [row for row in rows[: EXAMPLES + 1].tolist() if row != own][:EXAMPLES]


def _sides(issue: _ClassIssue, snapshot: Snapshot) -> list[tuple[str, list[int]]]:
    """Rows that show what is said of classes: of a pair those nearest to the other class, of a class its two modes."""
    names, members = issue.classes, [snapshot.rows_of(name)[:COMPARED] for name in issue.classes]
    vectors = [snapshot.vectors[rows] for rows in members]
    if len(names) == 2 and all(map(len, members)):
        similarity = vectors[0] @ vectors[1].T
        closeness = [similarity.amax(dim=1), similarity.amax(dim=0)]
    elif issue.kind == "split" and len(members[0]) > 2:
        one, other = spherical_kmeans(vectors[0][None], 2)[0]
        along = vectors[0] @ (one - other)
        names, members, closeness = names * 2, members * 2, [along, -along]
    else:
        closeness = [torch.zeros(len(rows)) for rows in members]
    return [
        (name, rows[close.argsort(descending=True, stable=True)[:EXAMPLES]].tolist())
        for name, rows, close in zip(names, members, closeness, strict=True)
    ]


def suggested_labels(audit: AuditFile, snapshot: Snapshot) -> tuple[Int[Tensor, " items"], list[str]]:
    """The class that each suspect item probably should have, as a position in the names; -1 for all others."""
    suspects = {one.id: one.suggested for one in audit.suspects}
    names = sorted(set(suspects.values()))
    number = {name: place for place, name in enumerate(names)}
    values = [number[suspects[item.id]] if item.id in suspects else -1 for item in snapshot.items]
    return torch.tensor(values, dtype=torch.int64), names
