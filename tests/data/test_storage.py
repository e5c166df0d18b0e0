import os
from pathlib import Path

from softtriple.data.cache import cache_directory, list_kept, mark_used, remove_unused


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", "/own")
    assert cache_directory() == Path("/own")
    monkeypatch.delenv("SOFTTRIPLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/softtriple")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/own")
    assert cache_directory() == Path("/own/.cache/softtriple")


def test_what_was_not_used_for_long_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path))
    names = [f"{kind}-{'0a' * 8}" for kind in ("images", "trunk")]
    used, unused = (tmp_path / name for name in names)
    foreign = [tmp_path / name for name in ("notes", "images-of-mine", f"{names[0]}.txt")]
    for folder in (used, unused, *foreign):
        folder.mkdir()
        (folder / "file").write_bytes(b"12345")
        os.utime(folder, (0, 0))
    (tmp_path / f"glyphs-{'f' * 16}.npz").write_bytes(b"123")
    mark_used(used)
    assert {(kept.kind, kept.bytes) for kept in list_kept()} == {("trunk", 5), ("images", 5), ("glyphs", 3)}
    assert list_kept()[0].path == unused
    assert [kept.path for kept in remove_unused(days=30.0)] == [unused]
    assert not unused.exists()
    assert all(path.exists() for path in (used, *foreign))
    assert not remove_unused(days=30.0)
