"""S3 over TLS, against a SeaweedFS with a certificate: uploads without SHA-256, and bodies that are
decrypted past asyncio.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import NoReturn
from uuid import uuid4

import pytest

from streamrec import ShardWriter, StorageError, TFRecordDataset
from streamrec.kernels import crc32c
from streamrec.storage import Storage, Storages
from streamrec.storage.backend import FastPath, encode_crc32c
from streamrec.storage.backends.http import responses, tls_reader
from streamrec.storage.backends.http.socket_body import ALL
from tests.servers.real import Store, make_certificate, seaweedfs
from tests.servers.resuming import stop_after
from tests.storage.contract import (
    QUICK_RETRIES,
    note_requests,
    open_storage,
    read_all,
    signed_body,
    write_object,
)

PART = 5 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with seaweedfs(
        "secure", certificate=make_certificate(tmp_path_factory.mktemp("certificate"))
    ) as store:
        yield store


@pytest.fixture
async def storage(store: Store) -> AsyncIterator[Storage]:
    async with Storages(store.options, retry=QUICK_RETRIES) as storages:
        yield await storages.at(store.url)


@pytest.fixture
def path(store: Store) -> str:
    return f"{store.url}/{uuid4().hex}"


async def put_random(storage: Storage, path: str, size: int) -> bytes:
    """Writes an object of random bytes."""
    data = os.urandom(size)
    await write_object(storage, path, data)
    return data


@pytest.mark.parametrize("size", [0, 1_000, PART, 3 * PART + 17])
async def test_an_upload_is_verified_without_sha256(storage: Storage, path: str, size: int) -> None:
    """One part and several: signed heads, bodies that only TLS and the CRC32C guard."""
    sent = note_requests(storage, "before-send.s3", signed_body)
    data = os.urandom(size)
    await write_object(storage, path, data, part_size=PART)
    assert "UNSIGNED-PAYLOAD" in sent
    assert await read_all(await storage.stream(path)) == data
    bucket, _, key = path.removeprefix("s3://").partition("/")
    fs = storage._backend._fs  # type: ignore[attr-defined]
    head = await fs._call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert (head["ContentLength"], head.get("ChecksumCRC32C")) == (
        size,
        encode_crc32c(crc32c(data)),
    )


async def test_other_settings_of_the_users_leave_bodies_unsigned(store: Store, path: str) -> None:
    options = {**store.options, "config_kwargs": {"s3": {"addressing_style": "path"}}}
    async with open_storage(store.url, options) as storage:
        sent = note_requests(storage, "before-send.s3.PutObject", signed_body)
        await write_object(storage, path, b"cat")
    assert sent == ["UNSIGNED-PAYLOAD"]


async def test_bodies_are_decrypted(
    storage: Storage, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole object by one GET and by several, in reads of any size: every byte, though the kernel
    gathers.
    """
    landed: list[tls_reader.TLSReader] = []
    begin = tls_reader.TLSReader.begin

    def noted(self: tls_reader.TLSReader) -> None:
        landed.append(self)
        begin(self)

    monkeypatch.setattr(tls_reader.TLSReader, "begin", noted)
    data = await put_random(storage, path, 21 << 20)
    for step in (70_001, 1 << 20, 4 << 20):
        assert await read_all(await storage.stream(path), step) == data
    assert len(landed) >= 6
    for end in (2_000_000, 2_000_001):
        assert await storage.read_range(path, 7, end) == data[7:end]


async def test_an_untrusted_certificate_is_refused_at_once(store: Store, path: str) -> None:
    strangers = {**store.options, "client_kwargs": {"region_name": "us-east-1"}}
    async with Storages(strangers, retry=QUICK_RETRIES) as storages:
        with pytest.raises(StorageError, match="certificate was refused") as caught:
            await (await storages.at(path)).stream(path)
    assert caught.value.path == path


def test_http_where_https_is_spoken_and_the_reverse_say_which_to_write(
    store: Store, http_store: Store
) -> None:
    with pytest.raises(
        StorageError, match=r"this port does not speak TLS \(.*\): write http:// where https:// is"
    ):
        list(TFRecordDataset(http_store.url.replace("http:", "https:") + "/x"))
    with pytest.raises(StorageError, match="write http:// where https:// is"):
        endpoint = {"endpoint_url": http_store.url.replace("http:", "https:")}
        list(TFRecordDataset(f"{store.url}/x", storage_options=store.options | endpoint))
    with pytest.raises(StorageError, match="https"):
        list(TFRecordDataset(store.endpoint.replace("https:", "http:") + "/x", retry=QUICK_RETRIES))
    with pytest.raises(StorageError, match="https"):
        endpoint = {"endpoint_url": store.endpoint.replace("https:", "http:")}
        list(
            TFRecordDataset(
                f"{store.url}/x", storage_options=store.options | endpoint, retry=QUICK_RETRIES
            )
        )


@contextlib.asynccontextmanager
async def relayed(
    store: Store, harm: Callable[[int, int, bytes], bytes | None]
) -> AsyncIterator[dict[str, object]]:
    """Options for the store through a relay of ciphered bytes.

    Args:
        store: Where they go.
        harm: Gets a connection's number, how many bytes came through it from the server, and the
            next ones; gives what is sent instead, or None to break the connection off.
    """
    numbers = itertools.count()
    port = int(store.endpoint.rpartition(":")[2])

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int | None
    ) -> None:
        came = 0
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                changed = data if number is None else harm(number, came, data)
                came += len(data)
                if changed is None:
                    break
                writer.write(changed)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_store, to_store = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, to_store, None), pump(from_store, writer, next(numbers)))
        for end in (to_store, writer):
            with contextlib.suppress(OSError):
                await end.wait_closed()

    tasks: list[asyncio.Task[None]] = []

    def begun(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(connected(reader, writer)))

    server = await asyncio.start_server(begun, "127.0.0.1", 0)
    try:
        yield {
            **store.options,
            "endpoint_url": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}",
        }
    finally:
        server.close()
        await asyncio.gather(*tasks)


def flipped(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


async def test_a_connection_serves_one_request_after_another(
    store: Store, storage: Storage, path: str
) -> None:
    """A handshake is expensive: after a body that was decrypted past asyncio, asyncio continues
    with the connection.
    """
    data = await put_random(storage, path, 8 << 20)
    used: set[int] = set()

    def noted(number: int, came: int, chunk: bytes) -> bytes:
        used.add(number)
        return chunk

    unhedged = replace(QUICK_RETRIES, hedge_share=0.0, hedge_allowance=0)
    async with relayed(store, noted) as options, Storages(options, retry=unhedged) as storages:
        storage = await storages.at(path)
        for end in (2_000_000, 100_000, 7_000_001, 8 << 20, 5_000_000):
            assert await read_all(await storage.stream(path, 5, end), 700_001) == data[5:end]
    assert len(used) == 1


@pytest.mark.parametrize("how", ["a flipped bit", "a connection that ends"])
async def test_damage_on_the_way_is_a_broken_body_that_is_resumed(
    store: Store, storage: Storage, path: str, how: str
) -> None:
    """No byte of a record of TLS that was changed is handed out."""
    data = await put_random(storage, path, 4 << 20)
    harmed: list[int] = []

    def harm(number: int, came: int, chunk: bytes) -> bytes | None:
        if number > 1 or came < (1 << 20) or number in harmed or len(chunk) < 1_000:
            return chunk
        harmed.append(number)
        return flipped(chunk) if how == "a flipped bit" else None

    async with relayed(store, harm) as options, Storages(options, retry=QUICK_RETRIES) as storages:
        stream = await (await storages.at(path)).stream(path)
        assert await read_all(stream, 1 << 20) == data
        assert harmed
        assert stream.tally.counts().retries["broken"] >= 1
        assert responses.BUFFERED_BODIES.is_enabled(ALL), "what came is at fault, and not the way"


def test_a_storm_and_a_resume_in_it(store: Store, path: str) -> None:
    """Every third connection breaks within its body: the same records in the same order, also from
    a state on.
    """
    shards = {
        f"{path}-{index}.tfrecord": [os.urandom(50_000) for _ in range(60)] for index in range(6)
    }
    broken = itertools.count()

    async def write() -> None:
        for url, records in shards.items():
            async with ShardWriter(url, storage_options=store.options) as writer:
                for record in records:
                    await writer.write(record)

    def harm(number: int, came: int, chunk: bytes) -> bytes | None:
        if number % 3 == 1 and came > 400_000:
            next(broken)
            return None
        return chunk

    async def read() -> list[bytes]:
        async with relayed(store, harm) as options:
            dataset = TFRecordDataset(
                list(shards), num_parallel_reads=6, storage_options=options, retry=QUICK_RETRIES
            )

            def resumed() -> list[bytes]:
                first, state = stop_after(dataset, 133)
                return first + list(dataset.iterate(state))

            return await asyncio.to_thread(resumed)

    asyncio.run(write())
    assert asyncio.run(read()) == [
        record for turn in zip(*shards.values(), strict=True) for record in turn
    ]
    assert next(broken) > 0


@pytest.mark.parametrize("broken", ["asyncio", "reading"])
async def test_where_asyncio_is_not_as_expected_the_client_reads(
    storage: Storage,
    path: str,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Permanently; the log says so once, it is counted, and every byte comes."""
    way = FastPath(f"receiving bodies, {broken}")
    monkeypatch.setattr(responses, "BUFFERED_BODIES", way)

    def other(*_: object) -> NoReturn:
        raise AttributeError("something of asyncio's is gone")

    if broken == "asyncio":
        monkeypatch.setattr(tls_reader, "SSLProtocol", int)
    else:
        monkeypatch.setattr(tls_reader.TLSReader, "read", other)
    data = await put_random(storage, path, 6 << 20)
    for _ in range(3):
        assert await read_all(await storage.stream(path), 1 << 20) == data
    assert way.fallbacks == 1
    assert not way.is_enabled(ALL)
    assert len([line for line in caplog.messages if "client's own way is taken" in line]) == 1


def test_under_uvloop_the_client_reads(
    store: Store, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has TLS of its own: the log says so once, and every byte arrives."""
    uvloop = pytest.importorskip("uvloop")
    way = FastPath("receiving bodies under uvloop")
    monkeypatch.setattr(responses, "BUFFERED_BODIES", way)

    async def read() -> None:
        async with open_storage(path, store.options) as storage:
            data = await put_random(storage, path, 6 << 20)
            for _ in range(3):
                assert await read_all(await storage.stream(path), 1 << 20) == data

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(read())
    assert way.fallbacks == 1
    assert len([line for line in caplog.messages if "client's own way is taken" in line]) == 1
