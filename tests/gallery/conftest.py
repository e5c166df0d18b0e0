"""The small gallery, made and served once for all tests."""

from collections.abc import Callable, Iterator

import httpx
import pytest
from tests.gallery.small_gallery import Collection, make_collection, running
from tests.leaks import nothing_left_open

from softtriple.gallery import Settings


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return make_collection(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def address(collection: Collection) -> Iterator[str]:
    with nothing_left_open(), running(collection.app()) as url:
        yield url


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as asking:
        yield asking


@pytest.fixture
def gallery(collection: Collection) -> Iterator[Callable[..., httpx.Client]]:
    """Clients of servers with other settings."""
    opened = []

    def start(**changes) -> httpx.Client:
        settings = Settings(**changes)
        context = running(collection.app(settings), settings)
        client = httpx.Client(base_url=context.__enter__(), timeout=60)
        opened.append((context, client))
        return client

    yield start
    for context, client in opened:
        client.close()
        context.__exit__(None, None, None)
