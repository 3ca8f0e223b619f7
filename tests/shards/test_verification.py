"""A data set, verified against its manifest."""

import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

import streamrec
from streamrec import NotFoundError, ShardWriter
from streamrec.errors import ManifestError
from streamrec.shards import VerifyProblem, VerifyReport
from streamrec.storage import Storages
from tests.servers.real import Store
from tests.storage.faultproxy import Fault, FaultProxy

RECORDS = [b"%d:" % index * (index % 97) for index in range(20_000)] + [bytes(3_000_000)]


@pytest.fixture
def place() -> Iterator[str]:
    yield f"memory://{uuid.uuid4()}"
    fsspec.filesystem("memory").store.clear()


async def write(place: str, compression: str = "", **options: Any) -> list[streamrec.shards.ShardInfo]:
    async with ShardWriter(
        f"{place}/train-{{shard:03d}}", compression, max_shard_records=4000, manifest=f"{place}/m.json", **options
    ) as writer:
        await writer.write_batch(RECORDS)
    return writer.shards


def change(place: str, name: str, offset: int, byte: int) -> None:
    memory = fsspec.filesystem("memory")
    data = bytearray(memory.cat_file(f"{place}/{name}"))
    data[offset] ^= byte
    memory.pipe_file(f"{place}/{name}", bytes(data))


async def look(place: str, **options: Any) -> VerifyReport:
    return await streamrec.verify(f"{place}/m.json", **options)


def rows(report: VerifyReport) -> list[tuple[str, str]]:
    return [(problem.path.rpartition("/")[2], problem.kind) for problem in report.problems]


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB", "ZSTD"])
@pytest.mark.parametrize("parallel", [1, 8])
async def test_all_is_well(place: str, compression: str, parallel: int) -> None:
    shards = await write(place, compression)
    report = await look(place, parallel=parallel)
    assert report == VerifyReport(f"{place}/m.json", 6, sum(shard.bytes for shard in shards), ())
    assert report
    assert report.ok
    assert "6 shards" in str(report)


async def test_each_kind_of_problem_is_a_row(place: str) -> None:
    shards = await write(place)
    memory = fsspec.filesystem("memory")
    memory.rm_file(f"{place}/train-000")
    change(place, "train-001", 100_000, 1)
    memory.pipe_file(f"{place}/train-002", memory.cat_file(f"{place}/train-002")[:-1])
    memory.pipe_file(f"{place}/train-006", b"stale")
    memory.pipe_file(f"{place}/train-new", b"not a shard's name")
    report = await look(place)
    assert not report
    assert rows(report) == [
        ("train-000", "missing"),
        ("train-001", "crc32c"),
        ("train-002", "bytes"),
        ("train-006", "extra"),
    ]
    missing, crc32c, size, extra = report.problems
    assert missing == VerifyProblem(f"{place}/train-000", "missing", f"{shards[0].bytes:,} bytes", "nothing")
    assert crc32c.expected == f"{shards[1].crc32c:08x}" != crc32c.found
    assert (size.expected, size.found) == (f"{shards[2].bytes:,}", f"{shards[2].bytes - 1:,}")
    assert str(extra) in str(report)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB", "ZSTD"])
async def test_what_can_be_framed_is_counted(place: str, compression: str) -> None:
    shards = await write(place, compression)
    change(place, "train-003", shards[3].bytes // 2, 255)
    change(place, "train-005", 0, 255)
    report = await look(place)
    kinds = dict.fromkeys(rows(report))
    assert ("train-003", "crc32c") in kinds
    assert ("train-005", "crc32c") in kinds
    [lost] = [row for row in report.problems if row.path.endswith("5") and row.kind == "records"]
    assert lost.expected == "1"
    assert lost.found.startswith("0 before this: ")
    assert report.bytes == sum(shard.bytes for shard in shards)


async def test_a_wrong_number_of_records(place: str) -> None:
    await write(place)
    memory = fsspec.filesystem("memory")
    text = memory.cat_file(f"{place}/m.json").replace(b'"records": 1,', b'"records": 2,')
    memory.pipe_file(f"{place}/m.json", text)
    assert (await look(place)).problems == (VerifyProblem(f"{place}/train-005", "records", "2", "1"),)


async def test_one_shard_and_no_record(place: str) -> None:
    async with ShardWriter(f"{place}/one", manifest=f"{place}/m.json"):
        pass
    assert await look(place)
    fsspec.filesystem("memory").pipe_file(f"{place}/one-more", b"")
    assert await look(place)


async def test_no_shard(place: str) -> None:
    async with ShardWriter(f"{place}/x-{{shard}}", max_shard_bytes=9, manifest=f"{place}/m.json"):
        pass
    assert (await look(place)).shards == 0
    fsspec.filesystem("memory").pipe_file(f"{place}/x-0", b"")
    assert rows(await look(place)) == [("x-0", "extra")]


async def test_what_keeps_us_from_looking_is_an_error(place: str) -> None:
    with pytest.raises(NotFoundError):
        await look(place)
    fsspec.filesystem("memory").pipe_file(f"{place}/m.json", b"{}")
    with pytest.raises(ManifestError):
        await look(place)


def test_in_sync_code(place: str) -> None:
    with pytest.raises(NotFoundError):
        streamrec.verify_sync(f"{place}/m.json")
    streamrec.TFRecordWriter(f"{place}/x").close()
    manifest = streamrec.shards.Manifest(
        f"{place}/m.json", f"{place}/x", "", (streamrec.shards.ShardInfo(f"{place}/x", 0, 0, 0),)
    )
    fsspec.filesystem("memory").pipe_file(manifest.path, manifest.to_json())
    assert streamrec.verify_sync(manifest.path) == VerifyReport(manifest.path, 1, 0, ())


@pytest.mark.parametrize("store", ["s3_store", "gcs_store"])
async def test_a_real_store_in_bad_network(request: pytest.FixtureRequest, store: str) -> None:
    found: Store = request.getfixturevalue(store)
    place = f"{found.url}/{uuid.uuid4().hex}"
    shards = await write(place, storage_options=found.options)
    async with FaultProxy(found.endpoint) as proxy:
        broken = iter([Fault(cut=100_000)] * 3)
        proxy.choose = lambda request: next(broken, None) if "train-00" in request.path else None
        report = await look(place, storage_options={**found.options, "endpoint_url": proxy.url}, parallel=2)
    assert report == VerifyReport(f"{place}/m.json", 6, sum(shard.bytes for shard in shards), ())


async def test_a_store_that_is_down_is_an_error_and_not_a_report(s3_store: Store) -> None:
    place = f"{s3_store.url}/{uuid.uuid4().hex}"
    await write(place, storage_options=s3_store.options)
    async with FaultProxy(s3_store.endpoint) as proxy:
        down = Fault(answer=b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        proxy.choose = lambda request: down if "train-003" in request.path else None
        with pytest.raises(streamrec.errors.PermissionDeniedError) as caught:
            await look(place, storage_options={**s3_store.options, "endpoint_url": proxy.url})
    assert caught.value.path == f"{place}/train-003"
    async with Storages(s3_store.options) as storages:
        assert [info.path async for info in (await storages.at(place)).list(f"{place}/m")] == [f"{place}/m.json"]
