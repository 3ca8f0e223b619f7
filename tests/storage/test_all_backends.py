"""Tests of all backends together: light imports, clean exits, and messages about missing packages."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from streamrec.errors import ClosedError
from streamrec.storage import Storages
from tests.servers.real import ServerError, Store, nginx
from tests.storage.contract import DATA


def test_importing_loads_no_client() -> None:
    heavy = ["aiohttp", "s3fs", "gcsfs", "botocore", "aiobotocore", "google.auth", "grpc", "requests"]
    code = f"import sys, streamrec.storage; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("url", "extra"), [("s3://b/k", "s3"), ("gs://b/k", "gcs"), ("http://h/k", "http")])
def test_a_missing_extra_is_named(url: str, extra: str) -> None:
    package = {"s3": "s3fs", "gcs": "gcsfs", "http": "aiohttp"}[extra]
    code = f"""
import asyncio, sys
sys.modules[{package!r}] = None
from streamrec.errors import MissingExtraError
from streamrec.storage import Storages
async def main():
    async with Storages() as storages:
        try:
            await storages.at({url!r})
        except MissingExtraError as error:
            print(error)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'streamrec[{extra}]'" in done.stdout


EXIT = """
import asyncio, gc, json, sys
from streamrec.storage import Storages
path, options, undrained = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "undrained"
async def main():
    async with Storages(options) as storages:
        storage = await storages.at(path)
        stream = await storage.stream(path)
        count = await stream.readinto(memoryview(bytearray(1000)))
        while not undrained and await stream.readinto(memoryview(bytearray(100_000))):
            pass
        await stream.aclose()
        return count
print(asyncio.run(main()) > 0)
gc.collect()
"""


@pytest.mark.parametrize("how", ["drained", "undrained"])
@pytest.mark.parametrize("store", ["s3_store", "http_store"])
def test_nothing_is_left_open_at_exit(request: pytest.FixtureRequest, store: str, how: str) -> None:
    found: Store = request.getfixturevalue(store)
    path = f"{found.url}/house"

    async def put() -> None:
        async with Storages(found.options) as storages:
            upload = await (await storages.at(path)).upload(path)
            await upload.write(DATA)
            await upload.complete()

    if store == "http_store":
        (found.directory / "house").write_bytes(DATA)
    else:
        asyncio.run(put())
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", EXIT, path, json.dumps(dict(found.options)), how],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


async def test_closed_storages_say_so(tmp_path: Path) -> None:
    async with Storages() as storages:
        first = await storages.at(str(tmp_path))
        assert await storages.at(f"file://{tmp_path}") is first
    with pytest.raises(ClosedError, match="make new ones"):
        await storages.at(str(tmp_path))


async def test_one_storage_for_all_who_ask_at_once() -> None:
    async with Storages() as storages:
        found = await asyncio.gather(*[storages.at("memory://x") for _ in range(10)])
        assert len(set(map(id, found))) == 1


def test_servers_that_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMREC_SERVERS", str(tmp_path))
    with pytest.raises(ServerError, match="make servers"), nginx():
        pass


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
    with suppress(ConnectionRefusedError, ConnectionResetError), socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(10)
        assert peer.recv(1) == b""  # still there when we called; this is its end


async def test_storages_close_in_a_cancelled_scope(s3_store: Store) -> None:
    with anyio.CancelScope() as scope:
        async with Storages(s3_store.options) as storages:
            storage = await storages.at(s3_store.url)
            scope.cancel()
            await anyio.sleep_forever()
    for call in (storage.stat, storage.stream, storage.upload):
        with pytest.raises(ClosedError, match="ask new Storages"):
            await call(f"{s3_store.url}/x")
