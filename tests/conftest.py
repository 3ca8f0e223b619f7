"""What every test may rely on."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from streamrec.testing.servers import Store, fake_gcs, nginx, seaweedfs

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # programs that the tests start and interrupt inherit it


def pytest_xdist_auto_num_workers() -> int:
    """Two workers a core, since half of the time is waiting: for servers, processes, time limits."""
    return min(8, 2 * (os.cpu_count() or 1))


THOROUGH = bool(os.environ.get("STREAMREC_THOROUGH"))
"""Whether everything is tried, as in CI; else what tells most in the least time."""

# deadline: how long an example takes depends on what else runs here
settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.register_profile("many", max_examples=5000, deadline=None)
settings.load_profile("thorough" if THOROUGH else "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests that are marked `thorough` to runs that are."""
    left = [] if THOROUGH else [item for item in items if item.get_closest_marker("thorough")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


@pytest.fixture
def anyio_backend() -> str:
    """The backend of async tests: the storage clients stand on asyncio."""
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
