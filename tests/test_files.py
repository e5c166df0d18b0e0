"""Files appear whole or not at all, also when the disk is full or a process was killed before."""

import json
import os
import time
from pathlib import Path

import pytest

from softtriple.files import append_line, atomic_folder, atomic_write, remove_partial, write_text


def test_a_file_appears_whole(tmp_path):
    target = tmp_path / "new" / "file.txt"
    with atomic_write(target) as temporary:
        temporary.write_text("content")
        assert temporary.suffix == ".txt"
        assert not target.exists()
    assert target.read_text() == "content"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_the_old_file(tmp_path):
    target = tmp_path / "file.txt"
    target.write_text("old")

    def fail():
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail():
        with atomic_folder(tmp_path / "bad") as temporary:
            (temporary / "half").touch()
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert not list(tmp_path.iterdir())
    with atomic_folder(tmp_path / "good") as temporary:
        (temporary / "file").touch()
    assert [path.name for path in (tmp_path / "good").iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [tmp_path / "good"]


def test_of_two_folders_the_first_stays(tmp_path):
    with atomic_folder(tmp_path / "x") as late, atomic_folder(tmp_path / "x") as early:
        (late / "late").touch()
        (early / "early").touch()
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["early"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.json"
    write_text(file, json.dumps({"old": 1}))

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_text(file, "half of the new")
    assert json.loads(file.read_text()) == {"old": 1}


def test_a_full_disk_is_said_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"log: cannot be written \(No space left on device\)"):
        append_line(tmp_path / "log", "line")


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    old, new = (tmp_path / f".softtriple-partial-{digit * 16}" for digit in "ab")
    old.mkdir()
    (old / "half").touch()
    new.touch()
    others = [tmp_path / name for name in (".partial-download", ".softtriple-partial-mine", "below/.partial-x")]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.touch()
    for path in (old / "half", old, *others):
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    write_text(tmp_path / "file", "text")
    assert not old.exists()
    assert new.exists()
    remove_partial(tmp_path)
    assert not new.exists()
    assert all(other.exists() for other in others)
