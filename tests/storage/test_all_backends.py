"""Tests of all backends together: light imports, clean exits, and messages about missing
packages.
"""

import asyncio
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from streamrec.errors import ClosedError, install_command
from streamrec.storage import Storages, clients
from streamrec.storage.tasks import call_in_thread
from tests.runs import in_new_interpreter
from tests.servers.real import Store
from tests.storage.contract import wait_until

WITHOUT_PACKAGES = """
import asyncio, sys
for package in ("s3fs", "gcsfs", "aiohttp"):
    sys.modules[package] = None
from streamrec.errors import MissingExtraError
from streamrec.storage import Storages, clients
async def main():
    async with Storages() as storages:
        for url in ("s3://b/k", "gs://b/k", "http://h/k"):
            try:
                await storages.at(url)
            except MissingExtraError as error:
                print(error)
asyncio.run(main())
"""


def test_a_missing_extra_is_named() -> None:
    lines = in_new_interpreter(WITHOUT_PACKAGES).splitlines()
    for line, extra in zip(lines, ("s3", "gcs", "http"), strict=True):
        assert install_command(extra) in line


async def test_closed_storages_say_so(tmp_path: Path) -> None:
    async with Storages() as storages:
        first = await storages.at(str(tmp_path))
        assert await storages.at(f"file://{tmp_path}") is first
    with pytest.raises(ClosedError, match="create a new Storages"):
        await storages.at(str(tmp_path))


async def test_callers_at_the_same_time_share_one_storage() -> None:
    async with Storages() as storages:
        found = await asyncio.gather(*[storages.at("memory://x") for _ in range(10)])
        assert len(set(map(id, found))) == 1


def test_a_server_dies_with_its_user() -> None:
    code = """
import os, signal
from tests.servers.real import nginx
with nginx() as store:
    print(store.endpoint, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    port = int(done.stdout.rpartition(":")[2])
    with (
        suppress(ConnectionRefusedError, ConnectionResetError),
        socket.create_connection(("127.0.0.1", port)) as peer,
    ):
        peer.settimeout(10)
        assert peer.recv(1) == b""  # still there when we called; this is its end


async def test_storages_close_in_a_cancelled_scope(s3_store: Store) -> None:
    with anyio.CancelScope() as scope:
        async with Storages(s3_store.options) as storages:
            storage = await storages.at(s3_store.url)
            scope.cancel()
            await anyio.sleep_forever()
    for call in (storage.stat, storage.stream, storage.upload):
        with pytest.raises(ClosedError, match="open it again with a new Storages"):
            await call(f"{s3_store.url}/x")


def test_a_client_whose_closing_is_cancelled_with_the_loop_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "IDLE", 0.0)
    steps: list[str] = []

    async def use() -> None:
        begun = asyncio.Event()

        class Client:
            async def aclose(self) -> None:
                steps.append("begun")
                if len(steps) == 1:
                    begun.set()
                    await asyncio.Event().wait()  # until the end of the loop cancels it
                steps.append("closed")

        async def make() -> Any:
            return Client()

        _, release = await clients.borrow("key", (), make)
        release()
        await begun.wait()

    asyncio.run(use())  # which ends, and cancels all tasks, while the client is closed
    assert steps[-1] == "closed"


async def test_a_file_that_a_thread_opens_for_a_cancelled_caller_is_closed() -> None:
    begun = threading.Event()
    release = threading.Event()
    closed = list[str]()

    def opening() -> str:
        begun.set()
        release.wait()
        return "a file"

    task = asyncio.ensure_future(call_in_thread(opening, closed.append))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await wait_until(lambda: closed == ["a file"])
