"""A reader skips damage and reports it; `verify` finds the differences from a manifest."""

import gzip
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

import streamrec
from streamrec import NotFoundError, ShardWriter, encode_records
from streamrec.errors import ManifestError
from streamrec.shards import VerifyProblem, VerifyReport
from streamrec.shards.loss_log import KEPT, LOGGED
from streamrec.storage import Storages
from streamrec.tfrecord import Loss
from tests.servers.real import Store
from tests.shards.test_reader import place, put, read
from tests.storage.faultproxy import Fault, FaultProxy
from tests.tfrecord.damage import starts_of

__all__ = ["place"]

RECORDS = [b"%d:" % index * (index % 97) for index in range(5_000)]
STARTS = starts_of(RECORDS)
DAMAGED_RECORDS = (70, 2_000, 2_001, 4_999)


def damaged_shard(at: int = 12) -> bytes:
    """Four records with a damaged payload, or with a damaged length."""
    data = bytearray(encode_records(RECORDS))
    for bad in DAMAGED_RECORDS:
        data[STARTS[bad] + at] ^= 1
    return bytes(data)


UNDAMAGED_RECORDS = [record for index, record in enumerate(RECORDS) if index not in DAMAGED_RECORDS]


@pytest.mark.parametrize(
    ("on_error", "at"), [("skip_record", 12), ("resync", 12), ("resync", 0), ("resync", 9)]
)
@pytest.mark.parametrize("block_bytes", [200, None])
@pytest.mark.parametrize("compress", [False, True])
async def test_damaged_records_are_left_out(
    place: str, on_error: str, at: int, block_bytes: int | None, compress: bool
) -> None:
    """Also from a compressed shard that was damaged before it was compressed."""
    url = put(f"{place}/x", gzip.compress(damaged_shard(at), 1) if compress else damaged_shard(at))
    reported: list[Loss] = []
    async with streamrec.open_shard(
        url, on_error=on_error, on_loss=reported.append, block_bytes=block_bytes
    ) as shard:
        assert [record async for record in shard] == UNDAMAGED_RECORDS
        assert shard.losses == reported
        assert shard.skipped == shard.statistics.losses == len(reported)
        assert shard.statistics.lost_bytes == sum(loss.nbytes or 0 for loss in reported)
        assert shard.place.record == len(UNDAMAGED_RECORDS)
    places = [(loss.path, loss.offset, loss.nbytes, loss.record) for loss in reported]
    apart = [
        (url, STARTS[bad], len(RECORDS[bad]) + 16, bad - before)
        for before, bad in enumerate(DAMAGED_RECORDS)
    ]
    two = (url, STARTS[2_000], STARTS[2_002] - STARTS[2_000], 1_999)
    assert places == (apart if at == 12 else [apart[0], two, apart[3]])


@pytest.mark.parametrize("at", [0, 12])
async def test_skip_shard_loses_the_rest(place: str, at: int) -> None:
    data = damaged_shard(at)
    url = put(f"{place}/x", data)
    async with streamrec.open_shard(url, on_error="skip_shard") as shard:
        assert [record async for record in shard] == RECORDS[: DAMAGED_RECORDS[0]]
        (loss,) = shard.losses
        assert await shard.read() is None
    assert (loss.path, loss.offset, loss.nbytes, loss.record) == (
        url,
        STARTS[70],
        len(data) - STARTS[70],
        70,
    )


async def test_skip_shard_of_a_piece_loses_the_rest_of_the_piece(place: str) -> None:
    url = put(f"{place}/x", damaged_shard())
    async with streamrec.open_shard(
        url, start=STARTS[60], end=STARTS[100], on_error="skip_shard"
    ) as shard:
        assert [record async for record in shard] == RECORDS[60:70]
        (loss,) = shard.losses
    assert (loss.offset, loss.nbytes, loss.record) == (STARTS[70], STARTS[100] - STARTS[70], 10)


@pytest.mark.parametrize("on_error", ["skip_shard", "resync"])
@pytest.mark.parametrize("harm", ["cut", "changed"])
async def test_a_compressed_stream_that_breaks_loses_the_rest(
    place: str, on_error: str, harm: str
) -> None:
    """No record can be found after it, and the size of the loss is unknown."""
    data = bytearray(gzip.compress(encode_records(RECORDS)))
    if harm == "cut":
        del data[len(data) // 2 :]
    else:
        data[len(data) // 2] ^= 0xFF
    url = put(f"{place}/x", bytes(data))
    async with streamrec.open_shard(url, on_error=on_error) as shard:
        found = [record async for record in shard]
        last = shard.losses[-1]
    assert found == RECORDS[: len(found)]
    assert len(found) > 1_000
    assert last.nbytes is None
    for other in ("raise", "skip_record"):
        with pytest.raises((streamrec.CorruptRecordError, streamrec.errors.TruncatedShardError)):
            await read(url, on_error=other)


async def test_an_end_within_a_record_loses_that_record(place: str) -> None:
    url = put(f"{place}/x", encode_records(RECORDS)[:-3])
    for on_error in ("resync", "skip_shard"):
        async with streamrec.open_shard(url, on_error=on_error) as shard:
            assert [record async for record in shard] == RECORDS[:-1]
            (loss,) = shard.losses
        assert (loss.offset, loss.nbytes) == (STARTS[-2], len(RECORDS[-1]) + 13)
    with pytest.raises(streamrec.errors.TruncatedShardError):
        await read(url, on_error="skip_record")


@pytest.mark.parametrize(
    ("on_error", "limit"),
    [("skip_record", 0), ("skip_record", 1), ("resync", 0), ("resync", 3), ("skip_shard", 0)],
)
async def test_a_limit_turns_losses_into_an_error(place: str, on_error: str, limit: int) -> None:
    url = put(f"{place}/x", damaged_shard())
    borne, rest = (
        (1, RECORDS[: DAMAGED_RECORDS[0]])
        if on_error == "skip_shard"
        else (len(DAMAGED_RECORDS), UNDAMAGED_RECORDS)
    )
    assert await read(url, on_error=on_error, max_skipped=borne) == rest
    found: list[bytes] = []
    with pytest.raises(streamrec.CorruptRecordError) as caught:
        async with streamrec.open_shard(url, on_error=on_error, max_skipped=limit) as shard:
            async for record in shard:
                found.append(record)
    assert len(shard.losses) == limit
    assert found == [
        record
        for record in RECORDS[: DAMAGED_RECORDS[limit]]
        if record not in [RECORDS[bad] for bad in DAMAGED_RECORDS[:limit]]
    ]
    assert caught.value.offset == STARTS[DAMAGED_RECORDS[limit]]
    assert (
        f"one loss more than max_skipped={limit}" in str(caught.value) or on_error == "skip_shard"
    )


async def test_losses_are_logged(place: str, caplog: pytest.LogCaptureFixture) -> None:
    url = put(f"{place}/x", damaged_shard())
    with caplog.at_level(logging.WARNING, "streamrec"):
        await read(url, on_error="skip_record")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(DAMAGED_RECORDS)
    assert lines[0].startswith(
        f"{url}, byte {STARTS[70]:,}, after 70 records: lost {len(RECORDS[70]) + 16:,} bytes: the"
    )


async def test_all_losses_are_counted_and_reported_and_some_are_kept_and_logged(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(encode_records([b"x"] * 3_000))
    for offset in range(12, len(data), 34):
        data[offset] ^= 1
    url = put(f"{place}/x", bytes(data))
    reported: list[Loss] = []
    async with streamrec.open_shard(url, on_error="skip_record", on_loss=reported.append) as shard:
        assert [record async for record in shard] == [b"x"] * 1_500
        assert (shard.skipped, len(shard.losses)) == (1_500, KEPT)
    assert len(reported) == 1_500
    assert len(caplog.records) == LOGGED + 1


async def test_a_shard_without_damage_has_no_loss(place: str) -> None:
    url = put(f"{place}/x", encode_records(RECORDS))
    for on_error in ("skip_record", "resync", "skip_shard"):
        async with streamrec.open_shard(url, on_error=on_error) as shard:
            assert [record async for record in shard] == RECORDS
            assert (shard.losses, shard.skipped) == ([], 0)


MANY_RECORDS = [b"%d:" % index * (index % 97) for index in range(20_000)] + [bytes(3_000_000)]


@pytest.fixture
def root() -> Iterator[str]:
    yield f"memory://{uuid.uuid4()}"
    fsspec.filesystem("memory").store.clear()


async def write_data_set(
    root: str, compression: str = "", **options: Any
) -> list[streamrec.shards.ShardInfo]:
    async with ShardWriter(
        f"{root}/train-{{shard:03d}}",
        compression,
        max_shard_records=4000,
        manifest=f"{root}/m.json",
        **options,
    ) as writer:
        await writer.write_batch(MANY_RECORDS)
    return writer.shards


def flip_byte(root: str, name: str, offset: int, byte: int) -> None:
    memory = fsspec.filesystem("memory")
    data = bytearray(memory.cat_file(f"{root}/{name}"))
    data[offset] ^= byte
    memory.pipe_file(f"{root}/{name}", bytes(data))


async def verify_all(root: str, **options: Any) -> VerifyReport:
    return await streamrec.verify(f"{root}/m.json", **options)


def problems_of(report: VerifyReport) -> list[tuple[str, str]]:
    return [(problem.path.rpartition("/")[2], problem.kind) for problem in report.problems]


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB", "ZSTD"])
@pytest.mark.parametrize("parallel", [1, 8])
async def test_verify_of_a_good_data_set_has_no_problem(
    root: str, compression: str, parallel: int
) -> None:
    shards = await write_data_set(root, compression)
    report = await verify_all(root, parallel=parallel)
    assert report == VerifyReport(f"{root}/m.json", 6, sum(shard.bytes for shard in shards), ())
    assert report
    assert report.ok
    assert "6 shards" in str(report)


async def test_each_kind_of_problem_is_a_row(root: str) -> None:
    shards = await write_data_set(root)
    memory = fsspec.filesystem("memory")
    memory.rm_file(f"{root}/train-000")
    flip_byte(root, "train-001", 100_000, 1)
    memory.pipe_file(f"{root}/train-002", memory.cat_file(f"{root}/train-002")[:-1])
    memory.pipe_file(f"{root}/train-006", b"stale")
    memory.pipe_file(f"{root}/train-new", b"not a shard's name")
    report = await verify_all(root)
    assert not report
    assert problems_of(report) == [
        ("train-000", "missing"),
        ("train-001", "crc32c"),
        ("train-002", "bytes"),
        ("train-006", "extra"),
    ]
    missing, crc32c, size, extra = report.problems
    assert missing == VerifyProblem(
        f"{root}/train-000", "missing", f"{shards[0].bytes:,} bytes", "nothing"
    )
    assert crc32c.expected == f"{shards[1].crc32c:08x}" != crc32c.found
    assert (size.expected, size.found) == (f"{shards[2].bytes:,}", f"{shards[2].bytes - 1:,}")
    assert str(extra) in str(report)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB", "ZSTD"])
async def test_verify_counts_the_records_before_damage(root: str, compression: str) -> None:
    shards = await write_data_set(root, compression)
    flip_byte(root, "train-003", shards[3].bytes // 2, 255)
    flip_byte(root, "train-005", 0, 255)
    report = await verify_all(root)
    kinds = dict.fromkeys(problems_of(report))
    assert ("train-003", "crc32c") in kinds
    assert ("train-005", "crc32c") in kinds
    [lost] = [row for row in report.problems if row.path.endswith("5") and row.kind == "records"]
    assert lost.expected == "1"
    assert lost.found.startswith("0 before this: ")
    assert report.bytes == sum(shard.bytes for shard in shards)


async def test_a_wrong_number_of_records_is_a_problem(root: str) -> None:
    await write_data_set(root)
    memory = fsspec.filesystem("memory")
    text = memory.cat_file(f"{root}/m.json").replace(b'"records": 1,', b'"records": 2,')
    memory.pipe_file(f"{root}/m.json", text)
    assert (await verify_all(root)).problems == (
        VerifyProblem(f"{root}/train-005", "records", "2", "1"),
    )


@pytest.mark.parametrize(
    ("name", "limit", "shards", "extra"),
    [("one", None, 1, []), ("x-{shard}", 9, 0, [("x-0", "extra")])],
)
async def test_verify_without_a_record(
    root: str, name: str, limit: int | None, shards: int, extra: list[tuple[str, str]]
) -> None:
    async with ShardWriter(f"{root}/{name}", max_shard_bytes=limit, manifest=f"{root}/m.json"):
        pass
    report = await verify_all(root)
    assert (report.ok, report.shards) == (True, shards)
    for other in ("one-more", "x-0"):
        fsspec.filesystem("memory").pipe_file(f"{root}/{other}", b"")
    assert problems_of(await verify_all(root)) == extra


def test_a_manifest_that_cannot_be_read_is_an_error(root: str) -> None:
    with pytest.raises(NotFoundError):
        streamrec.verify_sync(f"{root}/m.json")
    fsspec.filesystem("memory").pipe_file(f"{root}/m.json", b"{}")
    with pytest.raises(ManifestError):
        streamrec.verify_sync(f"{root}/m.json")


@pytest.mark.parametrize("store", ["s3_store", "gcs_store"])
async def test_verify_survives_network_faults_of_a_real_store(
    request: pytest.FixtureRequest, store: str
) -> None:
    found: Store = request.getfixturevalue(store)
    root = f"{found.url}/{uuid.uuid4().hex}"
    shards = await write_data_set(root, storage_options=found.options)
    async with FaultProxy(found.endpoint) as proxy:
        broken = iter([Fault(cut=100_000)] * 3)
        proxy.choose = lambda request: next(broken, None) if "train-00" in request.path else None
        report = await verify_all(
            root, storage_options={**found.options, "endpoint_url": proxy.url}, parallel=2
        )
    assert report == VerifyReport(f"{root}/m.json", 6, sum(shard.bytes for shard in shards), ())


async def test_a_store_that_is_down_is_an_error_and_not_a_report(s3_store: Store) -> None:
    root = f"{s3_store.url}/{uuid.uuid4().hex}"
    await write_data_set(root, storage_options=s3_store.options)
    async with FaultProxy(s3_store.endpoint) as proxy:
        down = Fault(answer=b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        proxy.choose = lambda request: down if "train-003" in request.path else None
        with pytest.raises(streamrec.errors.PermissionDeniedError) as caught:
            await verify_all(root, storage_options={**s3_store.options, "endpoint_url": proxy.url})
    assert caught.value.path == f"{root}/train-003"
    async with Storages(s3_store.options) as storages:
        assert [info.path async for info in (await storages.at(root)).list(f"{root}/m")] == [
            f"{root}/m.json"
        ]
