"""One set of processes for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.distributed.workers import Workers

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where ``--dist loadgroup`` shares out the tests: all of this folder to one process, others file by file."""
    for item in items:
        group = "distributed" if HERE in item.path.parents else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp("stores"))
    yield found
    found.close()
