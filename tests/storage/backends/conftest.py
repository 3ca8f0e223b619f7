"""Fixtures of the tests of backends: servers, and separate clients."""

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from tests.servers.real import ServerError, Store, azurite


@pytest.fixture(autouse=True)
def _clients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each test clients of its own: many tests change what clients do, and a client stays
    open for seconds.
    """
    monkeypatch.setenv(
        "AWS_CLIENTS_OF_A_TEST", uuid4().hex
    )  # clients are shared if options and environment are equal


@pytest.fixture(scope="module")
def azure() -> Iterator[Store]:
    """An Azurite with a container."""
    adlfs = pytest.importorskip("adlfs")
    with ExitStack() as stack:
        try:
            store = stack.enter_context(azurite())
        except ServerError as error:
            pytest.skip(str(error))
        adlfs.AzureBlobFileSystem(**store.options).mkdir("streamrec")
        yield store
