"""Servers of the tests of storage."""

from collections.abc import Iterator

import pytest

from tests.servers.real import Store, moto


@pytest.fixture(scope="session")
def moto_store() -> Iterator[Store]:
    """A Moto for all tests of storage; take a key prefix of your own."""
    with moto() as store:
        yield store
