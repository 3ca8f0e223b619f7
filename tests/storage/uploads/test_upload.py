"""Writing over a bad network: parts and ends of uploads that break, stall, get lost or arrive
damaged.
"""

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    ObjectChangedError,
    StorageError,
    StorageTimeoutError,
)
from streamrec.kernels import crc32c
from streamrec.storage import Existing, RetryPolicy
from streamrec.storage.backend import ContentDigest, encode_crc32c
from streamrec.storage.backends.s3.stored_parts import StoredPart, difference
from tests.servers.real import Store
from tests.storage.faultproxy import Fault, Request, status
from tests.storage.network import Network, through, unfinished

PART = 5 << 20
DATA = os.urandom(2 * PART + 77)
POLICY = RetryPolicy(
    attempts=4, backoff_base=0.01, connect_timeout=30, first_byte_timeout=30, stall_timeout=30
)
"""Requests are counted: on a machine with much else to do, a part may take seconds."""
BRIEF = replace(
    POLICY, attempts=2, connect_timeout=1, first_byte_timeout=1, stall_timeout=1.5, upload_rate=PART
)
"""For stalled requests: seconds for a part."""
LOST = Fault(cut=0, head=lambda head: b"")  # it took effect, and its answer is lost


async def write(network: Network, data: bytes = DATA, overwrite: bool = True) -> None:
    async with await network.storage.upload(
        network.path, part_size=PART, overwrite=overwrite
    ) as upload:
        await upload.write(data)


async def check_gone(network: Network) -> None:
    with pytest.raises(NotFoundError):
        await network.direct.stat(network.path)


@pytest.fixture
async def s3(s3_store: Store) -> AsyncIterator[Network]:
    async with through(s3_store, POLICY) as place:
        yield place


@pytest.fixture
async def gcs(gcs_store: Store) -> AsyncIterator[Network]:
    async with through(gcs_store, POLICY) as place:
        yield place


def is_part(request: Request) -> bool:
    return "partNumber=2" in request.path


def is_end(request: Request) -> bool:
    return request.method == "POST" and "uploadId=" in request.path


def is_head(request: Request) -> bool:
    return request.method == "HEAD"


def is_last_chunk(request: Request) -> bool:
    return request.headers.get("content-range", "").endswith(f"/{len(DATA)}")


def flip(body: bytes) -> bytes:
    """The body with one bit of its data changed."""
    place = len(body) * 3 // 4
    return body[:place] + bytes([body[place] ^ 4]) + body[place + 1 :]


STALL = Fault(stall=0, head=lambda head: b"")


@pytest.mark.parametrize(
    ("which", "fault"),
    [
        pytest.param(is_part, status("500 Oops"), id="part 500"),
        pytest.param(is_part, STALL, id="part stalls"),
        pytest.param(is_end, STALL, id="end stalls", marks=pytest.mark.thorough),
        pytest.param(is_end, Fault(hang_up=100), id="end reset"),
        pytest.param(is_part, Fault(hang_up=1_000_000), id="part reset midway"),
        pytest.param(is_part, Fault(body=flip), id="part damaged"),
    ],
)
async def test_s3_one_fault(
    s3_store: Store, fault: Fault, which: Callable[[Request], bool]
) -> None:
    async with through(s3_store, POLICY if fault.stall is None else BRIEF) as s3:
        s3.meets(fault, when=which)
        await write(s3)
        assert len([request for request in s3.proxy.log if which(request)]) == 2
        assert await s3.stored() == DATA
        assert await unfinished(s3.direct, s3.path) == []


@pytest.mark.parametrize("size", [1000, len(DATA)], ids=["one part", "parts"])
@pytest.mark.parametrize("kind", ["s3", "gcs"])
async def test_an_end_whose_answer_is_lost_is_not_a_conflict_with_itself(
    request: pytest.FixtureRequest, kind: str, size: int
) -> None:
    def is_only(asked: Request) -> bool:
        return asked.method == "PUT" if kind == "s3" else "uploadType=multipart" in asked.path

    async with through(request.getfixturevalue(f"{kind}_store"), POLICY) as store:
        store.meets(
            LOST, when=is_only if size < PART else is_end if kind == "s3" else is_last_chunk
        )
        await write(store, DATA[:size], overwrite=False)
        assert await store.stored() == DATA[:size]


async def test_s3_a_start_whose_answer_is_lost_leaves_no_orphan(s3: Network) -> None:
    s3.meets(
        LOST, when=lambda request: request.path.endswith("uploads") and request.method == "POST"
    )
    await write(s3)
    assert await s3.stored() == DATA
    assert await unfinished(s3.direct, s3.path) == []


async def test_s3_starts_whose_answers_are_all_lost_leave_no_orphan(s3: Network) -> None:
    s3.meets(
        then=LOST,
        when=lambda request: request.path.endswith("uploads") and request.method == "POST",
    )
    with pytest.raises(Exception, match="4 attempts"):
        await write(s3)
    await check_gone(s3)
    assert await unfinished(s3.direct, s3.path) == []


async def test_s3_a_part_that_always_stalls(s3_store: Store) -> None:
    async with through(s3_store, BRIEF) as s3:
        s3.meets(then=STALL, when=is_part)
        with pytest.raises(StorageTimeoutError) as caught:
            await write(s3)
        assert (caught.value.path, caught.value.start, caught.value.end) == (
            s3.path,
            PART,
            2 * PART,
        )
        await check_gone(s3)
        assert await unfinished(s3.direct, s3.path) == []


WRONG_CHECKSUM = partial(re.sub, rb"(?i)(x-amz-checksum-crc32c: )[^\r]*", rb"\1AAAAAA==")
WRONG_SIZE = partial(re.sub, rb"(?i)(content-length: )\d+", rb"\g<1>5")


@pytest.mark.parametrize(
    ("lie", "said"),
    [(WRONG_CHECKSUM, "CRC32C is AAAAAA=="), (WRONG_SIZE, "5 bytes where 10,485,837 were sent")],
)
async def test_s3_another_object_than_was_sent_is_removed(s3: Network, lie: Any, said: str) -> None:
    s3.meets(then=Fault(head=lie), when=is_head)
    with pytest.raises(IntegrityError, match=said) as caught:
        await write(s3)
    assert caught.value.path == s3.path
    s3.proxy.choose = lambda request: None
    await check_gone(s3)
    assert await unfinished(s3.direct, s3.path) == []


@pytest.mark.parametrize("size", [1000, len(DATA)], ids=["one part", "parts"])
@pytest.mark.parametrize("kind", ["s3", "gcs"])
async def test_damage_does_not_cost_the_object_that_was_to_be_replaced(
    request: pytest.FixtureRequest, kind: str, size: int
) -> None:
    damage = Fault(
        body=flip if size > PART else lambda body: body.replace(DATA[100:110], DATA[110:120])
    )
    async with through(request.getfixturevalue(f"{kind}_store"), POLICY) as store:
        await write(store, b"old")
        if kind == "s3":
            store.meets(then=Fault(head=WRONG_CHECKSUM), when=is_head)
        else:
            store.meets(
                then=damage,
                when=lambda asked: is_last_chunk(asked) or "uploadType=multipart" in asked.path,
            )
        with pytest.raises(IntegrityError, match="CRC32C is"):
            await write(store, DATA[:size])
        store.proxy.choose = lambda asked: None
        assert await store.stored() == b"old"
        await write(store, DATA[:size])
        assert await store.stored() == DATA[:size]


async def test_s3_the_object_of_another_writer_stays(s3: Network) -> None:
    async def replace_it() -> None:
        bucket, _, key = s3.path.removeprefix("s3://").partition("/")
        client = s3.direct._backend._fs  # type: ignore[attr-defined]
        await client._call_s3("put_object", Bucket=bucket, Key=key, Body=b"theirs")

    upload = await s3.storage.upload(s3.path, part_size=PART)
    await upload.write(DATA)
    sink: Any = upload._sink
    compare = sink._compare

    async def late(sent: ContentDigest, etag: str | None) -> object:
        await replace_it()
        return await compare(sent, etag)

    sink._compare = late
    with pytest.raises(ObjectChangedError, match="use one writer"):
        await upload.complete()
    await upload.abort()
    assert await s3.stored() == b"theirs"


async def test_s3_no_right_to_list_uploads_is_logged_once(
    s3: Network, caplog: pytest.LogCaptureFixture
) -> None:
    s3.meets(
        then=status("403 Forbidden"),
        when=lambda request: "uploads" in request.path and request.method == "GET",
    )
    with caplog.at_level(logging.WARNING, "streamrec"):
        for _ in range(3):
            await write(s3, b"abc")
    assert [record.getMessage()[:20] for record in caplog.records] == ["unfinished uploads o"]
    assert await s3.stored() == b"abc"


async def test_parts_in_flight_and_memory_are_bounded(s3: Network) -> None:
    parts = 12
    under_way = most = 0
    gate = asyncio.Event()
    async with await s3.storage.upload(s3.path, part_size=PART, parallel=3) as upload:
        put = upload._sink.put_part

        async def counted(
            index: int, offset: int, pieces: Sequence[memoryview], whole: ContentDigest | None
        ) -> None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            if under_way == 3:
                gate.set()
            await gate.wait()
            await put(index, offset, pieces, whole)
            under_way -= 1

        upload._sink.put_part = counted  # type: ignore[method-assign]
        await upload.write(bytes(parts * PART))
    assert most == 3
    assert (await s3.direct.stat(s3.path)).size == parts * PART


@pytest.mark.parametrize(
    "fault", [status("503 Slow Down"), Fault(hang_up=1_000_000)], ids=["503", "reset"]
)
@pytest.mark.parametrize("begun", [0, 2 * PART], ids=["first chunk", "last chunk"])
async def test_gcs_a_chunk_continues_where_the_store_says(
    gcs: Network, fault: Fault, begun: int
) -> None:
    """The proxy answers how far the upload is."""
    faults = iter(
        [replace(fault, hang_up=fault.hang_up and min(fault.hang_up, 50)) if begun else fault]
    )
    gcs.proxy.choose = lambda request: (
        next(faults, None)
        if request.headers.get("content-range", "").startswith(f"bytes {begun}-")
        else None
    )
    await write(gcs)
    assert [request.headers.get("content-range") for request in gcs.proxy.log].count(
        "bytes */*"
    ) == 1
    assert await gcs.stored() == DATA


async def test_gcs_damage_of_the_first_chunk_is_found_and_removed(gcs: Network) -> None:
    gcs.meets(
        then=Fault(body=flip),
        when=lambda asked: asked.headers.get("content-range", "").endswith("/*"),
    )
    with pytest.raises(IntegrityError, match="CRC32C is") as caught:
        await write(gcs)
    assert caught.value.path == gcs.path
    await check_gone(gcs)


async def test_gcs_a_forgotten_upload_is_not_mistaken_for_the_object_of_that_name(
    gcs: Network,
) -> None:
    """An answer is lost, the session is gone, and an older object of the same size is there: it
    must stay.
    """
    older = DATA[::-1]
    upload = await gcs.storage.upload(gcs.path, part_size=PART, existing=Existing.PRESENT)
    await write(gcs, older)  # it was not there when this upload began
    faults = iter([status("503 Busy"), status("404 Gone"), status("404 Gone")])
    gcs.proxy.choose = lambda request: (
        next(faults, None)
        if is_last_chunk(request) or request.headers.get("content-range") == "bytes */*"
        else None
    )
    with pytest.raises(ObjectChangedError, match="write again"):
        async with upload:
            await upload.write(DATA)
    assert await gcs.stored() == older


async def test_gcs_an_upload_that_the_store_forgot(gcs: Network) -> None:
    faults = iter([status("503 Busy"), status("404 Gone")])
    gcs.proxy.choose = lambda request: (
        next(faults, None) if "content-range" in request.headers else None
    )
    with pytest.raises(StorageError, match="no longer knows this upload"):
        await write(gcs)
    await check_gone(gcs)


def part(data: bytes, checked: bool, md5: bool) -> StoredPart:
    etag = hashlib.md5(data).hexdigest()
    return StoredPart(f'"{etag}"', crc32c(data), checked, md5)


HALVES = [b"one half, ", b"the other"]
WHOLE = ContentDigest(19, crc32c(b"one half, the other"))
ETAG = hashlib.md5(b"".join(hashlib.md5(half).digest() for half in HALVES)).hexdigest()
COMPOSED = encode_crc32c(crc32c(b"".join(crc32c(half).to_bytes(4, "big") for half in HALVES)))


@pytest.mark.parametrize(
    ("head", "md5", "reason"),
    [
        ({}, True, None),
        ({"ContentLength": 18}, True, "18 bytes where 19 were sent"),
        ({"ChecksumCRC32C": encode_crc32c(WHOLE.crc32c)}, False, None),
        ({"ChecksumCRC32C": encode_crc32c(1)}, False, "its CRC32C is AAAAAQ=="),
        ({"ChecksumCRC32C": f"{COMPOSED}-2"}, False, None),
        ({"ChecksumCRC32C": f"{encode_crc32c(1)}-2"}, False, f"where {COMPOSED}-2 was sent"),
        ({"ETag": f'"{ETAG}-2"'}, True, None),
        ({"ETag": f'"{"0" * 32}-2"'}, True, f"where the parts make {ETAG}-2"),
        ({"ETag": f'"{"0" * 32}-2"'}, False, None),
        ({"ETag": f'"{"0" * 32}"'}, True, None),
        ({"ETag": '"opaque"'}, True, None),
        ({"ETag": f'"{"0" * 32}-2"', "ServerSideEncryption": "aws:kms"}, True, None),
        ({"ETag": f'"{"0" * 32}-2"', "ServerSideEncryption": "AES256"}, True, "its etag is"),
        ({"ETag": f'"{"0" * 32}-2"', "SSECustomerAlgorithm": "AES256"}, True, None),
    ],
)
def test_s3_how_an_object_is_compared_with_what_was_sent(
    head: dict[str, object], md5: bool, reason: str | None
) -> None:
    parts = [
        part(half, checked=False, md5=md5 and number == 0) for number, half in enumerate(HALVES)
    ]
    found = difference(WHOLE, parts, {"ContentLength": 19, **head})
    assert (found is None) is (reason is None)
    assert reason is None or reason in str(found)
