"""The memory budget: how large it is, how it is dealt out, and what a consumer that stops leaves in
memory.
"""

import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import AUTOTUNE, Dataset, Frames, TFRecordDataset
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import NumberedPositions
from streamrec.pipeline.engine.budget import (
    CONSUMER,
    Share,
    cgroup_limits,
    default_budget,
    machine_memory,
)
from streamrec.pipeline.engine.description import Chain, Options, Source
from streamrec.pipeline.engine.run import RunContext
from streamrec.storage.ledger import AllRuns, RunAccount, SetAside
from tests.effort import drawn_examples
from tests.runs import in_new_interpreter, write_shards
from tests.servers.resuming import stop_after

MIB = 1 << 20
CHUNK = 1 << 16
RECORDS = 8
MANY = 1024


class MadeElements:
    """What sources made: where the consumer takes but one element, all of it is held somewhere.

    Attributes:
        nbytes: Bytes of records, in all.
        allowed: The budgets that reached the sources.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self.allowed: list[int] = []


@dataclass(frozen=True)
class ManyChunks(Source):
    """A source that gives many more chunks than any budget here allows, of `CHUNK` bytes each, and
    holds none.
    """

    made: MadeElements = field(compare=False)

    def lines(self) -> Iterator[str]:
        yield "ManyChunks"

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        self.made.allowed.append(context.budget)
        for number in range(0, MANY * RECORDS, RECORDS):
            await anyio.lowlevel.checkpoint()
            self.made.nbytes += CHUNK
            yield Chunk(
                Frames.of([bytes(CHUNK // RECORDS)] * RECORDS), NumberedPositions(number), CHUNK
            )


def many_chunks(made: MadeElements) -> Dataset[Any]:
    return Dataset(Chain(ManyChunks(made)))


async def return_later(*records: Any) -> Any:
    await anyio.lowlevel.checkpoint()
    return records


Verb = Callable[[Dataset[Any]], Dataset[Any]]

VERBS: list[Verb] = [
    lambda ds: ds.prefetch(),
    lambda ds: ds.prefetch(buffer_bytes=300_000),
    lambda ds: ds.prefetch(buffer_bytes=1 << 40),
    lambda ds: ds.map(return_later, 3),
    lambda ds: ds.map(return_later, AUTOTUNE, deterministic=False),
    lambda ds: ds.repeat(3),
    lambda ds: ds.take(1 << 40),
    lambda ds: ds.concatenate(ds),
    lambda ds: ds.cache(),
    lambda ds: Dataset.sample_from_datasets([ds, ds.prefetch()], seed=1),
]


def pipelines(made: MadeElements, verbs: list[Verb] = VERBS) -> st.SearchStrategy[Dataset[Any]]:
    """Random descriptions over sources that give plenty."""
    leaf = st.one_of(
        st.builds(lambda: many_chunks(made)),
        st.integers(1, 4).map(
            lambda cycle: Dataset.range(9).interleave(
                lambda _: many_chunks(made), cycle_length=cycle, block_length=3
            )
        ),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda dataset, verb: verb(dataset), inner, st.sampled_from(verbs)),
            st.lists(inner, min_size=1, max_size=3).map(tuple).map(Dataset.zip),
        ),
        max_leaves=4,
    )


async def take_one_and_stall(dataset: Dataset[Any]) -> None:
    """Takes an element, and stops until nothing moves any more."""
    async with dataset.aiterate() as elements:
        await anext(elements)
        await anyio.wait_all_tasks_blocked()


@given(data=st.data(), budget=st.sampled_from([1 * MIB, 4 * MIB, 16 * MIB]))
@drawn_examples(40)
def test_a_consumer_that_stops_leaves_no_more_than_the_budget(
    data: st.DataObject, budget: int
) -> None:
    made = MadeElements()
    verbs = [*VERBS, lambda ds: ds.shuffle(10**9)]  # which fills its share
    dataset = data.draw(pipelines(made, verbs)).with_options(memory_budget=budget)
    lines = list(dataset.chain.lines())
    tasks = 1 + len(lines) + 4 * sum("Interleave" in line for line in lines)
    anyio.run(take_one_and_stall, dataset)
    in_hands = 3 * CHUNK * tasks  # what each task has in its hands, and chunks that fit no share
    assert 0 < made.nbytes <= budget + in_hands


@given(data=st.data(), budget=st.integers(1, 1 << 40))
@drawn_examples(60)
def test_shares_never_sum_up_to_more_than_the_budget(data: st.DataObject, budget: int) -> None:
    made = MadeElements()
    dataset = data.draw(pipelines(made)).with_options(memory_budget=budget)
    taken: list[int] = []
    take = RunContext.take

    def counted(context: RunContext, share: Any) -> tuple[SetAside, RunContext]:
        own, rest = take(context, share)
        assert own.nbytes >= 0
        assert own.nbytes + rest.budget == context.budget
        assert own in context.session.ledger.shares
        taken.append(own.nbytes)
        return own, rest

    async def first() -> int:
        async with dataset.aiterate() as elements:
            await anext(elements)
            return elements.memory_budget

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunContext, "take", counted)
        assert anyio.run(first) == budget
    assert CONSUMER.of(budget) + sum(taken) + sum(made.allowed) <= max(
        budget, 2
    )  # of one byte two have one each


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("calls", [4, AUTOTUNE])
def test_results_that_are_larger_than_their_input_stay_within_the_share(
    calls: int, deterministic: bool
) -> None:
    size, made = 100_000, []

    async def enlarged(record: bytes) -> bytes:
        made.append(record)
        return bytes(size)

    small = Dataset.from_tensor_slices([b"x"] * 2000).with_options(memory_budget=16 * MIB)
    anyio.run(take_one_and_stall, small.map(enlarged, calls, deterministic))
    shares = (
        4 * MIB + 11 * MIB // 8
    )  # the consumer's queue, and half of the map's, a quarter of what is left
    before_it_was_known = 8 * size
    assert shares // 2 <= len(made) * size <= shares + before_it_was_known + 2 * 4 * size


def test_a_share_is_a_part_and_at_most_its_limit() -> None:
    assert [Share(4, 100).of(budget) for budget in (0, 3, 399, 400, 10**9)] == [0, 0, 99, 100, 100]
    assert Share(3).of(10**9) == 333_333_333


def test_the_default_is_a_share_of_the_machines_memory() -> None:
    memory = machine_memory()
    assert memory is not None
    assert default_budget() == max(64 * MIB, min(memory // 8, 1024 * MIB))
    with Dataset.range(3).iterate() as elements:
        assert elements.memory_budget == default_budget()
    with Dataset.range(3).with_options(memory_budget=12345).iterate() as elements:
        assert elements.memory_budget == 12345


CONTROL_GROUPS = {
    "2": (
        "0::/a/b\n",
        {"a/b/memory.max": "max\n", "a/memory.max": "500\n", "memory.max": "700\n"},
        [500, 700],
    ),
    "2, a container": ("0::/\n", {"memory.max": "900\n"}, [900]),
    "2, of the host": ("0::/../../x\n", {"memory.max": "900\n"}, [900]),
    "1": (
        "12:cpu:/z\n5:memory,other:/a\n0::/q\n",
        {"memory/a/memory.limit_in_bytes": "300", "memory/memory.limit_in_bytes": str(1 << 62)},
        [300, 1 << 62],
    ),
    "none": ("", {}, []),
}


@pytest.mark.parametrize("kind", CONTROL_GROUPS)
def test_limits_of_control_groups(tmp_path: Path, kind: str) -> None:
    membership, files, limits = CONTROL_GROUPS[kind]
    (tmp_path / "cgroup").write_text(membership)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    assert list(cgroup_limits(tmp_path / "cgroup", tmp_path / "fs")) == limits
    assert list(cgroup_limits(tmp_path / "not on Linux", tmp_path / "fs")) == []


def test_options_of_several_datasets() -> None:
    unsaid = Options()
    small = Options(True, 10)
    loose = Options(False, 30)
    assert Options.of([unsaid, unsaid]) == unsaid
    assert Options.of([unsaid, small]) == small
    assert Options.of([small, loose, unsaid]) == Options(False, 30)
    zipped = Dataset.zip(Dataset.range(3).with_options(deterministic=False), Dataset.range(3))
    assert zipped.options == Options(deterministic=False)
    assert zipped.with_options(memory_budget=7).options == Options(False, 7)


def test_a_state_is_good_for_another_budget_and_other_options(tmp_path: Path) -> None:
    records = [b"%d" % number for number in range(100)]
    dataset = TFRecordDataset(write_shards(tmp_path, [records]), num_parallel_reads=AUTOTUNE)
    head, state = stop_after(dataset, 40)
    other = dataset.with_options(memory_budget=1 * MIB, deterministic=False)
    assert head + list(other.iterate(state)) == records


def test_options_reach_the_shards(tmp_path: Path) -> None:
    files = write_shards(
        tmp_path, [[b"%d.%d" % (name, index) for index in range(9)] for name in range(20)]
    )
    ordered = list(TFRecordDataset(files, num_parallel_reads=16))
    assert list(TFRecordDataset(files, num_parallel_reads=AUTOTUNE)) == ordered
    loose = list(TFRecordDataset(files, cycle_length=4).with_options(deterministic=False))
    assert loose != list(
        TFRecordDataset(files, cycle_length=4)
    )  # whole blocks of a shard at a time
    assert sorted(loose) == sorted(ordered)
    told = TFRecordDataset(files, cycle_length=16, deterministic=True).with_options(
        deterministic=False
    )
    assert list(told) == ordered


# What a process holds of long records, or for many iterators; and records come that do not fit.

MB = 1_000_000


READ = """
import re, sys
from pathlib import Path
import streamrec

def high_water_mark():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

pattern, reads, budget, iterators, records = sys.argv[1], *map(int, sys.argv[2:])
dataset = streamrec.TFRecordDataset(pattern, num_parallel_reads=reads).repeat().batch(1)
dataset = dataset.with_options(memory_budget=budget)
before, runs = high_water_mark(), [dataset.iterate() for _ in range(iterators)]
for run in runs:
    next(run)
for _ in range(records):
    next(runs[-1])
print(high_water_mark() - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process's peak of memory in /proc"
)
@pytest.mark.parametrize(
    ("size", "reads", "budget", "iterators", "records", "most"),
    [
        (40 * MB, 16, 20 * MB, 1, 6, 100 * MB),  # one at a time, and the one that the consumer has
        (40 * MB, 1, 100 * MB, 1, 6, 160 * MB),
        (4 * MB, 64, 60 * MB, 1, 80, 120 * MB),
        (
            MB // 10,
            8,
            64 * MB,
            16,
            200,
            200 * MB,
        ),  # all of them together: twice the budget, and a 64th each
    ],
)
def test_a_process_stays_within_the_budget(
    tmp_path: Path, size: int, reads: int, budget: int, iterators: int, records: int, most: int
) -> None:
    [shard] = write_shards(tmp_path, [[bytes(size)] * max(2, 40 * MB // size)])
    for number in range(1, reads):
        (tmp_path / f"s-{number}").hardlink_to(shard)
    assert int(in_new_interpreter(READ, f"{tmp_path}/*", reads, budget, iterators, records)) < most


LARGE_RECORDS: dict[str, Callable[[Dataset[Any]], Dataset[Any]]] = {
    "batches": lambda shards: shards.batch(3).unbatch(),
    "a shuffle": lambda shards: shards.shuffle(5, seed=1),
    "a prefetch and a map": lambda shards: (
        shards.prefetch(2).map(len, AUTOTUNE).map(lambda size: size)
    ),
    "zipped": lambda shards: Dataset.zip(shards, shards).map(lambda one, other: one),
    "nested": lambda shards: Dataset.range(3).interleave(lambda _: shards, cycle_length=3),
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", LARGE_RECORDS)
def test_records_that_are_larger_than_the_budget_still_come(
    tmp_path: Path, name: str, deterministic: bool
) -> None:
    """Also while another iterator is idle, and holds all that both may."""
    records = (
        [bytes([shard, row]) + bytes(200_000 if row % 3 else 90_000) for row in range(5)]
        for shard in range(7)
    )
    shards = TFRecordDataset(
        write_shards(tmp_path, records), num_parallel_reads=4, deterministic=deterministic
    )
    dataset = LARGE_RECORDS[name](shards)
    expected = list(dataset)
    small = dataset.with_options(memory_budget=100_000)
    with small.iterate() as idle, small.iterate() as run:
        first = next(idle)
        found, rest = list(run), [first, *idle]
    assert sorted(found) == sorted(rest) == sorted(expected)
    if deterministic and name != "a shuffle":  # which holds fewer
        assert found == expected


def test_asking_costs_the_same_next_to_thousands_of_runs() -> None:
    counted = 0

    def queued() -> int:
        nonlocal counted
        counted += 1
        return 0

    everything = AllRuns()
    runs = [RunAccount(1 << 20, queued, everything) for _ in range(2000)]
    for number in range(2000):
        runs[number % 10].fits(1 << 16)
    assert counted < 100 * 2000  # 2,000 times 2,000 if each call counted all runs
