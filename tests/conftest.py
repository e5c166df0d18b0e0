"""What holds for every test: how hypothesis searches, where caches are, which random numbers come."""

import random
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import jaxtyping
import numpy as np
import pytest
import tests.torchvision_operators  # noqa: F401  before anything imports torchvision
import torch
from hypothesis import HealthCheck, settings
from tests.leaks import nothing_left_open
from xdist.scheduler import LoadFileScheduling

# The same examples in every run: what `make test` finds does not depend on luck. `make abuse` looks for new ones.
settings.register_profile("default", max_examples=25, deadline=None, derandomize=True)
settings.register_profile(
    "abuse", max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("default")  # hypothesis takes another one where it sees the environment of a CI service


# The longest. They run first: at the end, one process would be busy with them and the others idle.
LONG = (
    "tests/gallery/test_page.py",
    "tests/gallery/test_search_page.py",
    "tests/gallery/test_map_page.py",
    "tests/abuse/",
    "tests/distributed/",
    "tests/interop/",
    "tests/training/test_texts.py",
    "tests/training/test_train.py",
    "tests/test_extras.py",
    "tests/test_site.py",
    "tests/test_examples.py",
    "tests/test_docs.py::test_a_page_runs_from_top_to_bottom",
)
ALONE = LONG[-2:]  # tests that share nothing


class ByFile(LoadFileScheduling):
    """A file at a time to each process, but some tests singly, and all of tests/distributed: they share ranks."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ALONE):
            return nodeid
        folder = "tests/distributed"
        return folder if nodeid.startswith(f"{folder}/") else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """How `-n` shares out the tests, whatever `--dist` says: in the order in which they were collected."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the test files in an order drawn from SEED")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long ones first; with ``--shuffle``, whole files in random order: the same one in every process of ``-n``."""
    seed = config.getoption("--shuffle")
    if seed is None:
        items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    else:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


@pytest.fixture(scope="session", autouse=True)
def _own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test uses the cache or the data of the person who runs it, nor a proxy to reach the servers it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTTRIPLE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setenv("SOFTTRIPLE_DATA", str(tmp_path_factory.getbasetemp() / "data"))
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        patch.setenv("no_proxy", "127.0.0.1,localhost")
        yield


# What these fixtures start outlives the test, and opens connections and threads when a test uses it.
SHARED = {"address", "client", "browser"}


@pytest.fixture(autouse=True)
def _nothing_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test closes the sockets and ends the threads that it started."""
    with nullcontext() if SHARED.intersection(request.fixturenames) else nothing_left_open():
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As users run it: without the annotation checks of the tests, which would come before an error message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """A test draws the same numbers whatever ran before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
