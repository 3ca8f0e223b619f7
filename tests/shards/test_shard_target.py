"""When a shard is full, and how many records of a batch it takes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import TFRecordOptions
from streamrec.shards.shard_target import BLOCK_BYTES, ShardTarget

NAME = "s3://bucket/train-{shard:05d}.tfrecord"
OPTIONS = TFRecordOptions.of(None)


def target(max_bytes: int | None = None, max_records: int | None = None) -> ShardTarget:
    return ShardTarget(
        pattern=NAME, options=OPTIONS, max_shard_bytes=max_bytes, max_shard_records=max_records
    )


@pytest.mark.parametrize(
    ("limits", "size", "records", "exceeds"),
    [
        ((None, None), 1 << 60, 1 << 60, False),
        ((100, None), 100, 9, False),
        ((100, None), 101, 1, True),
        ((None, 5), 1 << 60, 5, False),
        ((None, 5), 1, 6, True),
        ((100, 5), 101, 5, True),
    ],
)
def test_a_shard_may_be_as_large_as_its_limits(
    limits: tuple[int | None, int | None], size: int, records: int, exceeds: bool
) -> None:
    assert target(*limits).exceeds(size, records) is exceeds


@given(
    lengths=st.lists(st.integers(17, BLOCK_BYTES // 2), min_size=1, max_size=20),
    size=st.integers(0, 4 * BLOCK_BYTES),
    records=st.integers(0, 50),
    max_bytes=st.none() | st.integers(1, 4 * BLOCK_BYTES),
    max_records=st.none() | st.integers(1, 50),
)
def test_as_many_records_fit_as_stay_below_the_limits_and_one_more_would_not(
    lengths: list[int], size: int, records: int, max_bytes: int | None, max_records: int | None
) -> None:
    limited = target(max_bytes, max_records)
    sums = np.cumsum(np.array(lengths, np.int64))
    count = limited.count_fitting(sums, size, records)
    assert 1 <= count <= len(lengths)
    if count > 1:
        assert sums[count - 1] <= BLOCK_BYTES
        assert not limited.exceeds(size + int(sums[count - 1]), records + count)
    if count < len(lengths):
        next_one = int(sums[count])
        assert next_one > BLOCK_BYTES or limited.exceeds(size + next_one, records + count + 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pattern": ""}, "the name to write is ''"),
        ({"pattern": "x", "max_shard_bytes": 1}, "gives all shards the same name"),
        ({"pattern": "x", "num_shards": 2}, "gives all shards the same name"),
        ({"pattern": NAME, "num_shards": 2, "max_shard_records": 1}, "exclude each other"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ShardTarget(options=OPTIONS, **arguments)  # type: ignore[arg-type]


def test_compressed_shards_have_no_index() -> None:
    with pytest.raises(ValueError, match="compressed shards have no index"):
        ShardTarget(pattern="x", options=TFRecordOptions.of("GZIP"), index="x.index")


@pytest.mark.parametrize(
    ("arguments", "several"),
    [
        ({"pattern": "x"}, False),
        ({"pattern": NAME}, True),
        ({"pattern": "x", "manifest": "x.json"}, True),
        ({"pattern": "x", "index": "x.index"}, True),
    ],
)
def test_several_objects_must_appear_together(arguments: dict[str, str], several: bool) -> None:
    assert ShardTarget(options=OPTIONS, **arguments).has_several_objects is several  # type: ignore[arg-type]
