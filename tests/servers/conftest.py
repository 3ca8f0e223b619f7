"""A directory of objects, and a store over it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.objectstore import ObjectStore


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Every server that a test starts has ended with all of its threads when the test has."""
    yield
    names = ("objectstore", "faultproxy", "server")
    assert [thread for thread in threading.enumerate() if thread.name in names] == []


@pytest.fixture
def content() -> bytes:
    """The bytes of bucket/dir/key: enough for several segments of TCP."""
    return random.Random(1).randbytes(300_000)


@pytest.fixture
def root(tmp_path: Path, content: bytes) -> Path:
    """A directory with one bucket."""
    (tmp_path / "bucket" / "dir").mkdir(parents=True)
    (tmp_path / "bucket" / "dir" / "key").write_bytes(content)
    (tmp_path / "bucket" / "empty").write_bytes(b"")
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[ObjectStore]:
    """A store over `root`, without faults."""
    with ObjectStore(root) as store:
        yield store
