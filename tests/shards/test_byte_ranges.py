"""Pieces of a shard, and their assignment to readers: n readers deliver each record once, for all
cuts.
"""

import gzip
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec
from streamrec import encode_record, encode_records
from streamrec.shards import Portion, ReadOptions, ShardRange, ShardReader
from streamrec.shards.assignment import ShardSize, assign_bytes
from streamrec.shards.byte_ranges import SETTLE_BYTES, SLACK_BYTES, RangeStream
from streamrec.storage import ByteStream, Storage, Storages, Tally
from tests.effort import THOROUGH, example_count
from tests.kernels.streams import header
from tests.shards.test_reader import place, put
from tests.tfrecord.damage import random_case, starts_of

__all__ = ["place"]

PLAIN = [b"", b"one", b"two two", b"x" * 40, b"", b"last"]
INNER = encode_records([b"inner one", b"inner", b""])
NESTED = {
    "whole file": [b"first", INNER, b"behind"],
    "within a payload": [b"first", b"[" + INNER + b"]", b"behind"],
    "at its end": [b"first", b"[" + INNER, b"behind"],
    "as the only record": [INNER],
    "as the last one": [b"first", INNER],
    "the last one, padded": [b"first", INNER + bytes(20)],
    "cut in its payload": [b"first", INNER[:-7], b"behind", b"end"],
    "cut in its header": [b"first", INNER + encode_record(b"more")[:9], b"behind", b"end"],
    "a header that claims more": [
        b"first",
        INNER + encode_record(b"x" * 30)[:14],
        b"behind",
        b"end",
    ],
    "a header that claims much more": [
        b"first",
        INNER + encode_record(b"x" * 3_000_000)[:14],
        *[b"behind"] * 70_000,
    ],
    "a damaged one": [b"first", INNER[:30] + b"?" + INNER[31:], b"behind"],
    "two levels": [b"a", encode_records([b"b", encode_records([b"c", INNER, b"d"]), b"e"]), b"f"],
    "several": [INNER, b"between", INNER, INNER],
}


async def read_ranges(url: str, cuts: Sequence[int], **options: Any) -> list[bytes]:
    """The records of all byte ranges, one after the other."""
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, None], strict=True):
        async with streamrec.open_shard(url, "", start=start, end=end, **options) as shard:
            found += [record async for record in shard]
    return found


async def test_a_shard_may_be_cut_at_every_byte(place: str) -> None:
    data = encode_records(PLAIN)
    url = put(f"{place}/x", data)
    for cut in range(len(data) + 20):
        assert await read_ranges(url, [cut]) == PLAIN, cut


async def test_a_piece_has_the_records_whose_headers_begin_in_it(place: str) -> None:
    starts = starts_of(PLAIN)
    url = put(f"{place}/x", encode_records(PLAIN))
    for start, end in itertools.combinations(range(0, starts[-1] + 10, 3 if THOROUGH else 7), 2):
        async with streamrec.open_shard(url, start=start, end=end) as shard:
            found = [record async for record in shard]
        assert found == [
            record for record, at in zip(PLAIN, starts, strict=False) if start <= at < end
        ], (start, end)


@pytest.mark.parametrize("records", NESTED.values(), ids=NESTED)
async def test_payloads_may_hold_records(records: list[bytes], tmp_path: Path) -> None:
    data = encode_records(records)
    url = put(str(tmp_path / "x"), data)
    ends = len(encode_records(records[:3])) + 1
    step = 19 if not THOROUGH else 9 if len(data) > 1_000 else 1
    for cut in range(0, ends, step):
        assert await read_ranges(url, [cut]) == records, cut
    for size in (1, 10, 50):
        assert await read_ranges(url, range(size, ends, size)) == records, size


async def test_a_thread_may_hold_the_memory_that_it_has_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that reads a local file does until it waits again."""
    held: list[memoryview] = []
    readinto = RangeStream.readinto

    async def hold(stream: RangeStream, buffer: memoryview) -> int:
        held.append(buffer[:])
        return await readinto(stream, buffer)

    monkeypatch.setattr(RangeStream, "readinto", hold)
    records = [b"%d" % number * 3_000 for number in range(100)]
    assert (
        await read_ranges(put(str(tmp_path / "x"), encode_records(records)), [5_000, 200_000])
        == records
    )
    assert len(held) > 2


def deceiving_payload(rng: np.random.Generator, depth: int) -> bytes:
    """A payload of TFRecord files, parts of them, zeros and noise, nested to a depth."""
    parts = []
    for kind in rng.integers(0, 5, int(rng.integers(0, 4))).tolist():
        if kind == 0 or depth == 0:
            parts.append(rng.bytes(int(rng.integers(0, 30))))
        elif kind == 1:
            parts.append(bytes(int(rng.integers(0, 30))))
        else:
            inner = encode_records(
                [deceiving_payload(rng, depth - 1) for _ in range(int(rng.integers(0, 4)))]
            )
            first, last = (
                sorted(rng.integers(0, len(inner) + 1, 2).tolist())
                if kind == 3
                else (0, len(inner))
            )
            parts.append(inner[first:last])
    return b"".join(parts)


@pytest.mark.parametrize("first", [0, 5_000, 7_300])
async def test_random_payloads_may_hold_records(first: int) -> None:
    """With some of these seeds an inner length points, by accident, to the start of a record."""
    for seed in range(first, first + example_count(300)):
        rng = np.random.default_rng(seed)
        records = [deceiving_payload(rng, 3) for _ in range(int(rng.integers(1, 7)))]
        data = encode_records(records)
        url = put("memory://deceiving/x", data)
        cuts = sorted(rng.integers(0, len(data) + 1, int(rng.integers(1, 4))).tolist())
        assert await read_ranges(url, cuts) == records, (seed, cuts)


@pytest.mark.parametrize("size", [30_000, 65_000, 300_000, 900_000])
async def test_longer_payloads_may_hold_records(place: str, size: int) -> None:
    """Up to SETTLE_BYTES, for all sizes of reads; the bytes before the cut take several reads."""
    inner = encode_records([bytes([i % 251]) * 997 for i in range(size // 1013)])
    outer = bytes(1_500_000) + inner + b"rest" * 100
    records = [b"first", outer, *[b"%d" % i * 100 for i in range(2_000)], inner]
    data = encode_records(records)
    url = put(f"{place}/x", data)
    begins = 33 + 1_500_000
    for cut in (
        begins - 1,
        begins,
        begins + 1,
        begins + size // 2,
        begins + size - 2_000,
        len(data) - size // 3,
    ):
        assert await read_ranges(url, [cut]) == records, cut


@pytest.mark.parametrize("length", [1 << 30, 20 << 20])
async def test_a_long_length_inside_a_payload_costs_no_reads(place: str, length: int) -> None:
    records = [
        b"first",
        b"#" * 30 + header(length) + b"#" * 30,
        *[b"%d" % i * 1_000 for i in range(10_000)],
    ]
    url = put(f"{place}/x", encode_records(records))
    async with Storages() as storages:
        storage = RecordingStorage(await storages.at(url))
        reader = await ShardReader.open(
            storage, url, ReadOptions(compression_type=""), byte_range=ShardRange(40, 3_000)
        )
        assert [record async for record in reader] == records[2:5]
        await reader.aclose()
    assert sum(end - start for start, end in storage.ranges if end is not None) < 4 * SETTLE_BYTES


async def test_very_long_records_come_once(place: str) -> None:
    records = [b"first", bytes(20 << 20), bytes(18 << 20), b"last"]
    url = put(f"{place}/x", encode_records(records))
    assert await read_ranges(url, [5, 25 << 20]) == records


async def test_an_overlong_run_of_inner_records_is_reported_as_damage(place: str) -> None:
    """The one case that the search cannot detect: an error at the end of the run."""
    inner = encode_records([bytes([i % 251]) * 997 for i in range(2 * SETTLE_BYTES // 1013)])
    url = put(f"{place}/x", encode_records([b"first", inner, b"behind"]))
    with pytest.raises(streamrec.CorruptRecordError):
        await read_ranges(url, [1000])


async def test_records_after_damage_come_once(place: str) -> None:
    """The byte ranges of a damaged shard give the same records as the whole shard, for all cuts."""
    rng = np.random.default_rng(4)
    for seed in range(example_count(300)):
        case = random_case(seed)
        url = put(f"{place}/x", case.data)
        cuts = sorted(rng.integers(0, len(case.data) + 1, int(rng.integers(1, 4))).tolist())
        found = await read_ranges(url, cuts, on_error="resync")
        assert found == case.survivors, (seed, cuts)
        if b"".join(map(encode_record, case.survivors)) != case.data:
            with pytest.raises(
                (streamrec.CorruptRecordError, streamrec.errors.TruncatedShardError)
            ):
                await read_ranges(url, cuts)


async def test_damage_at_a_cut_is_reported_once(place: str) -> None:
    """The range before a damaged length reports it; the one where a damaged payload begins reports
    that.
    """
    starts = starts_of(PLAIN)
    for at, reporter in ((2, 0), (15, 1)):
        data = bytearray(encode_records(PLAIN))
        data[starts[2] + at] ^= 1
        url = put(f"{place}/x", bytes(data))
        for cut in range(starts[1] + 1, starts[2] + 1):
            reported = []
            for number, (start, end) in enumerate(((0, cut), (cut, None))):
                async with streamrec.open_shard(
                    url, start=start, end=end, on_error="resync"
                ) as shard:
                    assert [record async for record in shard] == ([b"", b"one"], PLAIN[3:])[number]
                    reported += [(number, loss.offset) for loss in shard.losses]
            assert reported == [(reporter, starts[2])], cut


async def test_a_compressed_shard_has_no_pieces(place: str) -> None:
    url = put(f"{place}/x", gzip.compress(encode_records(PLAIN)))
    for kind, start, end in ((None, 5, None), ("GZIP", 5, 9), (None, 0, 9)):
        with pytest.raises(
            ValueError, match=r"is compressed \(GZIP\).* read it without start and end"
        ):
            async with streamrec.open_shard(url, kind, start=start, end=end):
                pass


class RecordingStorage(Storage):
    """A storage that records the requested ranges."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage._backend)
        self.ranges: list[tuple[int, int | None]] = []

    async def stream(
        self,
        path: str,
        start: int = 0,
        end: int | None = None,
        version: str | None = None,
        tally: Tally | None = None,
        *,
        size: int | None = None,
    ) -> ByteStream:
        self.ranges.append((start, end))
        return await super().stream(path, start, end, version, tally, size=size)


@pytest.mark.parametrize("length", [100, 90_000, 3_000_000])
async def test_only_the_piece_is_fetched_and_what_its_last_record_needs(
    place: str, length: int
) -> None:
    records = [bytes([i]) * length for i in range(max(3, 8_000_000 // length) % 251)]
    size = len(encode_records(records))
    url = put(f"{place}/x", encode_records(records))
    start, end = size // 3, size * 2 // 3
    async with Storages() as storages:
        storage = RecordingStorage(await storages.at(url))
        reader = await ShardReader.open(
            storage, url, ReadOptions(compression_type=""), byte_range=ShardRange(start, end)
        )
        found = [frames async for frames in reader.frames()]
        await reader.aclose()
    last = found[-1]
    reach = last.offset(len(last)) + 12
    assert storage.ranges[0] == (start, end + SLACK_BYTES)
    assert all(first >= start for first, _ in storage.ranges)
    assert max(stop for _, stop in storage.ranges if stop) <= max(
        reach, end + SLACK_BYTES, start + 2 * SETTLE_BYTES
    )
    assert len(storage.ranges) <= 3


SIZES = st.lists(
    st.one_of(st.just(0), st.integers(1, 2000), st.integers(900_000, 1_000_000)), max_size=40
)
READERS = st.integers(1, 40)


def bytes_of(portions: Iterable[Portion], sizes: dict[str, int]) -> list[tuple[str, int, int]]:
    ranges = []
    for portion in portions:
        part, size = portion.byte_range or ShardRange(0, None), sizes[portion.path]
        ranges.append((portion.path, part.start, size if part.end is None else part.end))
    return ranges


@settings(deadline=None)
@given(SIZES, READERS, st.data())
def test_each_byte_goes_to_one_reader_and_loads_are_even(
    sizes: list[int], readers: int, data: st.DataObject
) -> None:
    splittable = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    shards = [
        ShardSize(str(n), *pair) for n, pair in enumerate(zip(sizes, splittable, strict=True))
    ]
    known = {shard.path: shard.size for shard in shards}
    plan = [bytes_of(own, known) for own in assign_bytes(shards, readers)]
    assert len(plan) == readers

    ranges = sorted(part for own in plan for part in own if part[1] < part[2])
    for shard in shards:
        own = [(start, end) for path, start, end in ranges if path == shard.path]
        assert [start for start, _ in own] == [0, *(end for _, end in own)][: len(own)]
        assert [end for _, end in own][-1:] == ([shard.size] if shard.size else [])
        assert shard.splittable or len(own) <= 1

    mean = sum(sizes) / readers
    loads = [sum(end - start for _, start, end in own) for own in plan]
    indivisible = max((shard.size for shard in shards if not shard.splittable), default=0)
    assert max(loads) <= mean * 1.05 + indivisible + 1
    if not indivisible:
        assert min(loads) >= mean * 0.95 - 1


def test_equal_shards_are_assigned_whole_and_in_turn() -> None:
    plan = assign_bytes([ShardSize(str(n), 100 + n % 3) for n in range(12)], 4)
    assert [[portion.path for portion in own] for own in plan] == [
        [str(n) for n in range(r, 12, 4)] for r in range(4)
    ]
    assert not any(portion.byte_range for own in plan for portion in own)
