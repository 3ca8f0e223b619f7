"""What every test may rely on."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.effort import THOROUGH, drawn_examples
from tests.servers.real import Store, fake_gcs, nginx, seaweedfs

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # programs that the tests start and interrupt inherit it


def pytest_xdist_auto_num_workers() -> int:
    """Two workers a core, since half of the time is waiting: for servers, processes, time
    limits.
    """
    return min(8, 2 * (os.cpu_count() or 1))


settings.register_profile("tests", drawn_examples(100))
settings.register_profile("many", max_examples=5000, deadline=None)
settings.load_profile("tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `thorough` unless it is asked for. Tests that may take long come
    first, not when all others have ended.
    """
    if not THOROUGH:
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    items.sort(key=longest_time, reverse=True)


def longest_time(item: pytest.Item) -> float:
    """The seconds of a test's own `timeout` mark, which only tests that may take long have."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


def pytest_collection_finish() -> None:
    """Takes the tests themselves, some 350,000 objects, out of every garbage collection to come,
    and out of forks.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """The backend of async tests: the storage clients need asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def s3_store() -> Iterator[Store]:
    """A SeaweedFS for the whole run; take a key prefix of your own."""
    with seaweedfs() as store:
        yield store


@pytest.fixture(scope="session")
def gcs_store() -> Iterator[Store]:
    """A fake-gcs-server for the whole run; take a key prefix of your own."""
    with fake_gcs() as store:
        yield store


@pytest.fixture(scope="session")
def http_store() -> Iterator[Store]:
    """An nginx for the whole run; take a directory of your own."""
    with nginx() as store:
        yield store
