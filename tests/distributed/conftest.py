"""One set of processes for the whole session."""

from collections.abc import Iterator

import pytest
from tests.distributed.workers import Workers


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp("stores"))
    yield found
    found.close()
