"""The small gallery, made and served once for all tests."""

import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.chromium import CHROMIUM
from tests.gallery.small_gallery import Collection, make_collection, running
from tests.leaks import nothing_left_open

from softtriple.gallery import Settings, measuring
from softtriple.gallery.analysis import Snapshot


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address; afterwards nothing may have gone elsewhere and nothing may stand in the console."""
    pages: list[Page] = []
    said: list[str] = []
    requested: list[str] = []
    origins: list[str] = []

    def start(url: str, **options: object) -> Page:
        page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
        page.set_default_timeout(30_000)
        page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        origins.append(url.partition("/#")[0].removesuffix("/docs"))
        pages.append(page)
        page.goto(url)
        return page

    start.meant = []  # type: ignore[attr-defined]
    yield start
    for page in pages:
        page.context.close()
    assert [line for line in said if not any(text in line for text in start.meant)] == []  # type: ignore[attr-defined]
    assert {url for url in requested if not url.startswith((*origins, "blob:", "about:"))} == set()


@pytest.fixture
def slow_measuring(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Ten items are measured in the background; the others when the event is set."""
    go_on = threading.Event()
    taken = Snapshot.taken

    def patient(self: Snapshot, rows: list[int]) -> list[int]:
        if threading.current_thread().name == measuring.THREAD and self.measured:
            go_on.wait(30)
        return taken(self, rows)

    monkeypatch.setattr(Snapshot, "taken", patient)
    monkeypatch.setattr(measuring, "BLOCK", 10)
    monkeypatch.setattr(measuring, "SHORT", 0.2)
    yield go_on
    go_on.set()
