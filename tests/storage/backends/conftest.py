"""Servers that several backends' tests share."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from streamrec.testing.servers import ServerError, Store, azurite


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
