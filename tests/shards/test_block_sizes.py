"""How many bytes of a shard are received at a time."""

from streamrec.shards.block_sizes import BlockSizes
from streamrec.shards.options import ShardPlace

KIB = 1 << 10
MIB = 1 << 20


def sizes_of(block_bytes: int = MIB, group: int = 1) -> BlockSizes:
    return BlockSizes(block_bytes=block_bytes, block_records=group, start=ShardPlace())


def test_blocks_grow_from_64_kib_to_their_full_size() -> None:
    sizes = sizes_of()
    grown = [sizes.next(ShardPlace(), held=0, wants=12, is_there=True) for _ in range(5)]
    assert grown == [64 * KIB, 256 * KIB, MIB, MIB, MIB]


def test_blocks_smaller_than_64_kib_do_not_grow() -> None:
    sizes = sizes_of(block_bytes=1000)
    assert [sizes.next(ShardPlace(), held=0, wants=12, is_there=True) for _ in range(2)] == [
        1000,
        1000,
    ]


def test_long_record_of_a_shard_that_has_it_gets_all_its_memory() -> None:
    assert sizes_of().next(ShardPlace(), held=0, wants=100 * MIB, is_there=True) == 100 * MIB


def test_long_record_that_may_be_a_lie_gets_memory_as_its_bytes_arrive() -> None:
    sizes = sizes_of()
    assert sizes.next(ShardPlace(), held=0, wants=1 << 40, is_there=False) == 16 * MIB
    assert sizes.next(ShardPlace(), held=20 * MIB, wants=1 << 40, is_there=False) == 20 * MIB


def test_block_ends_after_whole_groups_of_records() -> None:
    sizes = sizes_of(block_bytes=100_000, group=10)
    for _ in range(2):
        sizes.next(ShardPlace(), held=0, wants=12, is_there=True)
    size = sizes.next(ShardPlace(40_000, 40), held=0, wants=12, is_there=True)
    assert size == 120_000 + 10_000 // 32, "twelve groups of ten records of 1,000 bytes, and a bit"


def test_group_longer_than_two_blocks_is_not_held_together() -> None:
    sizes = sizes_of(block_bytes=100_000, group=1000)
    for _ in range(2):
        sizes.next(ShardPlace(), held=0, wants=12, is_there=True)
    assert sizes.next(ShardPlace(40_000, 40), held=0, wants=12, is_there=True) == 100_000
    assert sizes.most_bytes == 200_000


def test_restart_measures_groups_from_the_new_place() -> None:
    sizes = sizes_of(block_bytes=100_000, group=10)
    for _ in range(2):
        sizes.next(ShardPlace(), held=0, wants=12, is_there=True)
    sizes.restart(ShardPlace(40_000, 40))
    size = sizes.next(ShardPlace(60_000, 50), held=0, wants=12, is_there=True)
    assert size == 120_000 + 20_000 // 32, "six groups of ten records of 2,000 bytes"
