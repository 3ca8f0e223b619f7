"""What the tests of backends have in common: servers, and clients that they do not share."""

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from tests.servers.real import ServerError, Store, azurite


@pytest.fixture(autouse=True)
def _clients_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test shares no client with the tests before it: many change what clients do, and one lives on for seconds."""
    monkeypatch.setenv(
        "AWS_CLIENTS_OF_A_TEST", uuid4().hex
    )  # clients are shared where options and environment are equal


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
