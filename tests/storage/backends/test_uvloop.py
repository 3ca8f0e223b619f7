"""Under uvloop, whose TLS is its own: the client reads, which is said once, and every byte comes."""

import asyncio
import os
from uuid import uuid4

import pytest

from streamrec.storage import Storages
from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http import responses
from tests.servers.real import Store
from tests.storage.backends.test_tls import store
from tests.storage.contract import QUICK, read_all

__all__ = ["store"]

uvloop = pytest.importorskip("uvloop")


def test_the_client_reads_over_tls(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    way = FastPath("receiving bodies under uvloop")
    monkeypatch.setattr(responses, "BUFFERED_BODIES", way)
    data, path = os.urandom(6 << 20), f"{store.url}/{uuid4().hex}"

    async def read() -> None:
        async with Storages(store.options, retry=QUICK) as storages:
            storage = await storages.at(path)
            async with await storage.upload(path) as upload:
                await upload.write(data)
            for _ in range(3):
                assert await read_all(await storage.stream(path), 1 << 20) == data

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(read())
    assert way.fallbacks == 1
    assert len([line for line in caplog.messages if "client's own way is taken" in line]) == 1
