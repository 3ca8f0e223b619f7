"""What the cache decides without I/O: names, spans, what goes, which side is faster, settings."""

import os
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamrec.storage.backend import ObjectInfo
from streamrec.storage.cache.block_file import (
    CHUNK,
    Checksums,
    DamagedBlockError,
    OpenBlock,
    file_bytes,
)
from streamrec.storage.cache.eviction import (
    StoredBlock,
    StoredSet,
    choose_victims,
    is_expired,
    room_to_make,
)
from streamrec.storage.cache.known_objects import DirectoryRequests, KnownObjects
from streamrec.storage.cache.names import (
    ObjectKey,
    charge_of,
    is_lock,
    is_set,
    pack_of,
    parse_block,
    parse_pack,
    run_of,
    temporary_pack,
    writer_of,
)
from streamrec.storage.cache.pack_file import PackEntry, build_table, parse_table
from streamrec.storage.cache.spans import Span, SpanMap, segment_end
from streamrec.storage.cache.speed import FAST, PROBE, PROOF_BYTES, SpeedComparison
from streamrec.storage.cache_settings import (
    SEGMENT_BYTES,
    CacheSettings,
    find_settings,
    parse_bytes,
)
from tests.effort import drawn_examples

texts = st.text(max_size=8)
keys = st.builds(ObjectKey, texts, texts, texts, st.integers(0, 1 << 50))


# Names.


@given(keys, st.integers(0, 1 << 50), st.integers(1, SEGMENT_BYTES))
def test_names_tell_what_a_file_is(key: ObjectKey, start: int, length: int) -> None:
    block = key.block(start, length)
    temporary = key.temporary(start, "0123456789abcdef")
    assert parse_block(block) == (key.path_name, key.version_name, start, length)
    assert writer_of(temporary) == "0123456789abcdef"
    assert is_lock(key.lock(start))
    assert is_set(key.set_name)
    kinds = [
        [parse_block(name) is not None, writer_of(name) is not None, is_lock(name), is_set(name)]
        for name in (block, temporary, key.lock(start), key.set_name)
    ]
    assert kinds == [[row == column for column in range(4)] for row in range(4)]


@given(st.integers(0, (1 << 64) - 1), st.integers(1, 1000), st.integers(1, 1 << 30))
def test_names_of_packs_tell_what_they_are(time_ns: int, count: int, length: int) -> None:
    temporary = temporary_pack(time_ns, "0123456789abcdef")
    assert writer_of(temporary) == "0123456789abcdef"
    assert parse_pack(temporary) is None
    pack = pack_of(temporary, count=count, length=length)
    assert parse_pack(pack) == (count, length)
    for name in (temporary, pack):
        assert parse_block(name) is None
        assert not is_lock(name)
    assert writer_of(pack) is None


hashes = st.binary(min_size=10, max_size=10).map(bytes.hex)


@given(
    st.lists(st.tuples(hashes, hashes, st.integers(1, 1 << 18), st.integers(0, 1 << 23))),
    st.data(),
)
def test_a_table_of_a_pack_gives_back_its_blocks_and_never_others(
    rows: list[tuple[str, str, int, int]], data: st.DataObject
) -> None:
    entries = [PackEntry(*row) for row in rows]
    table = build_table(entries)
    assert parse_table(table, len(entries)) == entries
    at = data.draw(st.integers(0, len(table) - 1))
    damaged = bytearray(table)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for wrong, count in ((bytes(damaged), len(rows)), (table[:at], len(rows)), (table, at + 9999)):
        with pytest.raises(DamagedBlockError):
            parse_table(wrong, count)


@given(keys, keys)
def test_different_objects_never_share_a_digest(one: ObjectKey, other: ObjectKey) -> None:
    assert (one.digest == other.digest) == (one == other)
    if one.path != other.path or (one.version, one.size) != (other.version, other.size):
        assert one.block(0, 1) != other.block(0, 1)


@pytest.mark.parametrize(
    "name", ["data.bin", "x.block", "0-0-0-0.block", "about.json", "a.tmp", "notes.lock", "..", ""]
)
def test_files_of_others_have_no_names_of_the_cache(name: str) -> None:
    assert parse_block(name) is None
    assert writer_of(name) is None
    assert run_of(name) is None
    assert not is_lock(name)
    assert not is_set(name)


# What a run knows of objects.


def objects_of_no_disk() -> KnownObjects:
    return KnownObjects(cast(Any, None), "store")


def test_bytes_are_identified_by_path_version_and_size() -> None:
    objects = objects_of_no_disk()
    info = ObjectInfo("s3://b/a", 10, '"1"')
    key = objects.key_of(info)
    assert key == ObjectKey("store", "s3://b/a", '"1"', 10)
    assert objects.key_of(info) is key  # its hashes are computed once
    replaced = objects.key_of(ObjectInfo("s3://b/a", 10, '"2"'))
    assert replaced is not None
    assert replaced.version == '"2"'


@pytest.mark.parametrize(
    "info",
    [
        ObjectInfo("s3://b/a", None, '"1"'),
        ObjectInfo("s3://b/a", 10, None),
        ObjectInfo("s3://b/a", 10, '"1"', encoding="gzip"),
    ],
    ids=["no size", "no version", "an encoding"],
)
def test_an_object_without_size_or_version_or_with_an_encoding_is_not_cached(
    info: ObjectInfo,
) -> None:
    assert objects_of_no_disk().key_of(info) is None


def test_a_version_is_forgotten_when_the_object_is_written() -> None:
    objects = objects_of_no_disk()
    info = ObjectInfo("s3://b/a", 10, '"1"')
    objects.note("s3://b/a", info)
    assert objects.get("s3://b/a") is info
    objects.forget("s3://b/a")
    objects.forget("s3://b/a")
    assert objects.get("s3://b/a") is None


def test_a_directory_is_listed_once_after_some_requests() -> None:
    requests = DirectoryRequests(most=4)
    assert [requests.prefers_listing("a/") for _ in range(6)] == [False] * 4 + [True] * 2
    assert not requests.prefers_listing("b/")
    assert [requests.begin_listing("a/") for _ in range(2)] == [True, False]


# Spans.


spans_of_anything = st.lists(st.builds(Span, st.integers(0, 40), st.integers(1, 12)), max_size=12)


@given(spans_of_anything, spans_of_anything, st.integers(0, 60))
@example([Span(0, 1), Span(0, 1)], [Span(0, 1)], 0)
@example([Span(0, 12), Span(2, 1)], [], 5)  # the block before is longer than the nearest one
def test_spans_find_what_a_search_of_all_finds(
    added: list[Span], removed: list[Span], position: int
) -> None:
    spans = SpanMap(added[:3])
    for span in added[3:]:
        spans.add(span)
    for span in removed:
        spans.discard(span)
    left = set(added) - set(removed)
    assert set(spans) == left
    assert len(spans) == len(left)
    found = spans.covering(position)
    ends = [span.end for span in left if span.start <= position < span.end]
    assert (None if found is None else found.end) == max(ends, default=None)
    assert found is None or found.start <= position
    assert spans.next_start(position) == min(
        (span.start for span in left if span.start > position), default=None
    )


@given(st.integers(0, 1 << 45))
def test_a_block_never_crosses_a_multiple_of_its_size(position: int) -> None:
    end = segment_end(position)
    assert 0 < end - position <= SEGMENT_BYTES
    assert position // SEGMENT_BYTES == (end - 1) // SEGMENT_BYTES


# What goes.


stored_sets = st.lists(
    st.builds(
        StoredSet,
        st.text("abc", min_size=1, max_size=2),
        st.floats(0, 9),
        st.lists(st.builds(StoredBlock, texts, st.integers(1, 20)), max_size=5),
    ),
    max_size=6,
    unique_by=lambda stored: stored.name,
)


@given(stored_sets, st.sets(st.text("abc", min_size=1, max_size=2)), st.integers(0, 150))
def test_room_comes_from_what_no_run_has_used_for_longest(
    sets: list[StoredSet], in_use: set[str], needed: int
) -> None:
    victims = choose_victims(sets, in_use, needed)
    free = [block for stored in sets if stored.name not in in_use for block in stored.blocks]
    gone = sum(block.charge for _, block in victims)
    assert not in_use.intersection(name for name, _ in victims)
    assert gone >= min(needed, sum(block.charge for block in free))
    if victims:
        assert gone - victims[-1][1].charge < needed
    # the last data set that loses blocks was used later than all that lose all of theirs
    by_name = {stored.name: stored for stored in sets}
    touched = {name for name, _ in victims}
    latest = max((by_name[name].used for name in touched), default=-1.0)
    for stored in sets:
        if stored.name not in in_use and stored.used < latest and stored.blocks:
            assert sum(name == stored.name for name, _ in victims) == len(stored.blocks)


@given(stored_sets, st.integers(0, 60))
@example([StoredSet("a", 1.0, [StoredBlock("x", 8), StoredBlock("y", 8)])], 8)
def test_no_block_more_is_removed_than_is_needed(sets: list[StoredSet], needed: int) -> None:
    victims = choose_victims(sets, in_use=[], needed=needed)
    assert sum(block.charge for _, block in victims[:-1]) < max(needed, 1)
    assert victims == [] or needed > 0


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(1, 10**6))
def test_the_room_that_is_made_suffices(used: int, charge: int, limit: int) -> None:
    needed = room_to_make(used, charge, limit)
    assert (needed == 0) == (used + charge <= limit)
    assert used - needed + charge <= limit


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_a_lock_lives_for_its_patience_whatever_the_clock_does(touched: float, now: float) -> None:
    assert is_expired(touched, now) == (abs(now - touched) > 2.0)


# Which side is faster.


@given(st.floats(1e6, 1e10), st.floats(1e6, 1e10))
def test_a_disk_that_is_clearly_slower_is_only_probed(disk: float, store: float) -> None:
    speeds = SpeedComparison()
    assert speeds.takes_disk()
    speeds.disk.record(PROOF_BYTES, PROOF_BYTES / disk)
    assert speeds.takes_disk()
    speeds.store.record(PROOF_BYTES, PROOF_BYTES / store)
    taken = sum(speeds.takes_disk() for _ in range(4 * PROBE))
    slower = disk * 2 < store and disk < FAST
    if abs(disk * 2 - store) > 1 and abs(disk - FAST) > 1:
        assert taken == (4 if slower else 4 * PROBE)


def test_a_disk_that_recovers_is_used_again() -> None:
    speeds = SpeedComparison()
    speeds.store.record(1 << 28, 1.0)
    speeds.disk.record(1 << 28, 20.0)
    assert not speeds.takes_disk()
    for _ in range(40):
        speeds.disk.record(1 << 27, 0.1)
    assert speeds.takes_disk()


# Settings.


def test_options_precede_the_environment() -> None:
    environment = {"STREAMREC_CACHE_DIR": "/a", "STREAMREC_CACHE_BYTES": "1GB"}
    assert find_settings({}, {}) is None
    assert find_settings({}, environment) == CacheSettings("/a", 10**9)
    assert find_settings({"cache_dir": "/b"}, environment) == CacheSettings("/b", 10**9)
    assert find_settings({"cache_dir": "/b", "cache_bytes": 1 << 30}, environment) == CacheSettings(
        "/b", 1 << 30
    )
    assert find_settings({"cache_dir": None}, environment) is None
    assert find_settings({"cache_dir": Path("x")}, environment) == CacheSettings(
        os.path.abspath("x"), 10**9
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cache_dir": "/a"}, "cache_bytes is not"),
        ({"cache_dir": "/a", "cache_bytes": 1}, "at least one block of 8,388,608 bytes"),
        ({"cache_dir": "/a", "cache_bytes": "much"}, "such as '500GB' or '64GiB'"),
        ({"cache_dir": "/a", "cache_bytes": True}, "such as '500GB' or '64GiB'"),
    ],
)
def test_settings_that_make_no_cache_are_errors(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_settings(options, {})


def test_a_directory_that_is_no_path_is_an_error() -> None:
    with pytest.raises(TypeError, match="must be the path of a directory"):
        find_settings({"cache_dir": 3, "cache_bytes": "1GB"}, {})


@given(st.integers(0, 1 << 60))
def test_numbers_of_bytes_are_read_as_they_are(number: int) -> None:
    assert parse_bytes(number, "x") == number
    assert charge_of(number) >= number


# The content of a block.


@given(
    data=st.data(),
    length=st.integers(1, 3 * CHUNK),
    start=st.integers(0, 1 << 40),
    key=keys,
)
@drawn_examples(40)
def test_a_block_gives_back_what_was_written_and_never_anything_else(
    data: st.DataObject, length: int, start: int, key: ObjectKey
) -> None:
    content = os.urandom(length)
    sums = Checksums()
    rest = memoryview(content)
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        sums.add(rest[:size])
        rest = rest[size:]
    file = bytearray(content + sums.foot(key.digest, start))
    assert len(file) == file_bytes(length)
    first = data.draw(st.integers(0, (length - 1) // CHUNK)) * CHUNK
    damage = data.draw(st.sampled_from(["none", "flip", "cut", "longer"]))
    if damage == "flip":
        file[data.draw(st.integers(0, len(file) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    elif damage == "cut":
        del file[data.draw(st.integers(0, len(file) - 1)) :]
    elif damage == "longer":
        file += b"\0"
    found = read_block(bytes(file), key.digest, start, length, first)
    assert found == content[first:] if damage == "none" else found in (None, content[first:])


def test_a_block_of_another_object_or_place_is_damage() -> None:
    sums = Checksums()
    sums.add(memoryview(b"abc"))
    file = b"abc" + sums.foot(bytes(32), 8)
    assert read_block(file, bytes(32), 8, 3, 0) == b"abc"
    assert read_block(file, bytes(31) + b"1", 8, 3, 0) is None
    assert read_block(file, bytes(32), 9, 3, 0) is None


def read_block(file: bytes, digest: bytes, start: int, length: int, first: int) -> bytes | None:
    """The bytes of a block from `first` on; None if it counts as damaged."""
    with tempfile.TemporaryFile() as opened:
        opened.write(file)
        opened.flush()
        number = os.dup(opened.fileno())
    room = bytearray(length - first)
    try:
        block = OpenBlock(number, digest, start, length)
    except DamagedBlockError:
        return None
    try:
        assert block.read([memoryview(room)], first)
    except DamagedBlockError:
        return None
    finally:
        block.close()
    return bytes(room)
