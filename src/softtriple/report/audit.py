"""An audit for people and programs: a table in the terminal, ``audit.html``, ``audit.csv`` and ``audit.json``."""

import csv
import json
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softtriple.data import ImageError, ImageFiles, Texts
from softtriple.errors import counted
from softtriple.files import write_text
from softtriple.metrics.audit import ClassIssue, Suspect
from softtriple.metrics.duplicates import DuplicateGroup
from softtriple.progress import one_line
from softtriple.report.pictures import Picture, picture
from softtriple.report.templating import render
from softtriple.training.audit import Audit

SHOWN = 40  # findings of a kind on the page
LISTED = 8  # in the terminal
EXAMPLES = 3  # items of the suggested class beside a suspect
LIKELY_WRONG = 0.5  # probability of a wrong label from which an item is proposed for exclusion

COLUMNS = ("path", "split", "row", "label", "finding", "exclude", "suggested", "score", "group", "note")
ISSUES = {
    "few": "too few items",
    "split": "separate modes: split?",
    "merge": "look like one class: merge?",
    "confusable": "often confused",
}
EVIDENCE = {"exact": "same content", "picture": "nearly the same picture", "embedding": "nearly equal embedding"}


class Entry(NamedTuple):
    """A line of ``audit.csv``: an item, what was found, and whether ``train --exclude`` is to leave it out."""

    row: int
    finding: str
    exclude: bool
    suggested: str = ""
    score: float | None = None
    group: int | None = None
    note: str = ""


def write_audit(audit: Audit, folder: Path, *, command: str) -> list[Path]:
    """Write the page, the table and the JSON file to ``folder``."""
    contents = {
        "audit.html": render_audit(audit, command=command),
        "audit.csv": audit_csv(audit),
        "audit.json": json.dumps(audit_json(audit), indent=2, ensure_ascii=False) + "\n",
    }
    for name, content in contents.items():
        write_text(folder / name, content)
    return [folder / name for name in contents]


def entries(audit: Audit) -> Iterator[Entry]:
    """Every finding about an item, kind by kind.

    Proposed for exclusion are unreadable and blank items, labels that are wrong more likely than not, all copies but
    one, the training copies of test items, and copies whose labels contradict each other.
    """
    found, names, labels = audit.findings, audit.benchmark.class_names, audit.items.labels
    for row, reason in found.unreadable.items():
        yield Entry(row, "unreadable", True, note=reason)
    for one in found.suspects:
        yield Entry(one.row, "label", one.wrong >= LIKELY_WRONG, names[one.suggested], one.odds)
    for number, group in enumerate(found.duplicates):
        conflict = len(set(labels[list(group.rows)])) > 1
        tested = [row for row in group.rows if audit.places[row][0] != "train"]
        keep = None if conflict else (tested or list(group.rows))[0]
        for row in group.rows:
            note = EVIDENCE[group.how] + (", labels differ" if conflict else "")
            leak = ", in train and test" if number in audit.leak.groups else ""
            yield Entry(row, "duplicate", row != keep, score=group.similarity, group=number, note=note + leak)
    for row, reason in found.odd.items():
        yield Entry(row, "odd", "blank" in reason or "zero" in reason, note=reason)
    for outlier in found.outliers:
        yield Entry(outlier.row, "outlier", False, score=outlier.closeness, note="far from every centre")


def audit_csv(audit: Audit) -> str:
    """One line per finding about an item; an item may have several."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for entry in entries(audit):
        item = _item(audit, entry.row)
        score = "" if entry.score is None else f"{entry.score:.4f}"
        group = "" if entry.group is None else entry.group
        where = (item.get("path", ""), item["split"], item["row"], item["label"])
        told = (entry.finding, "yes" if entry.exclude else "no", entry.suggested, score, group, entry.note)
        writer.writerow([*where, *told])
    return text.getvalue()


def audit_json(audit: Audit) -> dict[str, Any]:
    """Everything that was found, as plain values."""
    found, names = audit.findings, audit.benchmark.class_names
    leak = audit.leak
    return {
        "name": audit.benchmark.name,
        "items": len(audit.items),
        "features": audit.features,
        "notes": list(audit.notes),
        "suspects": [
            {**_item(audit, one.row), "suggested": names[one.suggested], "odds": one.odds, "wrong": one.wrong}
            for one in found.suspects
        ],
        "duplicates": [
            {
                "how": group.how,
                "similarity": group.similarity,
                "conflict": _conflict(audit, group),
                "leak": number in leak.groups,
                "items": [_item(audit, row) for row in group.rows],
            }
            for number, group in enumerate(found.duplicates)
        ],
        "leak": {
            "groups": len(leak.groups),
            "test_items": len(leak.rows),
            **{
                name: None if report is None else {"recall@1": report.recall[1], "map_at_r": report.map_at_r}
                for name, report in (("with", leak.with_copies), ("without", leak.without_copies))
            },
        },
        "unreadable": [{**_item(audit, row), "reason": reason} for row, reason in found.unreadable.items()],
        "odd": [{**_item(audit, row), "reason": reason} for row, reason in found.odd.items()],
        "outliers": [{**_item(audit, one.row), "closeness": one.closeness} for one in found.outliers],
        "classes": [
            {"kind": issue.kind, "classes": [names[label] for label in issue.classes], "value": issue.value}
            for issue in found.classes
        ],
    }


def audit_text(audit: Audit) -> str:
    """The counts, and the first findings of each kind."""
    found, names = audit.findings, audit.benchmark.class_names
    conflicts = sum(_conflict(audit, group) for group in found.duplicates)
    likely = sum(one.wrong >= LIKELY_WRONG for one in found.suspects)
    excluded = len({entry.row for entry in entries(audit) if entry.exclude})
    classes = counted(len(np.unique(audit.items.labels)), "class")
    lines = [f"{audit.benchmark.name}: {counted(len(audit.items), 'item')} of {classes}, compared by {audit.features}"]
    lines += [
        f"suspect labels      {len(found.suspects):>6}   {likely} of them wrong more likely than not",
        f"duplicate groups    {len(found.duplicates):>6}   {conflicts} with different labels, "
        f"{len(audit.leak.groups)} across train and test",
        f"unreadable items    {len(found.unreadable):>6}",
        f"odd items           {len(found.odd):>6}",
        f"outliers            {len(found.outliers):>6}",
        f"doubtful classes    {len(found.classes):>6}   "
        + ", ".join(f"{title} {sum(one.kind == kind for one in found.classes)}" for kind, title in ISSUES.items()),
        f"to exclude          {excluded:>6}   marked yes in audit.csv",
    ]
    if leak := _leak_sentence(audit):
        lines.append(leak)
    lines += audit.notes
    suspects = [
        f"{names[one.given]} → {names[one.suggested]}   {one.odds:.1f}   {_name(audit, one.row)}"
        for one in found.suspects
    ]
    copies = [f"{EVIDENCE[g.how]}   {', '.join(_name(audit, row) for row in g.rows)}" for g in found.duplicates]
    strange = [f"{reason}   {_name(audit, row)}" for row, reason in (found.unreadable | found.odd).items()]
    strange += [f"far from every centre ({one.closeness:.2f})   {_name(audit, one.row)}" for one in found.outliers]
    doubtful = [f"{_issue(audit, issue)}" for issue in found.classes]
    for title, rows in (
        ("suspect labels: given → suggested, log-odds, item", suspects),
        ("duplicates", copies),
        ("unreadable, odd and far items", strange),
        ("classes", doubtful),
    ):
        if rows:
            lines += ["", title, *(f"  {one_line(row)}" for row in rows[:LISTED])]
            lines += [f"  … and {len(rows) - LISTED} more"] if len(rows) > LISTED else []
    return "\n".join(lines)


# The page


class Tile(NamedTuple):
    """A picture with what stands below it."""

    picture: Picture
    title: str
    note: str = ""
    wrong: bool = False


class Row(NamedTuple):
    """A finding: what it is about, and the pictures that show it."""

    tile: Tile | None
    heading: str
    note: str
    groups: list[tuple[str, list[Tile]]]  # side by side, each with a title


def render_audit(audit: Audit, *, command: str) -> str:
    """The page as HTML: pictures side by side, the most striking findings first."""
    found = audit.findings
    counts = [
        ("Suspect labels", len(found.suspects)),
        ("Duplicate groups", len(found.duplicates)),
        ("Of these, across train and test", len(audit.leak.groups)),
        ("Unreadable items", len(found.unreadable)),
        ("Odd items", len(found.odd)),
        ("Outliers", len(found.outliers)),
        ("Doubtful classes", len(found.classes)),
    ]
    return render(
        "audit.html",
        title=f"Audit of {audit.benchmark.name}",
        facts=(
            ("Data", "; ".join(audit.benchmark.notes) or audit.benchmark.name),
            ("Compared by", audit.features),
            ("Command", command),
            *(("Note", note) for note in audit.notes),
        ),
        counts=counts,
        leak=_leak_sentence(audit),
        shown=SHOWN,
        suspects=[_suspect(audit, one) for one in sorted(found.suspects, key=lambda one: -one.wrong)[:SHOWN]],
        duplicates=[_group(audit, place) for place in range(min(SHOWN, len(found.duplicates)))],
        strange=_strange(audit),
        classes=[_class_row(audit, issue) for issue in found.classes[:SHOWN]],
        unreadable=[(_name(audit, row), reason) for row, reason in list(found.unreadable.items())[:SHOWN]],
    )


def _suspect(audit: Audit, one: Suspect) -> Row:
    names = audit.benchmark.class_names
    heading = f"{names[one.given]} → {names[one.suggested]}"
    note = f"probability of a wrong label {100 * one.wrong:.1f} %"
    groups = [
        (f"{title} {names[label]}", [Tile(_picture(audit, row), "") for row in _examples(audit, label, one.row)])
        for label, title in ((one.given, "Labelled"), (one.suggested, "Looks like"))
    ]
    return Row(Tile(_picture(audit, one.row), _name(audit, one.row), wrong=True), heading, note, groups)


def _group(audit: Audit, place: int) -> Row:
    group, names = audit.findings.duplicates[place], audit.benchmark.class_names
    marks = ["labels differ"] if _conflict(audit, group) else []
    marks += ["in train and test"] if place in audit.leak.groups else []
    tiles = [
        Tile(
            _picture(audit, row),
            names[audit.items.labels[row]],
            f"{audit.places[row][0]}: {_name(audit, row)}",
            bool(marks),
        )
        for row in group.rows[:8]
    ]
    note = f"{counted(len(group.rows), 'item')}, similarity {group.similarity:.3f}"
    return Row(None, ", ".join([EVIDENCE[group.how], *marks]), note, [("", tiles)])


def _strange(audit: Audit) -> list[Tile]:
    found, names = audit.findings, audit.benchmark.class_names
    reasons = list(found.odd.items())[:SHOWN]
    reasons += [(one.row, f"closeness {one.closeness:.2f}") for one in found.outliers[:SHOWN]]
    return [Tile(_picture(audit, row), names[audit.items.labels[row]], reason) for row, reason in reasons]


def _class_row(audit: Audit, issue: ClassIssue) -> Row:
    names = audit.benchmark.class_names
    groups = [
        (names[label], [Tile(_picture(audit, row), "") for row in _examples(audit, label, -1)])
        for label in issue.classes
    ]
    return Row(None, _issue(audit, issue), "", groups)


def _examples(audit: Audit, label: int, but: int) -> list[int]:
    doubted = {one.row for one in audit.findings.suspects} | set(audit.findings.unreadable) | {but}
    rows = np.flatnonzero(audit.items.labels == label).tolist()
    return [row for row in rows if row not in doubted][:EXAMPLES]


def _picture(audit: Audit, row: int) -> Picture:
    try:
        return picture(audit.items, row)
    except ImageError as error:  # it has changed since it was read
        return str(error)


# Words


def _issue(audit: Audit, issue: ClassIssue) -> str:
    names = " and ".join(audit.benchmark.class_names[label] for label in issue.classes)
    told = {
        "few": counted(int(issue.value), "item"),
        "split": f"two modes explain {100 * issue.value:.0f} % of the variance along the line between them",
    }.get(issue.kind, f"{100 * issue.value:.0f} % of the items taken for the other")
    return f"{names}: {ISSUES[issue.kind]} ({told})"


def _leak_sentence(audit: Audit) -> str:
    leak = audit.leak
    if not leak.groups:
        return ""
    one = len(leak.rows) == 1
    start = f"{counted(len(leak.rows), 'test item')} {'has a copy' if one else 'have copies'} in train."
    if leak.with_copies is None or leak.without_copies is None:
        return start
    before, after = leak.with_copies, leak.without_copies
    return (
        f"{start} Without {'it' if one else 'them'}, Recall@1 is {100 * after.recall[1]:.2f} instead of "
        f"{100 * before.recall[1]:.2f}, and MAP@R {100 * after.map_at_r:.2f} instead of {100 * before.map_at_r:.2f}."
    )


def _conflict(audit: Audit, group: DuplicateGroup) -> bool:
    return len({int(audit.items.labels[row]) for row in group.rows}) > 1


def _item(audit: Audit, row: int) -> dict[str, Any]:
    """Where an item is: its path, or text and id in a store, split and row in it, and label."""
    split, place = audit.places[row]
    where = {"split": split, "row": place, "label": audit.benchmark.class_names[audit.items.labels[row]]}
    match audit.items.items:
        case ImageFiles(paths):
            return {"path": paths[row], **where}
        case Texts(values):
            return {"item": audit.ids[row], "text": values[row], **where}
    return {"item": audit.ids[row], **where}


def _name(audit: Audit, row: int) -> str:
    """A short name of an item."""
    split, place = audit.places[row]
    match audit.items.items:
        case ImageFiles(paths):
            return Path(paths[row]).name
        case Texts(values):
            return repr(values[row][:60])
    return f"{split} row {place}"
