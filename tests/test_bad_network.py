"""What a person meets on a bad day, against a real S3 server, in async and in sync use.

Each gives one clear error with its place, within seconds, behind every record that came before it.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import streamrec
from streamrec import RetryPolicy, TFRecordDataset, encode_records
from tests.servers.real import Store, seaweedfs

RECORDS = [b"%d:" % index * 50 for index in range(20_000)]
DATA = encode_records(RECORDS)
BAD = 15_000
OFFSET = len(encode_records(RECORDS[:BAD]))

QUICK = RetryPolicy(patience=2)

Reading = Callable[[str, dict[str, Any]], tuple[list[bytes], Exception]]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def put(store: Store, name: str, data: bytes) -> str:
    url = f"{store.url}/{name}"
    store.put({url: data})
    return url


def read_sync(url: str, options: dict[str, Any]) -> tuple[list[bytes], Exception]:
    found: list[bytes] = []
    with pytest.raises(streamrec.StreamrecError) as caught:
        for frames in TFRecordDataset(url, storage_options=options, retry=QUICK).batch(512):
            found += frames
    return found, caught.value


def read_async(url: str, options: dict[str, Any]) -> tuple[list[bytes], Exception]:
    found: list[bytes] = []

    async def read() -> None:
        async with streamrec.open_shard(url, storage_options=options, retry=QUICK) as shard:
            async for record in shard:
                found.append(record)

    with pytest.raises(streamrec.StreamrecError) as caught:
        asyncio.run(read())
    return found, caught.value


both = pytest.mark.parametrize("read", [read_sync, read_async])


@both
@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("byte", flipped(DATA, OFFSET + 20), streamrec.CorruptRecordError),
        ("length", flipped(DATA, OFFSET + 1), streamrec.CorruptRecordError),
        ("cut", DATA[: OFFSET + 30], streamrec.errors.TruncatedShardError),
    ],
)
def test_damage(s3_store: Store, read: Reading, name: str, data: bytes, kind: type[Exception]) -> None:
    url = put(s3_store, f"network-{name}", data)
    found, error = read(url, dict(s3_store.options))
    assert type(error) is kind
    assert found == RECORDS[:BAD]
    assert (error.path, error.offset, error.record) == (url, OFFSET, BAD)  # type: ignore[attr-defined]
    assert url in str(error)


def test_what_is_not_damaged_is_read_on(s3_store: Store) -> None:
    """A damaged payload and a damaged length: read whole, and in pieces side by side, each good record comes once."""
    data = flipped(flipped(DATA, OFFSET + 1), len(encode_records(RECORDS[:300])) + 15)
    url, options = put(s3_store, "network-damage", data), dict(s3_store.options)
    rest = RECORDS[:300] + RECORDS[301:BAD] + RECORDS[BAD + 1 :]
    told: list[streamrec.tfrecord.Loss] = []
    dataset = streamrec.TFRecordDataset(url, storage_options=options, on_error="resync", on_loss=told.append)
    assert [record for frames in dataset.batch(512) for record in frames] == rest
    assert [(loss.path, loss.record) for loss in told] == [(url, 300), (url, BAD - 1)]

    async def piece(start: int, end: int) -> list[bytes]:
        reading = streamrec.open_shard(url, start=start, end=end, on_error="resync", storage_options=options)
        async with reading as shard:
            return [record async for record in shard]

    async def pieces() -> list[list[bytes]]:
        size = len(data) // 5 + 1
        return await asyncio.gather(*[piece(start, start + size) for start in range(0, len(data), size)])

    found = asyncio.run(pieces())
    assert min(map(len, found)) > 1_000
    assert [record for part in found for record in part] == rest


@both
def test_a_missing_object(s3_store: Store, read: Reading) -> None:
    found, error = read(f"{s3_store.url}/nothing-here", dict(s3_store.options))
    assert found == []
    assert isinstance(error, streamrec.NotFoundError)
    assert error.path == f"{s3_store.url}/nothing-here"


@both
def test_a_wrong_key(s3_store: Store, read: Reading) -> None:
    url = put(s3_store, "network-key", DATA)
    _, error = read(url, {**s3_store.options, "secret": "wrong"})
    assert isinstance(error, streamrec.errors.PermissionDeniedError)
    assert error.path == url


@both
def test_a_server_that_goes_away(read: Reading) -> None:
    with seaweedfs() as store:
        url = put(store, "network-away", DATA)
        options = dict(store.options)
    _, error = read(url, options)
    assert isinstance(error, streamrec.StorageError)
    assert error.path == url
    assert "no connection" in str(error)
