from pathlib import Path

from softtriple.data.storage import cache_directory


def test_the_cache_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("SOFTTRIPLE_CACHE", "/own")
    assert cache_directory() == Path("/own")
    monkeypatch.delenv("SOFTTRIPLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_directory() == Path("/xdg/softtriple")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/own")
    assert cache_directory() == Path("/own/.cache/softtriple")
