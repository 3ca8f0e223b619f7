"""global_shuffle: what comes, in which order, for any number of ranks; where a state goes on; bad
networks.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice, product
from math import lcm
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import RetryPolicy, TFRecordDataset, write_index_sync
from streamrec.errors import (
    CorruptRecordError,
    ManifestError,
    ObjectChangedError,
    PositionMismatchError,
)
from streamrec.pipeline.engine.states import digest_state, sketch
from streamrec.pipeline.sources.global_shuffle import source
from streamrec.pipeline.sources.global_shuffle.lanes import Cells, Lane
from streamrec.pipeline.sources.global_shuffle.order import Numbers
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.shards.manifest import ShardInfo
from streamrec.tfrecord import BLOCK, PackedLengths
from tests.effort import example_count
from tests.pipeline.stored_shards import Indexed, indexed, numbered
from tests.runs import flip_bit, in_new_interpreter, until_error, write_shards
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore
from tests.servers.resuming import stop_after

pytestmark = pytest.mark.filterwarnings("ignore:window_bytes and slot_groups")

COUNTS = [90, 0, 200, 33, 5]
QUALITIES = ["exact", "blocks"]

MAX_READERS = 16
"""Of a random job: ranks times loader workers."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    return indexed(tmp_path_factory.mktemp("data"), numbered(COUNTS))


def all_records() -> list[bytes]:
    return sorted(record for shard in numbered(COUNTS) for record in shard)


def global_batches(parts: list[list[list[bytes]]]) -> list[list[bytes]]:
    """The global batches of all ranks' batches."""
    longest = max(map(len, parts))
    return [
        [record for part in parts if step < len(part) for record in part[step]]
        for step in range(longest)
    ]


def batches(
    dataset: streamrec.Dataset[Any], state: dict[str, Any] | None = None
) -> list[list[bytes]]:
    return [list(frames) for frames in dataset.iterate(state)]


@pytest.mark.parametrize("quality", QUALITIES)
def test_each_record_once_and_another_order_each_epoch(data: Indexed, quality: str) -> None:
    """Iterating again is the next epoch; the same epoch is the same order."""
    dataset = data.shuffled(quality=quality)
    first, second = list(dataset), list(dataset)
    assert sorted(first) == sorted(second) == all_records()
    assert first != second
    assert list(data.shuffled(quality=quality).with_options(epoch=1)) == second
    assert list(data.shuffled(quality=quality).repeat(2)) == first + second
    assert list(data.shuffled(seed=8, quality=quality)) != first


def test_a_state_is_small_and_the_same_on_all_ranks(data: Indexed) -> None:
    """Seed, epoch, position and digest of the index; whatever stages follow."""

    def lengths(rank: int, quality: str) -> streamrec.Dataset[Any]:
        return data.shuffled(quality=quality, global_batch_size=24, rank=rank, world_size=8).map(
            len
        )

    for quality in QUALITIES:
        states = [stop_after(lengths(rank, quality).prefetch(2), 3)[1] for rank in range(8)]
        assert states == states[:1] * 8
        assert len(json.dumps(states[0])) < 1000
        states = [
            stop_after(lengths(rank, quality).shuffle(2).prefetch(2), 1)[1] for rank in range(2)
        ]
        assert states[0]["position"]["seed"] == states[1]["position"]["seed"]


def state_after(dataset: streamrec.Dataset[Any], step: int) -> dict[str, Any]:
    """The state after some elements, or after all if there are fewer."""
    with dataset.iterate() as run:
        list(islice(run, step))
        return run.state_dict()


@pytest.mark.parametrize("number", range(example_count(120)))
def test_ranks_of_a_random_job_read_each_record_once_and_resume_with_other_ranks(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random job: the union of its ranks, its global batches, and how it goes on with other ranks
    and workers.
    """
    chance = Random(number)
    counts = [chance.choice([0, 1, chance.randint(2, 90)]) for _ in range(chance.randint(1, 6))]
    shards = numbered(counts, chance.choice([1, 30, 200]))
    data, total = indexed(tmp_path, shards), sum(counts)
    sizes = [chance.randint(1, 16) for _ in range(3)]
    unit = lcm(*sizes)
    batch = unit * chance.randint(1, max(1, 40 // unit))
    told: dict[str, Any] = {
        "seed": chance.randint(0, 99),
        "quality": chance.choice(QUALITIES),
        "global_batch_size": batch,
        "even": chance.choice([None, None, "drop", "pad", "cycle"]),
        "block_bytes": chance.randint(1, 3000),
    }
    if chance.random() < 0.3:  # the earlier order of blocks
        told["window_bytes"] = chance.randint(1, 9000)
        told["slot_groups"] = chance.choice([None, 1, batch, sizes[0]])
    epoch = chance.randint(0, 3)

    def ranks(size: int, state: dict[str, Any] | None = None) -> list[list[list[bytes]]]:
        """What each rank's loader gives: of its workers in turn, until one has no more."""
        found = []
        workers = chance.randint(1, max(1, min(4, MAX_READERS // size)))
        for rank in range(size):
            dataset = data.shuffled(**told, rank=rank, world_size=size)
            parts = []
            for worker in range(workers):
                here = worker, workers
                monkeypatch.setattr(source, "worker_here", partial(tuple, here))
                parts.append(batches(dataset.with_options(epoch=epoch), state))
            monkeypatch.undo()
            found.append([part[i] for i in range(len(parts[0])) for part in parts if i < len(part)])
        return found

    whole = batches(data.shuffled(**told, rank=0, world_size=1).with_options(epoch=epoch))
    found = sorted(record for batch in whole for record in batch)
    wanted = sorted(record for shard in shards for record in shard)
    if told["even"] is None:
        assert found == wanted
    elif told["even"] == "drop":
        assert len(found) == len(set(found)) == total // batch * batch
    else:
        assert set(found) == set(wanted)
        assert len(found) == -(-total // batch) * batch
    assert global_batches(ranks(sizes[0])) == whole
    step = chance.randint(0, len(whole))
    begun = [data.shuffled(**told, rank=rank, world_size=sizes[1]) for rank in range(sizes[1])]
    states = [state_after(dataset.with_options(epoch=epoch), step) for dataset in begun]
    assert global_batches([*ranks(sizes[2], states[0]), []]) == whole[step:]
    if step < len(whole):
        assert states.count(states[0]) == len(states)


def test_single_records_go_on_with_other_ranks(data: Indexed) -> None:
    """Without a global batch size each rank has one record a step."""
    for quality in QUALITIES:
        whole = list(data.shuffled(quality=quality))

        def rank(number: int, size: int, quality: str = quality) -> streamrec.Dataset[Any]:
            return data.shuffled(quality=quality, rank=number, world_size=size).with_options(
                epoch=0
            )

        parts = [list(rank(number, 4)) for number in range(4)]
        assert [parts[index % 4][index // 4] for index in range(len(whole))] == whole
        state = state_after(rank(1, 4), 15)
        rest = [list(rank(number, 7).iterate(state)) for number in range(7)]
        assert [rest[index % 7][index // 7] for index in range(len(whole) - 60)] == whole[60:]


@pytest.mark.parametrize("quality", QUALITIES)
def test_stages_after_it_take_batches(data: Indexed, quality: str) -> None:
    """Elements are batches, which map, unbatch and rebatch take as any others."""
    dataset = data.shuffled(quality=quality, global_batch_size=24)
    assert [len(frames) for frames in dataset] == [24] * 13 + [16]
    records = list(dataset.with_options(epoch=0).unbatch())
    assert sorted(records) == all_records()
    assert next(list(frames) for frames in dataset.with_options(epoch=0).rebatch(7)) == records[:7]


def test_a_changed_index_and_a_tampered_state(data: Indexed, tmp_path: Path) -> None:
    """One clear error each."""
    state = state_after(data.shuffled(), 1)
    other = indexed(tmp_path, numbered([9, 9]))
    with pytest.raises(PositionMismatchError, match="another pipeline"):
        next(other.shuffled().iterate(state))
    folder = Path(data.pattern).parent
    shards = numbered(COUNTS)
    moved = indexed(tmp_path, [shards[0], shards[1], shards[2], shards[4], shards[3]])
    renamed = json.loads(json.dumps(state).replace(str(folder), str(tmp_path)))
    del renamed["digest"]
    renamed["names"] = [sketch((moved.pattern,))]
    renamed["digest"] = digest_state(renamed)
    with pytest.raises(PositionMismatchError, match="index of digest"):
        next(moved.shuffled().iterate(renamed))
    state["position"]["source"]["position"] += 1
    with pytest.raises(PositionMismatchError, match="was changed since it was saved"):
        next(data.shuffled().iterate(state))


def test_an_index_of_other_shards(data: Indexed, tmp_path: Path) -> None:
    """The error names a shard that the index lacks."""
    other = indexed(tmp_path, numbered([9, 9]))
    dataset = streamrec.TFRecordDataset(data.pattern).global_shuffle(1, index=other.url)
    with pytest.raises(ManifestError, match=r"it lacks .*000.tfrecord"):
        list(dataset)


@pytest.mark.parametrize("quality", QUALITIES)
def test_elements_before_damage_are_given(tmp_path: Path, quality: str) -> None:
    """The error names the shard and the record; elements before it in the order are given."""
    whole = list(indexed(tmp_path, numbered([50, 50])).shuffled(quality=quality))
    path = tmp_path / "001.tfrecord"
    flip_bit(path, path.read_bytes().index(b"1.30."))
    data = Indexed(str(tmp_path / "*.tfrecord"), str(tmp_path / "train.index"))
    streamrec.write_index_sync(
        data.pattern, data.url, update=False
    )  # from headers alone: it does not see the damage
    found, _ = until_error(data.shuffled(quality=quality), CorruptRecordError, r"001\.tfrecord")
    assert found == whole[: len(found)]


def test_a_shard_that_was_written_since(tmp_path: Path) -> None:
    """It is refused, whatever it holds."""
    data = indexed(tmp_path, numbered([50, 50]))
    (tmp_path / "001.tfrecord").write_bytes(streamrec.encode_records(numbered([50, 50])[1][:-1]))
    with pytest.raises(streamrec.errors.ObjectChangedError, match=r"001\.tfrecord.*index --update"):
        list(data.shuffled())


def test_ranks_and_memory_that_do_not_fit(data: Indexed) -> None:
    with pytest.raises(ValueError, match="number of ranks, 5"):
        list(data.shuffled(global_batch_size=12, rank=0, world_size=5))
    with pytest.raises(ValueError, match="memory_budget"):
        list(data.shuffled(quality="blocks", block_bytes=1 << 40).with_options(memory_budget=5000))


POLICY = RetryPolicy(attempts=30, backoff_base=0.01, backoff_cap=0.05, stall_timeout=0.5)
FAULTS = {
    "breaks": Faults(seed=3, first_byte=0, jitter=0, reset=0.3, cut=0.2),
    "refusals": Faults(seed=4, first_byte=0, jitter=0, unavailable=0.15, truncate=0.2),
    "wrong ranges": Faults(
        seed=5, first_byte=0, jitter=0, wrong_content_range=0.3, ignore_range=0.3
    ),
    "stalls": Faults(seed=6, first_byte=0, jitter=0, stall=0.1, slow=0.1, slow_first_byte=0.3),
}


@pytest.fixture(scope="module")
def shards() -> list[list[bytes]]:
    draw = np.random.default_rng(2)
    return [[draw.bytes(int(size)) for size in draw.integers(0, 60_000, 60)] for _ in range(3)]


@pytest.fixture
def store(tmp_path: Path, shards: list[list[bytes]]) -> Iterator[ObjectStore]:
    write_shards(tmp_path / "bucket", shards, "{}.tfrecord")
    with ObjectStore(tmp_path) as store:
        write_index_sync(
            "s3://bucket/*.tfrecord", f"{tmp_path}/x.index", storage_options=store.options()
        )
        (tmp_path / "bucket" / "x.index").write_bytes((tmp_path / "x.index").read_bytes())
        yield store


def shuffled(
    store: ObjectStore, quality: str, index: str = "s3://bucket/x.index"
) -> streamrec.Dataset[Any]:
    dataset: Any = TFRecordDataset(
        "s3://bucket/*.tfrecord", storage_options=store.options(), retry=POLICY
    )
    blocks: dict[str, Any] = {"quality": quality, "block_bytes": 80_000}
    dataset = dataset.global_shuffle(3, index=index, global_batch_size=20, **blocks)
    return dataset.with_options(
        epoch=0, memory_budget=4 << 20
    )  # little is fetched at a time: many requests


@pytest.mark.parametrize("quality", ["exact", "blocks"])
@pytest.mark.parametrize("storm", FAULTS)
def test_storms_change_no_byte_and_no_place(store: ObjectStore, quality: str, storm: str) -> None:
    """Also where the job goes on from a state in the middle of the storm."""
    calm = [list(batch) for batch in shuffled(store, quality)]
    store.faults = FAULTS[storm]
    found, state = stop_after(shuffled(store, quality), 4)
    found += shuffled(store, quality).iterate(state)
    assert [list(batch) for batch in found] == calm
    assert store.counters.by_fault


def test_a_shard_that_changes_under_way(store: ObjectStore, tmp_path: Path) -> None:
    """Elements before it come; then one error, which names the shard and what to run."""
    index = f"{tmp_path}/x.index"
    calm = [list(batch) for batch in shuffled(store, "blocks", index)]
    store.faults = replace(NO_FAULTS, script=("", "change"))
    told = r"s3://bucket/\d\.tfrecord.*streamrec index --update"
    found, _ = until_error(shuffled(store, "blocks", index), ObjectChangedError, told)
    assert [list(batch) for batch in found] == calm[: len(found)]


FIRST_BATCH = """
import resource, sys
import numpy
from streamrec import TFRecordDataset
from streamrec.pipeline import sources

pattern, index, quality, budget, verify = sys.argv[1:]
def peak_mib(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak_mib()
dataset = TFRecordDataset(pattern, verify=bool(verify)).with_options(memory_budget=int(budget) << 20)
shuffled = dataset.global_shuffle(7, index=index, global_batch_size=256, quality=quality, block_bytes=1 << 19)
batches = iter(shuffled)
records = sum(len(next(batches)) for _ in range(3))
print(records, peak_mib() - before)
"""  # noqa: E501


def first_batches(
    pattern: str, index: str, quality: str, budget: int, verify: str = "yes"
) -> tuple[int, int]:
    """How many records the first three batches have, and by how many MiB the process grew."""
    records, grown = map(
        int, in_new_interpreter(FIRST_BATCH, pattern, index, quality, budget, verify).split()
    )
    return records, grown


def test_an_exact_order_holds_no_more_than_its_budget(tmp_path: Path) -> None:
    """Wanted records are near each other, so that nearly all of the 170 MiB are read for each run
    of steps.
    """
    write_shards(tmp_path, [[b"x" * 100] * 100_000] * 16)
    index = f"{tmp_path}/x.index"
    write_index_sync(f"{tmp_path}/s-*", index)
    records, grown = first_batches(f"{tmp_path}/s-*", index, "exact", 32)
    assert records == 768
    assert grown < 32 + 120


@pytest.mark.parametrize("quality", ["exact", "blocks"])
def test_a_thousand_million_records(tmp_path: Path, quality: str) -> None:
    """Sparse files and an index of records that were never written."""
    many = 1_000_000_000 // 16
    size = 100
    shards = []
    counts = np.full(-(-many // 1024), 1024)
    counts[-1] = many - 1024 * (len(counts) - 1)
    blocks = np.zeros(len(counts), BLOCK)
    blocks["base"], blocks["end"] = size, np.cumsum(counts * (size + 16))
    for number in range(16):
        path = tmp_path / f"shard-{number:02}"
        with path.open("wb") as file:
            file.truncate(many * (size + 16))
        info = ShardInfo(str(path), many, many * (size + 16), None)
        shards.append(IndexedShard(info, PackedLengths(b"", blocks, many)))
    index = tmp_path / "x.index"
    index.write_bytes(encode_index(str(index), shards))
    records, grown = first_batches(f"{tmp_path}/shard-*", str(index), quality, 256, "")
    assert records == 768
    assert grown < 300 + 256


def test_states_of_the_earlier_order_of_blocks_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch that was begun ends in its order. States that an earlier version saved."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path, numbered(COUNTS), "x-{}.tfrecord")
    write_index_sync("x-*.tfrecord", "x.index")

    def told(element: Any) -> Any:
        return (
            element.split(b"x")[0].decode()
            if isinstance(element, bytes)
            else [told(record) for record in element]
        )

    for kept in json.loads(EARLIER.read_text()):
        dataset = TFRecordDataset("x-*.tfrecord").global_shuffle(
            7, index="x.index", **kept["arguments"]
        )
        assert [told(element) for element in dataset.iterate(kept["state"])] == kept["rest"]


EARLIER = Path(__file__).parent / "earlier_states.json"
"""Written before blocks were ordered in lanes."""


def test_a_state_of_a_later_order_is_refused(data: Indexed) -> None:
    dataset = data.shuffled(quality="blocks", global_batch_size=24)
    state = state_after(dataset, 2)
    assert state["position"]["source"]["order"] == 2
    state["position"]["source"]["order"] = 3
    del state["digest"]
    state["digest"] = digest_state(state)
    with pytest.raises(PositionMismatchError, match="order 3, which this release"):
        next(dataset.iterate(state))


def test_deprecated_arguments_say_so(data: Indexed) -> None:
    """They are accepted, with a warning at the caller's line."""
    for more in ({"window_bytes": 4000}, {"slot_groups": 4}):
        with pytest.warns(DeprecationWarning, match="each block once") as warned:
            dataset = data.shuffled(quality="blocks", global_batch_size=24, **more)
        assert Path(warned[0].filename).name == "stored_shards.py"
        assert sorted(dataset.unbatch()) == all_records()


@pytest.mark.parametrize(
    ("ranks", "workers", "batch"), [(1, 1, 20), (1, 8, 20), (5, 1, 20), (40, 1, 40), (3, 5, 33)]
)
def test_a_store_sends_each_byte_once(
    store: ObjectStore, tmp_path: Path, ranks: int, workers: int, batch: int
) -> None:
    """To all ranks and workers together; the index is not counted."""
    found = []
    store.clear()
    for rank, worker in product(range(ranks), range(workers)):
        shards = TFRecordDataset(BUCKET, storage_options=store.options())
        dataset = shards.global_shuffle(
            3,
            index=f"{tmp_path}/x.index",
            global_batch_size=batch,
            quality="blocks",
            rank=rank,
            world_size=ranks,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "worker_here", partial(tuple, (worker, workers)))
            found += dataset.unbatch()
    assert store.wait_idle()
    assert len(found) == len(set(found)) == 180
    sent = sum(entry.sent for entry in store.log if entry.kind == "read")
    sizes = [path.stat().st_size for path in tmp_path.glob("bucket/*.tfrecord")]
    assert sum(sizes) <= sent <= 1.1 * sum(sizes)


BUCKET = "s3://bucket/*.tfrecord"


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (2, 3)])
def test_the_order_of_a_block_is_computed_once(
    data: Indexed, monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int
) -> None:
    """Not for each batch that takes some of its records, and the batches are the same."""
    dataset = data.shuffled(quality="blocks", global_batch_size=24, rank=rank, world_size=ranks)
    whole = batches(dataset.with_options(epoch=0))
    computed = []
    offsets = Lane.offsets

    def count(lane: Lane, part: int, cells: Cells, indices: Numbers) -> Numbers:
        computed.append((lane.key, part))
        return offsets(lane, part, cells, indices)

    monkeypatch.setattr(Lane, "offsets", count)
    monkeypatch.setattr(source, "BLOCKS_CHUNK_BYTES", 1)
    assert batches(dataset.with_options(epoch=0)) == whole
    assert computed
    assert len(computed) == len(set(computed))


def test_workers_that_would_read_again_are_idle(
    data: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 5 workers 4 read, and of 7 six: the global batches are the same."""
    dataset = data.shuffled(quality="blocks", global_batch_size=24, rank=0, world_size=1)
    whole = batches(dataset.with_options(epoch=0))
    for workers, reading in ((5, 4), (7, 6)):
        parts = []
        for worker in range(workers):
            monkeypatch.setattr(source, "worker_here", partial(tuple, (worker, workers)))
            parts.append(batches(dataset.with_options(epoch=0)))
        assert [bool(part) for part in parts] == [True] * reading + [False] * (workers - reading)
        assert [parts[step % reading][step // reading] for step in range(len(whole))] == whole


def test_single_records_that_are_read_again_are_reported(
    data: Indexed, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first request for a record, with how often, and what to pass."""
    dataset = data.shuffled(quality="blocks", rank=0, world_size=1009)
    list(dataset)
    assert "1009 ranks read each byte about 1009 times: pass global_batch_size=1009" in caplog.text
    caplog.clear()
    list(data.shuffled(quality="blocks", rank=0, world_size=96))
    list(data.shuffled(quality="blocks", rank=0, world_size=1009, global_batch_size=1009))
    assert "times" not in caplog.text
