"""Fixtures for all tests, and how long hypothesis searches."""

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run: what `make test` finds does not depend on luck. `make abuse` looks for new ones.
settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile(
    "abuse", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the cache of the person who runs it; the tests share one of theirs."""
    monkeypatch.setenv("SOFTTRIPLE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
