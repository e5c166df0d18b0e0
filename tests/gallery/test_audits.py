"""The audit behind the page: read from a folder, made by a process if there is none, and shown with stored items."""

import os
import sys
import time
from pathlib import Path

import pytest
from starlette.exceptions import HTTPException
from tests.gallery.small_audit import make_audit
from tests.gallery.small_gallery import HOSTILE, Collection

from softtriple.errors import UserError
from softtriple.gallery import Settings, audits
from softtriple.gallery.audits import Audits, read_audit
from softtriple.gallery.schemas import AuditAnswer, MapColumn
from softtriple.gallery.service import GalleryService


@pytest.fixture
def service(collection: Collection, tmp_path: Path) -> GalleryService:
    made = Audits(make_audit(tmp_path / "audit"))
    return GalleryService(collection.encoder, collection.store, None, Settings(), audits=made)


def test_findings_come_gravest_first(tmp_path: Path) -> None:
    audit = read_audit(make_audit(tmp_path / "a") / "audit.json")
    assert [one.wrong for one in audit.findings("labels")] == [0.98, 0.4]
    assert [one.conflict for one in audit.findings("copies")] == [True, False]
    assert [one.reason for one in audit.findings("odd")] == ["truncated", "tiny: 8×8 pixels", "far from every centre"]
    assert [one.kind for one in audit.findings("classes")] == ["confusable", "split", "few"]
    assert len(audit.findings("leaks")) == 1


def test_a_suspect_is_shown_beside_both_classes(service: GalleryService) -> None:
    page = service.audit_findings("labels", 0, 1)
    assert (page.total, page.next_offset) == (2, 1)
    (suspect,) = page.findings
    assert suspect.items[0].item.id == "set/mislabelled.png"
    assert suspect.classes == ["green", "blue"]
    given, suggested = suspect.beside
    assert "set/mislabelled.png" not in [one.id for one in given.items]
    assert suggested.items[0].id == "set/0-0.png", "the nearest first: it is the same picture"
    assert {one.class_name for one in suggested.items} == {"blue"}


def test_copies_say_which_to_leave_out_and_which_the_store_lacks(service: GalleryService) -> None:
    conflict, plain = service.audit_findings("copies", 0, 10).findings
    assert [one.leave_out for one in conflict.items] == [True, True], "nobody knows which label is right"
    assert [(one.leave_out, one.stored) for one in plain.items] == [(False, True), (True, False)]
    (leak,) = service.audit_findings("leaks", 0, 10).findings
    assert [(one.split, one.leave_out) for one in leak.items] == [("train", True), ("test", False)]


def test_classes_are_shown_by_what_is_wrong_with_them(service: GalleryService) -> None:
    pair, modes, few = service.audit_findings("classes", 0, 10).findings
    assert [group.class_name for group in pair.beside] == ["blue", "green"]
    assert pair.beside[1].items[0].id == "set/mislabelled.png", "the one closest to the other class"
    first, second = ([one.id for one in group.items] for group in modes.beside)
    assert not set(first) & set(second)
    assert [group.class_name for group in few.beside] == [HOSTILE]


def test_the_map_has_the_labels_that_suspects_should_have(service: GalleryService) -> None:
    column = MapColumn.model_validate_json(service.map_column(service.map_state().version, "suspect"))
    assert column.names == ["blue", "green"]
    assert sorted(value for value in column.values if value >= 0) == [0, 1]


def test_a_path_stands_for_the_id(tmp_path: Path) -> None:
    odd = [{"path": str(tmp_path / "x.png"), "split": "train", "row": 0, "label": "a", "reason": "blank"}]
    audit = read_audit(make_audit(tmp_path / "a", odd=odd) / "audit.json")
    assert audit.odd[0].id == str(tmp_path / "x.png")


def test_a_folder_without_an_audit_or_with_another_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="softtriple audit RUN --out"):
        read_audit(tmp_path / "audit.json")
    (tmp_path / "audit.json").write_text('{"name": 3}')
    with pytest.raises(UserError, match="make it again"):
        read_audit(tmp_path / "audit.json")
    told = Audits(tmp_path).answer()
    assert told.state == "failed"
    assert "make it again" in told.message
    assert Audits(tmp_path).answer().state == "failed"


SCRIPT = """import sys, pathlib, time
print("looking at items", file=sys.stderr, flush=True)
go = pathlib.Path(sys.argv[2], "go")
while not go.exists(): time.sleep(0.02)
print("softtriple: no such data", file=sys.stderr)
sys.exit(int(go.read_text()))
"""


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for the file ``go`` in the folder of the audit, which holds its exit status."""
    popen = audits.subprocess.Popen

    def start(arguments: list[str], **options: object) -> object:
        assert arguments[3:5] == ["audit", arguments[4]]
        return popen([sys.executable, "-c", SCRIPT, "x", arguments[6]], **options)

    monkeypatch.setattr(audits.subprocess, "Popen", start)


def until(made: Audits, state: str) -> AuditAnswer:
    deadline = time.monotonic() + 30
    while (answer := made.answer()).state != state or (state == "computing" and not answer.message):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answer


@pytest.mark.usefixtures("process")
def test_the_first_request_starts_an_audit(tmp_path: Path) -> None:
    folder = tmp_path / "store.audit"
    made = Audits(folder, tmp_path / "run")
    assert until(made, "computing").message == "looking at items"
    with pytest.raises(HTTPException, match="being computed"):
        made.content()
    make_audit(folder)
    (folder / "go").write_text("0")
    assert until(made, "ready").counts == {"labels": 2, "leaks": 1, "copies": 2, "odd": 3, "classes": 3}
    assert Audits(folder, tmp_path / "run").answer().state == "ready", "and it is kept"


@pytest.mark.usefixtures("process")
def test_an_audit_that_fails_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "store.audit"
    made = Audits(folder, tmp_path / "run")
    until(made, "computing")
    (folder / "go").write_text("1")
    assert until(made, "failed").message == "no such data"
    with pytest.raises(HTTPException, match="failed"):
        made.content()


@pytest.mark.usefixtures("process")
def test_an_audit_older_than_the_run_is_made_again(tmp_path: Path) -> None:
    folder, run = make_audit(tmp_path / "store.audit"), tmp_path / "run"
    run.mkdir()
    (run / "report.json").write_text("{}")
    os.utime(folder / "audit.json", (1, 1))
    made = Audits(folder, run)
    assert made.answer().state == "computing"
    made.close()
