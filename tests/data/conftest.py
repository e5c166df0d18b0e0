import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes the cache of the person who runs it."""
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path_factory.mktemp("cache")))
