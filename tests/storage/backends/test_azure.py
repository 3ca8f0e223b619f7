"""Azure's Blob storage, through adlfs: before Azurite."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from uuid import uuid4

import pytest

import streamrec
from streamrec.storage.backends.fsspec import common
from streamrec.storage.faults import Cause, TransientError
from tests.servers.real import Store
from tests.storage.contract import QUICK, NotExclusiveTests, Place

adlfs = pytest.importorskip("adlfs")
ClientAuthenticationError = pytest.importorskip("azure.core.exceptions").ClientAuthenticationError


@pytest.fixture(scope="module")
def store(azure: Store) -> Store:
    return azure


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # azure-core's own way of uploading
class TestAzure(NotExclusiveTests):
    @pytest.fixture(params=["az", "abfs"])
    def place(self, store: Store, request: pytest.FixtureRequest) -> Place:
        return Place(f"{request.param}://streamrec/{uuid4().hex}", store.options)


@pytest.mark.parametrize("scheme", ["az", "abfs"])
def test_shards(store: Store, scheme: str) -> None:
    """Written, found by a pattern, read by several readers, and gone on with from a state."""
    url = f"{scheme}://streamrec/{uuid4().hex}"
    records = [b"%d " % number * 100 for number in range(3_000)]

    async def write() -> None:
        shards = f"{url}/x-{{shard}}.tfrecord"
        arguments = {"manifest": f"{url}/manifest.json", "storage_options": store.options}
        async with streamrec.ShardWriter(shards, max_shard_records=1_000, **arguments) as writer:
            for record in records:
                await writer.write(record)

    asyncio.run(write())
    assert streamrec.verify_sync(f"{url}/manifest.json", storage_options=store.options).ok
    dataset = streamrec.TFRecordDataset(f"{url}/x-*.tfrecord", num_parallel_reads=3, storage_options=store.options)
    everything = list(dataset)
    assert sorted(everything) == sorted(records)
    with dataset.iterate() as elements:
        before = [next(elements) for _ in range(1_234)]
        state = elements.state_dict()
    with dataset.iterate(state) as elements:
        assert before + list(elements) == everything
    with pytest.raises(streamrec.StorageError, match=rf"this is a directory: write {url}/\*.tfrecord\*"):
        list(streamrec.TFRecordDataset(url, storage_options=store.options))
    with pytest.raises(streamrec.NotFoundError):
        list(streamrec.TFRecordDataset(f"{url}/missing", storage_options=store.options))


async def test_a_wrong_key_is_refused_at_once(store: Store) -> None:
    wrong = {"connection_string": store.options["connection_string"].replace("AccountKey=Eby8", "AccountKey=AAAA")}
    with pytest.raises(streamrec.errors.PermissionDeniedError, match="check the credentials"):
        [_ async for _ in streamrec.TFRecordDataset("az://streamrec/x", storage_options=wrong)]


def test_credentials_that_cannot_be_had_may_pass() -> None:
    """As where the service that gives them is busy; when they did not come again and again, access is refused."""
    with pytest.raises(TransientError) as caught, common.translate_errors("az://streamrec/x"):
        raise ClientAuthenticationError("no credential in this chain provided a token")
    assert caught.value.cause is Cause.CREDENTIALS


class Busy(BaseHTTPRequestHandler):
    """Azure, where it wants fewer requests."""

    requests: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.requests.append(self.command)
        self.send_response(503, "Server Busy")
        self.send_header("x-ms-error-code", "ServerBusy")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Nothing."""


async def test_the_retry_policy_is_the_only_one(store: Store) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        busy = store.options["connection_string"].rpartition("BlobEndpoint=")[0]
        busy += f"BlobEndpoint=http://127.0.0.1:{server.server_port}/account;"
        dataset = streamrec.TFRecordDataset(
            "az://streamrec/x", storage_options={"connection_string": busy}, retry=QUICK
        )
        with pytest.raises(streamrec.errors.ThrottledError, match=r"in 3 attempts in a row"):
            [_ async for _ in dataset]
        server.shutdown()
        thread.join()
    assert len(Busy.requests) == QUICK.attempts
