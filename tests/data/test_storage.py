from pathlib import Path

import pytest

from softtriple.data.storage import appearing_file, appearing_folder, cache_directory


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", "/own")
    assert cache_directory() == Path("/own")
    monkeypatch.delenv("SOFTTRIPLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/softtriple")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_directory() == Path("/home/someone/.cache/softtriple")


def test_a_file_appears_whole(tmp_path):
    target = tmp_path / "new" / "file.txt"
    with appearing_file(target) as temporary:
        temporary.write_text("content")
        assert temporary.suffix == ".txt"
        assert not target.exists()
    assert target.read_text() == "content"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_the_old_file(tmp_path):
    target = tmp_path / "file.txt"
    target.write_text("old")

    def fail():
        with appearing_file(target) as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail():
        with appearing_folder(tmp_path / "bad") as temporary:
            (temporary / "half").touch()
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert not list(tmp_path.iterdir())
    with appearing_folder(tmp_path / "good") as temporary:
        (temporary / "file").touch()
    assert [path.name for path in (tmp_path / "good").iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [tmp_path / "good"]


def test_of_two_folders_the_first_stays(tmp_path):
    with appearing_folder(tmp_path / "x") as late, appearing_folder(tmp_path / "x") as early:
        (late / "late").touch()
        (early / "early").touch()
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["early"]
    assert len(list(tmp_path.iterdir())) == 1
