"""Datasets of datasets: what they give, what stays columnar, what is refused, what runs beside
what, and states.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import streamrec
from streamrec import Dataset, TFRecordDataset
from streamrec.errors import PositionMismatchError
from streamrec.pipeline import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Position
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import Memo, SourceStores, session
from tests.pipeline.chains import small_blocks
from tests.runs import until_error, write_shards
from tests.servers.resuming import stop_after

pytestmark = pytest.mark.usefixtures("both_layouts")

SIZES = [5, 0, 9, 2, 7]
RECORDS = [
    [b"%d.%d" % (shard, index) * (1 + index % 3) for index in range(size)]
    for shard, size in enumerate(SIZES)
]
ALL = [record for records in RECORDS for record in records]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_shards(tmp_path, RECORDS)
    return str(tmp_path)


@pytest.mark.parametrize("cycle_length", [1, 2, 3, 8])
@pytest.mark.parametrize("block_length", [1, 2, 100])
def test_the_order_is_that_of_shards(folder: str, cycle_length: int, block_length: int) -> None:
    names = Dataset.list_files(f"{folder}/*")
    wanted = list(
        TFRecordDataset(f"{folder}/*", cycle_length=cycle_length, block_length=block_length)
    )
    assert list(names.interleave(TFRecordDataset, cycle_length, block_length)) == wanted
    assert list(names.interleave(small_blocks, cycle_length, block_length)) == wanted


def test_without_a_number_sixteen_take_turns() -> None:
    counts = Dataset.from_tensor_slices(np.arange(20) * 10)
    found = list(counts.interleave(lambda n: Dataset.range(n, n + 2)))
    assert found[:16] == list(range(0, 160, 10))
    assert found[16] == 1
    assert found == list(counts.interleave(lambda n: Dataset.range(n, n + 2), -1, 1, -1))


def test_flat_map_takes_pairs_and_may_be_nested() -> None:
    pairs = Dataset.zip(Dataset.range(3), Dataset.range(10, 13))
    assert list(pairs.flat_map(lambda one, two: Dataset.from_tensor_slices([one, two]))) == [
        0,
        10,
        1,
        11,
        2,
        12,
    ]
    nested = Dataset.range(4).flat_map(lambda n: Dataset.range(n).flat_map(Dataset.range))
    assert list(nested) == [0, 0, 0, 1]


def test_elements_of_different_kinds_stay_what_they_are() -> None:
    parts = [
        Dataset.range(3),
        Dataset.from_tensor_slices(np.arange(3.0)),
        Dataset.from_tensor_slices([b"a", b"b"]),
    ]
    cycle = Dataset.from_tensor_slices(np.arange(8) % 3)
    found = list(Dataset.choose_from_datasets(parts, cycle))
    assert [type(element) for element in found[:3]] == [np.int64, np.float64, bytes]
    assert found == [0, 0.0, b"a", 1, 1.0, b"b", 2, 2.0]
    lists = Dataset.range(3).interleave(lambda n: parts[int(n)], 3)
    assert [type(element) for element in lists] == [np.int64, np.float64, bytes] * 2 + [
        np.int64,
        np.float64,
    ]


def test_samples_follow_the_weights() -> None:
    count = 20_000
    parts = [Dataset.from_tensor_slices(np.full(count, at)) for at in range(4)]
    weights = np.array([4, 3, 2, 1])
    sampled = Dataset.sample_from_datasets(parts, weights, seed=11).take(count)
    (drawn,) = sampled.batch(count)
    shares = np.bincount(drawn, minlength=4) / count
    deviation = np.sqrt(weights / 10 * (1 - weights / 10) / count)
    assert (abs(shares - weights / 10) < 4 * deviation).all()
    follow = np.bincount(drawn[1:][drawn[:-1] == 0], minlength=4) / (drawn[:-1] == 0).sum()
    assert (abs(follow - weights / 10) < 8 * deviation).all()


def test_a_seed_says_the_choices() -> None:
    parts = [Dataset.range(100), Dataset.range(100, 200)]
    sample = partial(Dataset.sample_from_datasets, parts)
    assert list(sample(seed=3)) == list(sample(seed=3)) != list(sample(seed=4))
    assert list(sample()) != list(sample())
    fresh = partial(sample, seed=3, rerandomize_each_iteration=True)
    epochs = list(fresh().repeat(2))
    assert epochs[:200] == list(fresh()) != epochs[200:]
    for seed in (3, None):
        for rerandomize in (None, False):
            dataset = sample(seed=seed, rerandomize_each_iteration=rerandomize)
            same = list(dataset.repeat(2))
            assert same[:200] == same[200:]
            assert list(dataset) == list(dataset)
    assert list(Dataset.sample_from_datasets(parts, [0, 0])) == []


def test_names_are_listed_in_order_or_shuffled(folder: str) -> None:
    wanted = [f"{folder}/s-{shard}".encode() for shard in range(5)]
    assert list(Dataset.list_files(f"{folder}/*")) == wanted
    assert list(Dataset.list_files([f"{folder}/s-{{3..1}}", f"{folder}/s-[04]"])) == [
        wanted[i] for i in (3, 2, 1, 0, 4)
    ]
    (batch,) = Dataset.list_files(f"{folder}/*").batch(9)
    assert batch.dtype == object
    assert list(TFRecordDataset(batch)) == list(TFRecordDataset(wanted)) == ALL
    shuffled = list(Dataset.list_files(f"{folder}/*", seed=1).repeat(4))
    epochs = {tuple(shuffled[at : at + 5]) for at in range(0, 20, 5)}
    assert len(epochs) > 1
    assert {frozenset(epoch) for epoch in epochs} == {frozenset(wanted)}
    assert shuffled == list(Dataset.list_files(f"{folder}/*", True, 1).repeat(4))
    assert list(Dataset.list_files(f"{folder}/*", False, 1)) == wanted


def test_an_error_of_the_outer_chain_comes_again_after_resuming(folder: str) -> None:
    names = Dataset.list_files([f"{folder}/s-0", f"{folder}/s-2", f"{folder}/none-*"])
    dataset = names.interleave(small_blocks, 3)
    elements = dataset.iterate()
    found = list[bytes]()
    states = []
    with pytest.raises(streamrec.NotFoundError, match="no object matches"):
        for record in elements:
            found.append(record)
            states.append(elements.state_dict())
    assert found == [b"0.0", b"2.0"]
    for index, state in enumerate(states):
        rest, _ = until_error(dataset.iterate(state), streamrec.NotFoundError, "no object matches")
        assert rest == found[index + 1 :]


def test_other_names_are_refused(folder: str) -> None:
    names = Dataset.list_files(f"{folder}/*")
    _, state = stop_after(names, 1)
    (Path(folder) / "s-1").rename(Path(folder) / "t-1")
    with pytest.raises(
        PositionMismatchError, match=r"there were 5, and now there are 5; the next one was .*s-1, "
    ):
        list(Dataset.list_files(f"{folder}/*").iterate(state))
    (Path(folder) / "t-2").write_bytes(b"")
    with pytest.raises(PositionMismatchError, match="there were 5, and now there are 6"):
        list(Dataset.list_files(f"{folder}/*").iterate(state))


def test_another_function_or_fewer_elements_are_refused(folder: str) -> None:
    kinds = [small_blocks]

    def flexible(name: bytes) -> Dataset[Any]:
        return kinds[0](name)

    dataset = Dataset.list_files([f"{folder}/s-{{0..4}}"]).interleave(flexible, 2)
    _, state = stop_after(dataset, 1)
    kinds[0] = lambda name: small_blocks(name).skip(1)
    with pytest.raises(
        PositionMismatchError, match=r"flexible makes a different dataset of element 0 .*Skip"
    ):
        list(dataset.iterate(state))
    cut = Dataset.range(5).filter(lambda n: n < len(kinds) * 3).flat_map(Dataset.range)
    kinds *= 2
    elements = cut.iterate()
    state = [elements.state_dict() for _ in elements][-1]
    kinds.pop()
    with pytest.raises(
        PositionMismatchError, match=r"interleave has only 4 elements, but .* after 5"
    ):
        list(cut.iterate(state))


def test_any_order_resumes_without_loss(folder: str) -> None:
    dataset = Dataset.list_files(f"{folder}/*").interleave(small_blocks, 3, 2, deterministic=False)
    for count in range(len(ALL)):
        found, state = stop_after(dataset, count)
        assert Counter(found + list(dataset.iterate(state))) == Counter(ALL)


def test_choices_that_are_none_come_after_what_was_chosen() -> None:
    parts = [Dataset.range(9), Dataset.range(10, 19)]
    for wrong, match in ((2, "a choice is 2, but the 2 datasets"), (-1, "a choice is -1")):
        chosen = Dataset.choose_from_datasets(parts, Dataset.from_tensor_slices([0, 1, wrong, 0]))
        assert until_error(chosen, ValueError, match)[0] == [0, 10]
    for wrong in (
        Dataset.from_tensor_slices([0.5]),
        Dataset.from_tensor_slices([b"a"]),
        Dataset.zip(Dataset.range(2), Dataset.range(2)),
    ):
        with pytest.raises(TypeError, match="it must be the number of a dataset"):
            list(Dataset.choose_from_datasets(parts, wrong))
    assert list(Dataset.choose_from_datasets(parts, Dataset.range(2).map(int))) == [0, 10]


def failing_at_five(number: int) -> int:
    if number == 5:
        raise ZeroDivisionError("here")
    return number


def not_a_dataset(number: int) -> Any:
    return Dataset.range(3) if number else [1, 2, 3]


FAILING: list[tuple[Dataset[Any], list[int]]] = [
    (Dataset.range(3).flat_map(lambda n: Dataset.range(4 + n).map(failing_at_five)), [*range(4), *range(5), *range(5)]),  # noqa: E501
    (Dataset.range(2, 5).interleave(lambda n: Dataset.range(n, 9).map(failing_at_five), 3, 2), [2, 3, 3, 4, 4]),  # noqa: E501
    (Dataset.range(9).map(failing_at_five).flat_map(lambda n: Dataset.range(n, n + 2)), [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]),  # noqa: E501
    (Dataset.range(9).map(failing_at_five).flat_map(lambda n: Dataset.range(0)), []),
    (Dataset.choose_from_datasets(
        [Dataset.range(9).map(failing_at_five), Dataset.range(9)], Dataset.from_tensor_slices(np.arange(30) % 2)  # noqa: E501
    ), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
    (Dataset.choose_from_datasets([Dataset.range(9)] * 6, Dataset.range(9).map(failing_at_five)), [0, 0, 0, 0, 0]),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "wanted"), FAILING)
def test_an_error_comes_once_after_what_came_before(
    dataset: Dataset[Any], wanted: list[int]
) -> None:
    assert until_error(dataset, ZeroDivisionError)[0] == wanted


def test_a_function_that_makes_no_dataset_is_named() -> None:
    dataset = Dataset.range(1, -1, -1).interleave(not_a_dataset, 1)
    assert until_error(
        dataset, TypeError, "not_a_dataset returned a list where a Dataset is expected"
    )[0] == [0, 1, 2]


async def test_datasets_of_one_run_share_their_clients(folder: str) -> None:
    local = SourceStores({"auto_mkdir": True})
    async with session() as kept:
        outer = await kept.open("outer", local, 100, [f"{folder}/s-1"], Memo())
        async with kept.branch() as branch:
            inner = await branch.open(
                "inner", SourceStores({"auto_mkdir": True}), 50, [f"{folder}/*"], Memo()
            )
            assert inner.storages is outer.storages
            assert inner.listing is not outer.listing
            assert inner.storages.connections.room.limit == 150
            assert (
                await branch.open("other", SourceStores(), 0, [f"{folder}/*"], Memo()) is not inner
            )
        assert outer.storages.connections.room.limit == 100
        assert (
            await kept.open("inner", local, 0, [f"{folder}/s-1"], Memo())
        ).listing is not inner.listing


@dataclass(eq=False)
class Gate:
    """Where a `Gated` source waits, and where it tells that all its chunks went on."""

    opened: anyio.Event = field(default_factory=anyio.Event)
    passed: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True)
class Gated(Source):
    """Three chunks of five numbers each, after a gate opens."""

    first: int
    gate: Gate

    def lines(self) -> Iterator[str]:
        yield f"Gated({self.first})"

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        await self.gate.opened.wait()
        for start in range(self.first, self.first + 15, 5):
            yield Chunk(list(range(start, start + 5)), NoPositions(), 5)
        self.gate.passed.set()


class NoPositions:
    def at(self, index: int) -> Position:
        return {}


def gated() -> tuple[list[Gate], list[Dataset[Any]]]:
    gates = [Gate(), Gate(), Gate()]
    return gates, [Dataset(Chain(Gated(number * 100, gate))) for number, gate in enumerate(gates)]


GATED = [[number * 100 + index for index in range(15)] for number in range(3)]


def combined(datasets: list[Dataset[Any]]) -> list[tuple[Dataset[Any], list[int]]]:
    """Ways to join three datasets, and what they give."""
    rounds = [number for row in zip(*GATED, strict=True) for number in row]
    flat = [number for row in GATED for number in row]
    return [
        (Dataset.range(3).interleave(lambda n: datasets[n], 3), rounds),
        (Dataset.range(3).flat_map(lambda n: datasets[n]), flat),
        (
            Dataset.choose_from_datasets(datasets, Dataset.from_tensor_slices(np.arange(45) % 3)),
            rounds,
        ),
        (
            Dataset.zip(*datasets).flat_map(lambda *row: Dataset.from_tensor_slices(list(row))),
            rounds,
        ),
    ]


@pytest.mark.parametrize("way", range(4))
async def test_a_slow_one_does_not_idle_the_others(way: int) -> None:
    gates, datasets = gated()
    dataset, wanted = combined(datasets)[way]
    async with dataset.aiterate() as elements:
        with anyio.fail_after(30):
            for gate in gates[1:]:
                gate.opened.set()
                await (
                    gate.passed.wait()
                )  # all its chunks are there, while the first dataset has given nothing
            gates[0].opened.set()
            assert [int(element) async for element in elements] == wanted


async def test_in_any_order_others_come_before_a_slow_one() -> None:
    gates, datasets = gated()
    dataset = Dataset.range(3).interleave(lambda n: datasets[n], 3, deterministic=False)
    async with dataset.aiterate() as elements:
        with anyio.fail_after(30):
            gates[1].opened.set()
            gates[2].opened.set()
            found = [await anext(elements) for _ in range(30)]
            assert sorted(found) == GATED[1] + GATED[2]
            gates[0].opened.set()
            assert [element async for element in elements] == GATED[0]


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("given", [0, 1])
async def test_closing_leaves_no_task(way: int, given: int) -> None:
    before = asyncio.all_tasks()
    gates, datasets = gated()
    async with combined(datasets)[way][0].aiterate() as elements:
        if given:
            for gate in gates:
                gate.opened.set()
            assert await anext(elements) == 0
        else:
            gates[1].opened.set()
            with anyio.fail_after(30):
                await gates[1].passed.wait()
    assert asyncio.all_tasks() == before


PARTS = {
    "none": Dataset.range(0),
    "finite": Dataset.range(3),
    "more": Dataset.range(5),
    "endless": Dataset.range(4).repeat(),
    "unknown": Dataset.range(6).filter(lambda number: number > 3),
}


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("names", [*combinations(PARTS, 1), *combinations(PARTS, 2)])
@pytest.mark.parametrize("choices", ["drawn", "all zero", "some", "in turn", "unknown"])
def test_the_cardinality_of_a_mixture_is_true(
    names: tuple[str, ...], choices: str, stops: bool
) -> None:
    parts = [PARTS[name] for name in names]
    count = len(parts)
    chosen = {
        "all zero": Dataset.range(1).repeat(),
        "some": Dataset.from_tensor_slices([number % count for number in range(7)]),
        "in turn": Dataset.range(count).repeat(),
        "unknown": Dataset.range(count).repeat(4).filter(lambda number: True),
    }
    if choices == "drawn":
        mixed = Dataset.sample_from_datasets(parts, seed=1, stop_on_empty_dataset=stops)
    else:
        mixed = Dataset.choose_from_datasets(parts, chosen[choices], stops)
    known = mixed.cardinality()
    if known == UNKNOWN_CARDINALITY:
        return
    elements = len(list(islice(mixed, 100)))
    assert elements == (100 if known == INFINITE_CARDINALITY else known)


def test_mixtures_of_endless_parts_have_lengths_after_take() -> None:
    endless = [Dataset.range(2).repeat(), Dataset.range(3).repeat()]
    drawn = Dataset.sample_from_datasets(endless, [0.7, 0.3], seed=1)
    chosen = Dataset.choose_from_datasets(endless, Dataset.range(2).repeat())
    assert [each.cardinality() for each in (drawn, chosen)] == [INFINITE_CARDINALITY] * 2
    assert [len(each.take(100)) for each in (drawn, chosen)] == [100, 100]
    some = Dataset.choose_from_datasets(endless, Dataset.range(2).repeat(4))
    assert len(some) == len(list(some)) == 8
    assert len(Dataset.sample_from_datasets([Dataset.range(3), Dataset.range(5)])) == 8
