"""The framer's rules, each case run whole, byte by byte, and with bytes that trail behind it."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import CorruptRecordError, Framer, encode_record, encode_records
from tests.kernels.streams import header
from tests.tfrecord.damage import feed

RECORDS = [b"", b"a", b"cat", b"x" * 11, b"\0" * 300, b"last"]

feedings = pytest.mark.parametrize("feeding", ["whole", "bytes", "landed"])


@feedings
def test_position_is_the_next_record(feeding: str) -> None:
    data = encode_records(RECORDS)
    framer = Framer()
    list(feed(framer, data + encode_record(b"unfinished")[:-1], feeding))
    assert framer.position == len(data)
    assert framer.record == len(RECORDS)
    assert framer.held == len(encode_record(b"unfinished")) - 1


@feedings
def test_wants_what_the_next_record_needs(feeding: str) -> None:
    framer = Framer()
    assert framer.wants == 12
    list(feed(framer, encode_record(b"x" * 100)[:12], feeding))
    assert framer.wants == 116


@feedings
@pytest.mark.parametrize(
    "place", [0, 8, 13, 18], ids=["length", "length crc", "payload", "payload crc"]
)
def test_records_before_damage_are_returned_and_the_error_stays(feeding: str, place: int) -> None:
    good = encode_records([b"one", b"two"])
    bad = bytearray(encode_record(b"bad"))
    bad[place] ^= 0x40
    framer = Framer(path="gs://b/x")
    records: list[bytes] = []
    with pytest.raises(CorruptRecordError):
        for record in feed(framer, good + bytes(bad) + encode_records([b"never"] * 9), feeding):
            records.append(record)
        framer.feed(b"")
    assert records == [b"one", b"two"]
    for call in (lambda: framer.feed(good), lambda: framer.reserve(1), framer.close):
        with pytest.raises(CorruptRecordError) as caught:
            call()
        assert (caught.value.offset, caught.value.record) == (len(good), 2)


@pytest.mark.parametrize("on_error", ["ignore", "SKIP_RECORD", "", None])
def test_an_unknown_policy_for_damage_is_refused(on_error: Any) -> None:
    with pytest.raises(ValueError, match=r"on_error is .* one of .raise., .skip_record."):
        Framer(on_error=on_error)


def test_a_negative_number_of_losses_is_refused() -> None:
    with pytest.raises(ValueError, match="max_skipped is -1: it must be 0 or more"):
        Framer(on_error="skip_record", max_skipped=-1)
    Framer(on_error="skip_record", max_skipped=0)


def test_unverified_payloads_pass_but_lengths_never_do() -> None:
    bad = bytearray(encode_record(b"payload"))
    bad[13] ^= 1
    assert len(Framer(verify=False).feed(bytes(bad))) == 1
    bad[0] ^= 1
    framer = Framer(verify=False)
    framer.feed(bytes(bad))
    with pytest.raises(CorruptRecordError, match="length is wrong"):
        framer.close()


def test_a_longer_record_than_allowed_is_corruption() -> None:
    framer = Framer(max_record_bytes=3)
    assert list(framer.feed(encode_records([b"cat", b"bird"]))) == [b"cat"]
    with pytest.raises(CorruptRecordError, match=r"4 bytes long, above max_record_bytes=3"):
        framer.feed(b"")


def test_a_bogus_length_with_a_right_crc_allocates_nothing() -> None:
    framer = Framer(max_record_bytes=(1 << 63) - 1)
    framer.feed(header(1 << 62))
    assert framer.wants == (1 << 62) + 16
    assert framer.held == 12


def test_starting_within_a_shard_keeps_count() -> None:
    framer = Framer(position=1000, record=7)
    frames = framer.feed(encode_records([b"a", b"b"]) + b"\0")
    assert frames.start == 1000
    assert frames.offset(1) == 1017
    assert (framer.position, framer.record) == (1034, 9)


def test_whole_data_is_not_copied() -> None:
    data = encode_records(RECORDS)
    assert Framer().feed(data).buffer is data


def test_commit_wants_a_reservation() -> None:
    framer = Framer()
    with pytest.raises(ValueError, match="reserve"):
        framer.commit(0)
    framer.reserve(2)
    with pytest.raises(ValueError, match="of 2 reserved"):
        framer.commit(3)


@given(
    records=st.lists(st.binary(max_size=30), max_size=60),
    room=st.integers(1, 700),
    multiple=st.integers(1, 20),
    before=st.integers(0, 30),
)
def test_blocks_end_after_a_multiple_of_records(
    records: list[bytes], room: int, multiple: int, before: int
) -> None:
    data = encode_records(records)
    framer = Framer(position=before * 100, record=before)
    found: list[bytes] = []
    for first in range(0, len(data) + room, room):
        piece = data[first : first + room]
        framer.reserve(room)[: len(piece)] = piece
        frames = framer.commit(len(piece), multiple if len(piece) == room else 1)
        assert frames.offset(0) == before * 100 + len(encode_records(found))
        found += frames
        over = framer.record % multiple
        assert framer.record == before + len(found)
        assert over == 0 or over >= len(frames) or len(piece) < room, (
            "it ends there, or passed no such place"
        )
    framer.close()
    assert found == records


def test_a_pickled_error_keeps_path_offset_and_record() -> None:
    error = CorruptRecordError("bad", "s3://b/x", 12, 3)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "s3://b/x, record 3, byte 12: bad"
    assert (again.path, again.offset, again.record) == ("s3://b/x", 12, 3)
