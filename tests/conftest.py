"""Fixtures for all tests."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the cache of the person who runs it; the tests share one of theirs."""
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
