"""Damage under each policy: what is lost is what was touched (see `damage`), however the bytes are
fed.
"""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec import CorruptRecordError, Framer, encode_record, encode_records
from streamrec.errors import TruncatedShardError
from streamrec.tfrecord import Loss
from streamrec.tfrecord.damage import WINDOW
from tests.effort import example_count
from tests.kernels.streams import header
from tests.tfrecord.damage import Case, Edit, damaged, feed, random_case, records_of, starts_of

CASES = example_count(1500)
RECORDS = [b"first", b"second record", b"third" * 20, b"", b"last"]
STARTS = starts_of(RECORDS)
SHARD = encode_records(RECORDS)


def read(framer: Framer, data: bytes, feeding: str = "whole", seed: int = 0) -> list[bytes]:
    found = list(feed(framer, data, feeding, seed))
    while rest := list(framer.close()):
        found += rest
    return found


def check(case: Case, on_error: str, feeding: str, seed: int) -> list[Loss]:
    """Exactly the records come that were not touched; the losses lie in order, apart, and cover all
    other bytes.
    """
    framer = Framer(on_error=on_error)
    assert read(framer, case.data, feeding, seed) == case.survivors
    losses = framer.take_losses()
    kept = sum(len(record) + 16 for record in case.survivors)
    assert sum(loss.nbytes or 0 for loss in losses) == len(case.data) - kept
    ends = [loss.offset + (loss.nbytes or 0) for loss in losses]
    assert all(end <= after.offset for end, after in zip(ends, losses[1:], strict=False))
    return losses


feedings = pytest.mark.parametrize("feeding", ["whole", "bytes", "cut", "landed"])


@feedings
def test_resync_loses_what_was_touched(feeding: str) -> None:
    for seed in range(CASES // 5 if feeding == "bytes" else CASES):
        check(random_case(seed), "resync", feeding, seed)


@feedings
@pytest.mark.parametrize("on_error", ["skip_record", "resync"])
def test_damaged_payloads_lose_exactly_their_records(feeding: str, on_error: str) -> None:
    for seed in range(CASES // 5 if feeding == "bytes" else CASES):
        case = random_case(seed, payloads_only=True)
        assert len(check(case, on_error, feeding, seed)) == case.lost


def drawn_edits(way: str, sizes: range) -> st.SearchStrategy[Edit]:
    return st.builds(Edit, st.just(way), st.integers(0, 600), st.sampled_from(sizes))


@given(
    seed=st.integers(0, 2**32),
    edits=st.lists(
        drawn_edits("change", range(1, 80))
        | drawn_edits(
            "delete", range(1, 80, 4)
        )  # with records of whole words, no two of these add up to records
        | drawn_edits("insert", range(2, 80, 4)),
        max_size=2,
        unique_by=lambda edit: edit.start // 100,
    ),
    feeding=st.sampled_from(["whole", "bytes", "cut", "landed"]),
)
@settings(deadline=None)
def test_resync_loses_only_records_that_random_edits_touch(
    seed: int, edits: list[Edit], feeding: str
) -> None:
    rng = np.random.default_rng(seed)
    records = [record + rng.bytes(-len(record) % 4) for record in records_of(rng, 6)]
    size = starts_of(records)[-1]
    apart = [edit for edit in edits if edit.start % 100 + edit.size < 100 and edit.start < size]
    check(damaged(records, apart, rng), "resync", feeding, seed)


def test_bytes_lost_in_a_record_as_many_as_the_next_one_has() -> None:
    """The length leads to a header all the same; the record between is seen, because it ends right
    there.
    """
    long, data = b"x" * 500, encode_records([b"#" * 40, b"x" * 500, b"between", b"behind"])
    cut = len(encode_record(b"between"))
    start = len(encode_record(b"#" * 40)) + 100
    framer = Framer(on_error="resync")
    assert read(framer, data[:start] + b"y" + data[start + 1 + cut :]) == [
        b"#" * 40,
        b"between",
        b"behind",
    ]
    (loss,) = framer.take_losses()
    assert loss.nbytes == len(encode_record(long)) - cut


def test_bytes_lost_in_a_record_as_many_as_the_last_one_has() -> None:
    """The length leads to the end of the shard; the last record is found within it."""
    data = encode_records([b"first", b"x" * 500, b"last"])
    cut = len(encode_record(b"last"))
    start = len(encode_record(b"first")) + 100
    framer = Framer(on_error="resync")
    assert read(framer, data[:start] + b"y" + data[start + 1 + cut :]) == [b"first", b"last"]
    (loss,) = framer.take_losses()
    assert loss.nbytes == len(encode_record(b"x" * 500)) - cut


@pytest.mark.parametrize("on_error", ["skip_record", "resync"])
def test_the_limit_counts_all_losses_of_a_shard(on_error: str) -> None:
    """Also those that were taken before: the framer gets the shard in pieces."""
    framer = Framer(on_error=on_error, max_skipped=2)
    damaged_record = bytearray(encode_record(b"damaged"))
    damaged_record[14] ^= 1
    pair = encode_record(b"good") + bytes(damaged_record)
    found: list[bytes] = []
    with pytest.raises(CorruptRecordError):
        for _ in range(4):
            found += framer.feed(pair)
            assert len(framer.take_losses()) <= 1
    assert found == [b"good"] * 3


def test_every_byte_changed() -> None:
    """Its record is lost, with its place; nothing else. Where that is an error, what is before it
    comes.
    """
    for place in range(len(SHARD)):
        data = bytearray(SHARD)
        data[place] ^= 1 << place % 8
        lost = max(i for i, start in enumerate(STARTS) if start <= place)
        strict = Framer()
        assert list(strict.feed(bytes(data))) == RECORDS[:lost]
        with pytest.raises((CorruptRecordError, TruncatedShardError)):
            strict.close()
        framer = Framer(on_error="resync", path="s3://b/x")
        assert read(framer, bytes(data)) == RECORDS[:lost] + RECORDS[lost + 1 :]
        (loss,) = framer.take_losses()
        size = len(RECORDS[lost]) + 16
        assert (loss.path, loss.offset, loss.nbytes, loss.record) == (
            "s3://b/x",
            STARTS[lost],
            size,
            lost,
        )
        checksums = (
            rf"record's {size - 16} bytes is 0x[0-9a-f]{{8}}, but the shard says 0x[0-9a-f]{{8}}"
        )
        assert re.search("length is wrong" if place - STARTS[lost] < 12 else checksums, loss.reason)
        assert framer.take_losses() == []


@feedings
def test_a_shard_cut_at_any_byte_gives_all_whole_records(feeding: str) -> None:
    """An end within a record: an error, or with resync a loss to the end."""
    for end in range(len(SHARD)):
        whole = sum(start <= end for start in STARTS[1:])
        left = end - STARTS[whole]
        framer = Framer(on_error="resync")
        assert read(framer, SHARD[:end], feeding) == RECORDS[:whole]
        assert [(loss.offset, loss.nbytes) for loss in framer.take_losses()] == (
            [(STARTS[whole], left)] if left else []
        )
        if left:
            with pytest.raises(
                TruncatedShardError, match=f"s3://b/x, record {whole}, byte {STARTS[whole]}: "
            ) as caught:
                read(Framer(on_error="skip_record", path="s3://b/x"), SHARD[:end], feeding)
            assert (caught.value.path, caught.value.offset) == ("s3://b/x", STARTS[whole])
            assert caught.value.record == whole


def test_skip_record_raises_for_a_length() -> None:
    data = bytearray(SHARD)
    data[STARTS[0] + 13] ^= 1
    data[STARTS[2] + 3] ^= 1
    framer = Framer(on_error="skip_record")
    assert list(framer.feed(bytes(data))) == [RECORDS[1]]
    with pytest.raises(CorruptRecordError, match="length is wrong") as caught:
        framer.feed(b"")
    assert (caught.value.offset, caught.value.record) == (STARTS[2], 1)
    assert len(framer.take_losses()) == 1


def test_the_place_during_a_search_is_where_the_damage_began() -> None:
    data = bytearray(SHARD)
    data[STARTS[2]] ^= 1
    framer = Framer(on_error="resync")
    framer.feed(bytes(data[: STARTS[2] + 60]))
    assert framer.position == STARTS[2]
    again = Framer(on_error="resync", position=framer.position, record=framer.record)
    assert read(again, bytes(data[framer.position :])) == RECORDS[3:]


def test_a_length_that_cannot_be_is_not_a_record() -> None:
    """The search looks for what the reader would read."""
    framer = Framer(on_error="resync", max_record_bytes=30)
    assert read(framer, SHARD) == [b"first", b"second record", b"", b"last"]
    assert [loss.offset for loss in framer.take_losses()] == [STARTS[2]]


def test_records_in_the_payload_of_a_damaged_one_come_as_if_they_were_the_shards() -> None:
    """What the search cannot tell; behind them it finds the shard's own."""
    inner = encode_records([b"inner one", b"inner two"])
    data = bytearray(encode_records([b"before", b"[" + inner + b"]", b"after"]))
    data[len(encode_record(b"before"))] ^= 1
    framer = Framer(on_error="resync")
    assert read(framer, bytes(data)) == [b"before", b"inner one", b"inner two", b"after"]
    assert len(framer.take_losses()) == 2
    intact = Framer(on_error="resync")
    assert len(read(intact, encode_records([b"[" + inner + b"]"]))) == 1


@feedings
def test_a_stale_header_does_not_hide_what_it_claims(feeding: str) -> None:
    """Its payload's end is there, and wrong; or is never reached, which the end of the shard
    tells.
    """
    for length in (20, 100, 100_000):
        data = b"#" * 30 + header(length) + SHARD
        framer = Framer(on_error="resync")
        assert read(framer, data, feeding) == RECORDS
        assert [(loss.offset, loss.nbytes) for loss in framer.take_losses()] == [(0, 42)]


def test_a_stale_header_that_claims_a_gigabyte_holds_no_more_than_the_window() -> None:
    block = encode_records([bytes([i]) * 65_000 for i in range(16)])
    framer = Framer(on_error="resync")
    framer.feed(b"#" * 30 + header(1 << 30))
    count, most = 0, 0
    for _ in range(40):
        count += len(framer.feed(block))
        most = max(most, framer.held)
    assert count == 40 * 16
    assert most <= WINDOW + len(block)


def test_a_long_record_after_damage_is_found() -> None:
    """Longer than the window: it holds no record itself, so it is waited for."""
    long = bytes(range(256)) * ((WINDOW >> 8) + 9_000)
    data = b"#" * 30 + encode_records([long, b"next"])
    framer = Framer(on_error="resync")
    found = [
        record
        for i in range(0, len(data), 1 << 20)
        for record in framer.feed(data[i : i + (1 << 20)])
    ]
    assert found == [long, b"next"]
    framer.close()


def test_unverified_payloads_are_searched_for_with_their_crc() -> None:
    """A search needs the CRC; once behind it, `verify` counts again."""
    data = bytearray(SHARD)
    data[STARTS[0]] ^= 1
    data[STARTS[1] + 13] ^= 1
    data[STARTS[4] + 13] ^= 1
    framer = Framer(on_error="resync", verify=False)
    found = read(framer, bytes(data))
    assert found[:2] == RECORDS[2:4]
    assert len(found) == 3
