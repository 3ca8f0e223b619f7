"""Random chains of sources and stages, for Hypothesis: each as a Dataset of ours and as tf.data
would write it.

A new verb is an entry in VERBS: for which kinds of elements it is, what it makes of them, and both
ways to write it. A new source is one in `sources`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streamrec import AUTOTUNE, Dataset, Frames, TensorSpec, TFRecordDataset, encode_records

RECORDS = [
    [b"%d." % shard + b"x" * (index * 7 % 11) for index in range(size)]
    for shard, size in enumerate([9, 0, 20, 3])
]

# Kinds of elements: `bytes`, int64 scalars, tuples of both. A batch of a kind is `kind + BATCH`.
RECORD = "record"
NUMBER = "number"
PAIR = "pair"
BATCH = " batch"
SINGLE = (RECORD, NUMBER, PAIR)
BATCHES = tuple(kind + BATCH for kind in SINGLE)
ROWS = "rows"
"""Dictionaries of a number and an array of any length: only for us, and not for `batch`."""
ANY_KIND = (*SINGLE, *BATCHES, ROWS, ROWS + BATCH)

TensorflowVersion = Callable[[Any], Any]


@dataclass(frozen=True)
class ChainOfBoth:
    """A chain.

    Args:
        ours: As a Dataset.
        theirs: Makes tf.data's, from the module `tensorflow`.
        kind: Of its elements.
        ordered: Whether both give them in the same order.
        text: For people.
    """

    ours: Dataset[Any]
    theirs: TensorflowVersion
    kind: str
    text: str
    ordered: bool = True

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Verb:
    """A stage with a number in it.

    Args:
        name: For people.
        kinds: What it takes.
        ours, theirs: The stage, of a dataset and the number (and of tensorflow before them). None:
            only for us.
        numbers: Which numbers.
        gives: The kind that becomes of each kind.
        by_order: Whether what comes depends on the order, not only in which order it comes.
        shuffles: Whether it changes the order by chance.
    """

    name: str
    kinds: tuple[str, ...]
    ours: Callable[[Any, int], Any]
    theirs: Callable[[Any, Any, int], Any] | None
    numbers: st.SearchStrategy[int] = st.integers(1, 5)
    gives: Callable[[str], str] = str
    by_order: bool = False
    shuffles: bool = False

    def of(self, made: ChainOfBoth, number: int) -> ChainOfBoth:
        return replace(
            made,
            ours=self.ours(made.ours, number),
            theirs=lambda tf: self.theirs and self.theirs(tf, made.theirs(tf), number),
            kind=self.gives(made.kind),
            text=f"{made.text}.{self.name}({number})",
            ordered=made.ordered and not self.shuffles,
        )


def verb_of_both(
    name: str, kinds: tuple[str, ...], stage: Callable[[Any, int], Any], **more: Any
) -> Verb:
    """A stage that is written alike for both."""
    return Verb(name, kinds, stage, lambda tf, dataset, number: stage(dataset, number), **more)


def verb_of_ours(
    name: str, kinds: tuple[str, ...], stage: Callable[[Any, int], Any], **more: Any
) -> Verb:
    """A stage that only we are asked for."""
    return Verb(name, kinds, stage, None, **more)


def row_of(record: bytes) -> dict[str, Any]:
    return {"id": len(record), "values": np.arange(len(record) % 5)}


def length_of(row: dict[str, Any]) -> int:
    return len(row["values"])


async def negated_later(number: Any) -> Any:
    """Its calls end in another order than they begin."""
    for _ in range(int(number) * 7 % 5):
        await asyncio.sleep(0)
    return number - 1


def unbatched(kind: str) -> str:
    return kind.removesuffix(BATCH)


def batched(kind: str) -> str:
    return kind + BATCH


def scanned(state: Any, number: Any) -> tuple[Any, Any]:
    """The sum of all numbers so far."""
    return state + number, state - number


def grouped(dataset: Any, size: int) -> Any:
    """Numbers of one remainder, one after the other."""
    length: dict[str, Any] = (
        {"window_size": size} if size % 2 else {"window_size_func": lambda key: key + size}
    )
    return dataset.group_by_window(
        lambda number: number % 3, lambda key, window: window.take(4), **length
    )


VERBS = [
    verb_of_both(
        "skip", ANY_KIND, lambda ds, n: ds.skip(n), numbers=st.integers(-1, 12), by_order=True
    ),
    verb_of_both(
        "take",
        ANY_KIND,
        lambda ds, n: ds.take(n + 6 if n else -1),
        numbers=st.integers(0, 12),
        by_order=True,
    ),
    verb_of_both("shard", ANY_KIND, lambda ds, n: ds.shard(n, n // 2), by_order=True),
    verb_of_both("batch", SINGLE, lambda ds, n: ds.batch(n), gives=batched, by_order=True),
    verb_of_both(
        "batch_drop",
        SINGLE,
        lambda ds, n: ds.batch(n, drop_remainder=True),
        gives=batched,
        by_order=True,
    ),
    verb_of_both("unbatch", BATCHES, lambda ds, n: ds.unbatch(), gives=unbatched),
    verb_of_both("rebatch", BATCHES, lambda ds, n: ds.rebatch(n), by_order=True),
    verb_of_both(
        "rebatch_in_turn",
        BATCHES,
        lambda ds, n: ds.rebatch([n, 1, n + 2], n % 2 == 0),
        by_order=True,
    ),
    verb_of_both("unique", (NUMBER, RECORD), lambda ds, n: ds.unique(), by_order=True),
    verb_of_both("scan", (NUMBER,), lambda ds, n: ds.scan(np.int64(n), scanned), by_order=True),
    verb_of_both("group_by_window", (NUMBER,), grouped, by_order=True),
    verb_of_both(
        "window",
        (NUMBER, RECORD),
        lambda ds, n: ds.window(n, 1 + n * 3 % 5, 1 + n % 2, n == 4).flat_map(
            lambda window: window.batch(n)
        ),
        gives=batched,
        by_order=True,
    ),
    verb_of_both(
        "window_pair",
        (PAIR,),
        lambda ds, n: ds.window(n, 2, drop_remainder=True).flat_map(
            lambda numbers, records: records.skip(n // 2)
        ),
        gives=lambda kind: RECORD,
        by_order=True,
    ),
    verb_of_both("repeat", ANY_KIND, lambda ds, n: ds.repeat(n), numbers=st.integers(1, 2)),
    verb_of_both("prefetch", ANY_KIND, lambda ds, n: ds.prefetch(n)),
    verb_of_both(
        "shuffle",
        ANY_KIND,
        lambda ds, n: ds.shuffle(n * n),
        numbers=st.integers(1, 6),
        shuffles=True,
    ),
    verb_of_both("shuffle_seed", ANY_KIND, lambda ds, n: ds.shuffle(n * 3, seed=n), shuffles=True),
    verb_of_both(
        "shuffle_same",
        ANY_KIND,
        lambda ds, n: ds.shuffle(n * 3, reshuffle_each_iteration=False),
        shuffles=True,
    ),
    verb_of_both("map_number", (NUMBER,), lambda ds, n: ds.map(lambda number: number * 3 + n)),
    verb_of_both(
        "filter_number", (NUMBER,), lambda ds, n: ds.filter(lambda number: number % (n + 1) != 0)
    ),
    verb_of_both(
        "take_while_number",
        (NUMBER,),
        lambda ds, n: ds.take_while(lambda number: number < 9 * n),
        by_order=True,
    ),
    verb_of_both(
        "filter_pair",
        (PAIR,),
        lambda ds, n: ds.filter(lambda number, record: number % (n + 1) != 0),
    ),
    verb_of_both(
        "second",
        (PAIR,),
        lambda ds, n: ds.map(lambda number, record: record),
        gives=lambda kind: RECORD,
    ),
    verb_of_both(
        "enumerate",
        (RECORD,),
        lambda ds, n: ds.enumerate(n),
        gives=lambda kind: PAIR,
        by_order=True,
    ),
    verb_of_both("cache", ANY_KIND, lambda ds, n: ds.cache()),
    verb_of_both(
        "parallel_map",
        (NUMBER,),
        lambda ds, n: ds.map(lambda number: number - n, n if n < 5 else AUTOTUNE),
    ),
    verb_of_ours("async_map", (NUMBER,), lambda ds, n: ds.map(negated_later, num_parallel_calls=n)),
    verb_of_ours("rows", (RECORD,), lambda ds, n: ds.map(row_of), gives=lambda kind: ROWS),
    verb_of_ours(
        "id", (ROWS,), lambda ds, n: ds.map(lambda row: row["id"]), gives=lambda kind: NUMBER
    ),
    verb_of_ours("padded_batch", (ROWS,), lambda ds, n: ds.padded_batch(n), gives=batched),
    verb_of_ours("ragged_batch", (ROWS,), lambda ds, n: ds.ragged_batch(n), gives=batched),
    verb_of_ours(
        "bucket",
        (ROWS,),
        lambda ds, n: ds.bucket_by_sequence_length(
            length_of, [2, 4], [n, 2, 3], drop_remainder=n > 3
        ),
        gives=batched,
    ),
    verb_of_ours("rows_of_batches", (ROWS + BATCH,), lambda ds, n: ds.unbatch(), gives=unbatched),
    Verb(
        "flat_map",
        (NUMBER,),
        lambda ds, n: ds.flat_map(lambda number: Dataset.range(int(number) % (n + 1))),
        lambda tf, ds, n: ds.flat_map(lambda number: tf.data.Dataset.range(number % (n + 1))),
    ),
    Verb(
        "interleave",
        (NUMBER,),
        lambda ds, n: ds.interleave(
            lambda number: Dataset.range(int(number) % 5), cycle_length=n, block_length=2
        ),
        lambda tf, ds, n: ds.interleave(lambda number: tf.data.Dataset.range(number % 5), n, 2),
        by_order=True,
    ),
    Verb(
        "parallel_map_record",
        (RECORD,),
        lambda ds, n: ds.map(bytes.lower, num_parallel_calls=n),
        lambda tf, ds, n: ds.map(tf.strings.lower, num_parallel_calls=n),
    ),
    Verb(
        "map_record",
        (RECORD,),
        lambda ds, n: ds.map(bytes.upper),
        lambda tf, ds, n: ds.map(tf.strings.upper),
    ),
    Verb(
        "filter_record",
        (RECORD,),
        lambda ds, n: ds.filter(lambda record: len(record) % n),
        lambda tf, ds, n: ds.filter(lambda record: tf.strings.length(record) % n != 0),
    ),
]


def shards(folder: Path) -> list[str]:
    """Writes the shards that chains read."""
    for shard, records in enumerate(RECORDS):
        (folder / str(shard)).write_bytes(encode_records(records))
    return [str(path) for path in sorted(folder.iterdir())]


def small_blocks(name: bytes) -> Dataset[bytes]:
    return TFRecordDataset(name, "", 40)


def read(files: list[str], cycle: int, block: int, nested: bool) -> ChainOfBoth:
    """Records of shards, interleaved: as one source, or as a dataset of each shard."""
    shards = TFRecordDataset(files, cycle_length=cycle, block_length=block)
    return ChainOfBoth(
        Dataset.list_files(files).interleave(small_blocks, cycle, block) if nested else shards,
        lambda tf: tf.data.Dataset.from_tensor_slices(files).interleave(
            tf.data.TFRecordDataset, cycle_length=cycle, block_length=block
        ),
        RECORD,
        f"shards(cycle={cycle}, block={block}, nested={nested})",
    )


def source_of_both(kind: str, text: str, source: Callable[[Any], Any]) -> ChainOfBoth:
    """A source that is written alike for both."""
    return ChainOfBoth(source(Dataset), lambda tf: source(tf.data.Dataset), kind, text)


def numbered(count: int, step: int) -> ChainOfBoth:
    return source_of_both(
        NUMBER, f"range({count}, {step})", lambda module: module.range(0, count, step)
    )


def sliced(count: int) -> ChainOfBoth:
    values = [b"s%d" % index for index in range(count)]
    return ChainOfBoth(
        Dataset.from_tensor_slices(values),
        lambda tf: tf.data.Dataset.from_tensor_slices(tf.constant(values, tf.string)),
        RECORD,
        f"slices({count})",
    )


def generated(count: int) -> ChainOfBoth:
    return ChainOfBoth(
        Dataset.from_generator(lambda: range(count), output_signature=TensorSpec((), np.int64)),
        lambda tf: tf.data.Dataset.from_generator(
            lambda: range(count), output_signature=tf.TensorSpec((), tf.int64)
        ),
        NUMBER,
        f"generated({count})",
    )


def single(number: int) -> ChainOfBoth:
    return source_of_both(
        NUMBER, f"from_tensors({number})", lambda module: module.from_tensors(np.int64(number))
    )


def sources(files: list[str]) -> st.SearchStrategy[ChainOfBoth]:
    """Where elements come from."""
    return st.one_of(
        st.builds(read, st.just(files), st.integers(1, 5), st.integers(1, 4), st.booleans()),
        st.builds(numbered, st.integers(0, 30), st.integers(1, 3)),
        st.builds(sliced, st.integers(0, 25)),
        st.builds(generated, st.integers(0, 25)),
        st.builds(single, st.integers(0, 9)),
    )


@st.composite
def add_stages(draw: st.DrawFn, made: ChainOfBoth, most: int, alike_only: bool) -> ChainOfBoth:
    """Up to `most` stages after a chain."""
    for _ in range(draw(st.integers(0, most))):
        fitting = [
            verb
            for verb in VERBS
            if made.kind in verb.kinds
            and (not alike_only or (verb.theirs and (made.ordered or not verb.by_order)))
        ]
        verb = draw(st.sampled_from(fitting))
        made = verb.of(made, draw(verb.numbers))
    return made


@st.composite
def chains(
    draw: st.DrawFn, files: list[str], alike_only: bool = False, most: int = 4
) -> ChainOfBoth:
    """Any chain: of one source, or of two that are joined, and stages before and after.

    Args:
        files: Those of `shards`.
        alike_only: Whether both must give the same elements: nothing that depends on the order
            after a shuffle.
        most: Of stages in a row.
    """
    made = draw(sources(files).flatmap(lambda source: add_stages(source, most, alike_only)))
    if not draw(st.integers(0, 2)):
        other = draw(sources(files).flatmap(lambda source: add_stages(source, 2, alike_only)))
        way = draw(st.sampled_from(["join", "sample", "choose"]))
        made = draw(add_stages(combine(made, other, alike_only, way), 2, alike_only))
    return made


def combine(one: ChainOfBoth, other: ChainOfBoth, alike_only: bool, way: str) -> ChainOfBoth:
    """Two chains as one, in the given way if they fit, else in another one."""
    in_order = one.ordered and other.ordered
    mixed = way if one.kind == other.kind and one.kind in (NUMBER, RECORD) else "join"
    if mixed == "choose" and (in_order or not alike_only):
        return combine_alike(
            one,
            other,
            lambda module, *both: in_turn(module, [*both]),
            f"choose({one}, {other})",
            in_order,
        )
    if mixed == "sample":
        return combine_alike(one, other, sampled, f"sample({one}, {other})", False)
    if one.kind == other.kind:
        return combine_alike(
            one,
            other,
            lambda module, first, then: first.concatenate(then),
            f"({one}).concatenate({other})",
            in_order,
        )
    if {one.kind, other.kind} == {NUMBER, RECORD} and (in_order or not alike_only):
        number, record = (one, other) if one.kind == NUMBER else (other, one)
        zipped = combine_alike(
            number,
            record,
            lambda module, *both: module.zip(both),
            f"zip({number}, {record})",
            in_order,
        )
        return replace(zipped, kind=PAIR)
    return one


def combine_alike(
    one: ChainOfBoth, other: ChainOfBoth, way: Callable[..., Any], text: str, ordered: bool
) -> ChainOfBoth:
    """Two chains as one, in a way that is written alike for both: of the module and both
    datasets.
    """
    return ChainOfBoth(
        way(Dataset, one.ours, other.ours),
        lambda tf: way(tf.data.Dataset, one.theirs(tf), other.theirs(tf)),
        one.kind,
        text,
        ordered,
    )


def sampled(module: Any, *datasets: Any) -> Any:
    return module.sample_from_datasets(datasets, [0.3, 0.7], stop_on_empty_dataset=False)


def in_turn(module: Any, datasets: list[Any]) -> Any:
    """An element of the second dataset, then two of the first one, and so on."""
    return module.choose_from_datasets(
        datasets, module.range(40).map(lambda number: (number + 1) % 3 % 2), False
    )


def comparable(element: Any) -> Any:
    """An element of either as lists, numbers and bytes."""
    if isinstance(element, Frames):
        return list(element)
    if isinstance(element, tuple):
        return tuple(map(comparable, element))
    if isinstance(element, dict):
        return {key: comparable(value) for key, value in element.items()}
    return element.tolist() if isinstance(element, np.ndarray | np.generic) else element
