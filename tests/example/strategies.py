"""Random descriptions and random messages that mostly fit them, for Hypothesis.

Keys come from a small alphabet, so that features share keys, miss them, and find other kinds under
them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.features import Feature, Partition
from tests.example import wire

KINDS: list[Any] = [np.int64, np.float32, bytes]
KEYS = "abcde"
PARTITION_KEYS = "pqr"
NUMBERS = [0, 1, 2, 3, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)]
REALS = [0.0, 1.5, -2.0, float("nan"), float("inf")]
STRINGS = [b"", b"a", b"abc\0", b"x" * 130]
SHAPES = [(), (1,), (2,), (2, 3)]
PARTITIONS: list[Any] = [
    RaggedFeature.RowSplits,
    RaggedFeature.RowLengths,
    RaggedFeature.RowStarts,
    RaggedFeature.RowLimits,
    RaggedFeature.ValueRowIds,
]
ALL_PARTITIONS: list[Any] = [*PARTITIONS, RaggedFeature.UniformRowLength]

Draw = Callable[[st.SearchStrategy[Any]], Any]
Features = st.SearchStrategy[Feature]
keys = st.sampled_from(KEYS)
kinds = st.sampled_from(KINDS)


def rarely(draw: Draw, one_in: int) -> bool:
    """True once in `one_in` times; shrinks to False."""
    return bool(draw(st.integers(0, one_in - 1)) == one_in - 1)


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    choices: dict[Any, list[Any]] = {np.int64: NUMBERS, np.float32: REALS, bytes: STRINGS}
    return st.sampled_from(choices[kind])


@st.composite
def fixed_len(draw: Draw) -> Feature:
    """A FixedLenFeature, with a default or without, now and then of no elements."""
    kind, shape = draw(kinds), draw(st.sampled_from([*SHAPES, (0,)]))
    size = math.prod(shape)
    default = draw(st.none() | st.lists(values_of(kind), min_size=size, max_size=size))
    return FixedLenFeature(shape, kind, default)


@st.composite
def fixed_len_sequence(draw: Draw) -> Feature:
    """A FixedLenSequenceFeature as Examples take it, mostly."""
    kind = draw(kinds)
    default = draw(st.none() | values_of(kind))
    return FixedLenSequenceFeature(
        draw(st.sampled_from(SHAPES)), kind, not rarely(draw, 20), default
    )


@st.composite
def steps(draw: Draw) -> Feature:
    """A FixedLenSequenceFeature as feature lists take it, mostly."""
    default = 0 if rarely(draw, 30) else None
    kind = np.int64 if default is not None else draw(kinds)
    return FixedLenSequenceFeature(
        draw(st.sampled_from(SHAPES)), kind, draw(st.booleans()), default
    )


@st.composite
def sparse(draw: Draw) -> Feature:
    """A SparseFeature of one key, or of one or two in a list."""
    count = draw(st.sampled_from([0, 1, 2]))
    index = draw(st.lists(keys, min_size=count, max_size=count)) if count else draw(keys)
    return SparseFeature(
        index, draw(keys), draw(kinds), [5] * count if count else 5, draw(st.booleans())
    )


@st.composite
def partitions(draw: Draw) -> Partition:
    length = draw(st.sampled_from([None, None, None, 1, 2, 3]))
    if length is not None:
        return RaggedFeature.UniformRowLength(length)
    made: Partition = draw(st.sampled_from(PARTITIONS))(draw(st.sampled_from(PARTITION_KEYS)))
    return made


@st.composite
def ragged(draw: Draw) -> Feature:
    """A RaggedFeature with up to two partitions."""
    return RaggedFeature(
        draw(kinds),
        draw(st.none() | keys),
        draw(st.lists(partitions(), max_size=2)),
        draw(st.sampled_from([np.int32, np.int64])),
        draw(st.booleans()),
    )


def partition_numbers(partition: Partition, lengths: list[int]) -> list[int]:
    """What a partition's feature holds for rows of these lengths."""
    ends: list[int] = np.cumsum(lengths, dtype=np.int64).tolist()
    if isinstance(partition, RaggedFeature.RowLengths):
        return lengths
    if isinstance(partition, RaggedFeature.RowLimits):
        return ends
    if isinstance(partition, RaggedFeature.ValueRowIds):
        return [row for row, length in enumerate(lengths) for _ in range(length)]
    return [0, *ends] if isinstance(partition, RaggedFeature.RowSplits) else [0, *ends[:-1]]


@st.composite
def partitioned(draw: Draw, kind: Any) -> tuple[RaggedFeature, list[bytes]]:
    """A RaggedFeature of one or two partitions, the first of this kind, and Examples that fit it,
    mostly.
    """
    first = kind(draw(st.integers(1, 3))) if kind is RaggedFeature.UniformRowLength else kind("p")
    second = draw(st.none() | st.integers(1, 2).map(RaggedFeature.UniformRowLength))
    other = draw(st.none() | st.sampled_from(PARTITIONS).map(lambda made: made("q")))
    levels = [first] + [level for level in (second or other,) if level is not None]
    dtype, splits = draw(kinds), draw(st.sampled_from([np.int32, np.int64]))
    feature = RaggedFeature(dtype, "values", levels, splits, draw(st.booleans()))
    return feature, draw(st.lists(partitioned_example(feature), min_size=1, max_size=3))


def hostile_numbers(partition: Partition) -> st.SearchStrategy[int]:
    """Numbers that lead far away, or come back where they are cut to 32 bits; TensorFlow makes a
    row for each id.
    """
    if isinstance(partition, RaggedFeature.ValueRowIds):
        return st.just(7)
    return st.sampled_from([2**31, 2**32, 2**32 + 3, 2**40, 2**63 - 1, -(2**63)])


@st.composite
def partitioned_example(draw: Draw, feature: RaggedFeature) -> bytes:
    """An Example whose values and partitions fit; now and then one number is another, or there is a
    value too many.
    """
    count, entries = draw(st.integers(0, 3)), []
    for partition in feature.partitions:
        if isinstance(partition, RaggedFeature.UniformRowLength):
            count *= partition.length
            continue
        lengths = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        numbers = partition_numbers(partition, lengths)
        if numbers and rarely(draw, 3):
            numbers[draw(st.integers(0, len(numbers) - 1))] = draw(
                st.integers(-1, 4) | hostile_numbers(partition)
            )
        entries.append(wire.entry(partition.key, wire.ints(*numbers)))
        count = max(0, sum(lengths)) % 100  # the number that was changed may be one of these
    count += rarely(draw, 4)
    values = draw(st.lists(values_of(feature.dtype), min_size=count, max_size=count))
    return wire.field(
        1, b"".join([*entries, wire.entry("values", wire.feature(feature.dtype, values))])
    )


var_len = st.builds(VarLenFeature, kinds)


def descriptions(
    *features: st.SearchStrategy[Feature], least: int = 1
) -> st.SearchStrategy[dict[str, Feature]]:
    """Keys and configurations, of the given sorts."""
    return st.dictionaries(keys, st.one_of(*features), min_size=least, max_size=4)


example_descriptions = descriptions(fixed_len(), var_len, fixed_len_sequence(), sparse(), ragged())
context_descriptions = descriptions(fixed_len(), var_len, ragged(), least=0)
list_descriptions = descriptions(steps(), var_len, ragged(), least=0)


def wanted_kinds(features: Mapping[str, Feature]) -> dict[str, Any]:
    """Every key that a description looks at, with the kind it wants; None for a partition."""
    found: dict[str, Any] = {}
    for name, feature in features.items():
        if isinstance(feature, SparseFeature):
            found |= dict.fromkeys(feature.index_keys, np.int64) | {
                feature.value_key: feature.dtype
            }
        elif isinstance(feature, RaggedFeature):
            found[feature.value_key or name] = feature.dtype
            parts = [
                part
                for part in feature.partitions
                if not isinstance(part, RaggedFeature.UniformRowLength)
            ]
            found |= {part.key: None for part in parts}
        else:
            found[name] = feature.dtype
    return found


@st.composite
def partition_values(draw: Draw) -> bytes:
    """Numbers that often are good splits, lengths or row ids."""
    numbers = draw(st.lists(st.integers(0, 4), max_size=4))
    form = draw(st.sampled_from(["any", "sorted", "from zero"]))
    return wire.ints(
        *(
            numbers
            if form == "any"
            else sorted(numbers)
            if form == "sorted"
            else [0, *sorted(numbers)]
        )
    )


@st.composite
def feature_values(draw: Draw, kind: Any, config: Feature | None) -> bytes:
    """A Feature that mostly fits: its kind, its number of values, packed or not, or nothing at
    all.
    """
    if kind is None:
        made: bytes = draw(partition_values())
        return made
    if rarely(draw, 20):
        return b""
    if rarely(draw, 40):
        kind = draw(kinds)
    size = (
        math.prod(config.shape)
        if isinstance(config, FixedLenFeature | FixedLenSequenceFeature)
        else None
    )
    times = (
        draw(st.integers(0, 3))
        if size is None or isinstance(config, FixedLenSequenceFeature)
        else 1
    )
    count = (size or 1) * times if size is None or size else 0
    if rarely(draw, 30):
        count = draw(st.integers(0, 6))
    packed = draw(st.booleans())
    if (
        kind is np.float32
        and isinstance(config, FixedLenFeature)
        and count > math.prod(config.shape)
    ):
        packed = True  # TensorFlow writes unpacked ones past the end of its array
    small = kind is np.int64 and draw(st.booleans())
    values = st.integers(0, 4) if small else values_of(kind)
    return wire.feature(kind, draw(st.lists(values, min_size=count, max_size=count)), packed)


UNKNOWN = [
    b"\x10\x05",
    b"\x1d\1\2\3\4",
    b"\x11" + bytes(8),
    b"\x1a\x03abc",
    b"\xfa\x7f\x01z",
    b"\x00\x07",
]


@st.composite
def examples(draw: Draw, features: Mapping[str, Feature]) -> bytes:
    """An Example for a description: keys missing, twice or unknown, Features in parts, unknown
    fields.
    """
    entries = []
    for key, kind in wanted_kinds(features).items():
        times = draw(st.sampled_from([1, 1, 1, 1, 1, 1, 0, 2]))
        for _ in range(times):
            entries.append(
                wire.entry(key, draw(feature_values(kind, features.get(key))), rarely(draw, 10))
            )
    if rarely(draw, 5):
        entries.append(wire.entry("unknown", b"\x22\x00"))
    entries = draw(st.permutations(entries))
    cut = draw(st.integers(0, len(entries))) if rarely(draw, 4) else len(entries)
    parts = [wire.field(1, b"".join(entries[:cut])), wire.field(1, b"".join(entries[cut:]))]
    if rarely(draw, 4):
        parts.insert(draw(st.integers(0, 2)), draw(st.sampled_from(UNKNOWN)))
    return b"".join(parts)


@st.composite
def sequences(draw: Draw, context: Mapping[str, Feature], lists: Mapping[str, Feature]) -> bytes:
    """A SequenceExample for two descriptions."""
    features = []
    for key, kind in wanted_kinds(context).items():
        if not rarely(draw, 10):
            features.append((key, draw(feature_values(kind, context.get(key)))))
    length = draw(st.integers(0, 3))
    columns = []
    for key, kind in wanted_kinds(lists).items():
        if not rarely(draw, 12):
            count = draw(st.integers(0, 3)) if rarely(draw, 6) else length
            columns.append((key, [draw(step_values(kind, lists.get(key))) for _ in range(count)]))
    return wire.sequence(features, columns)


@st.composite
def step_values(draw: Draw, kind: Any, config: Feature | None) -> bytes:
    """One step of a feature list: of a dense one the right number of values, mostly."""
    if not isinstance(config, FixedLenSequenceFeature) or rarely(draw, 40):
        made: bytes = draw(feature_values(kind, None))
        return made
    size = math.prod(config.shape)
    return wire.feature(
        kind, draw(st.lists(values_of(kind), min_size=size, max_size=size)), draw(st.booleans())
    )


BYTES = [0, 1, 2, 8, 10, 13, 18, 26, 127, 128, 255]


@st.composite
def damaged(draw: Draw, record: bytes) -> bytes:
    """The record with bytes changed, put in, taken out, repeated, or cut off."""
    data = bytearray(record)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["set", "flip", "insert", "delete", "cut", "repeat"]))
        if how == "set" and at < len(data):
            data[at] = draw(st.sampled_from(BYTES) | st.integers(0, 255))
        elif how == "flip" and at < len(data):
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "insert":
            data[at:at] = bytes(draw(st.lists(st.sampled_from(BYTES), min_size=1, max_size=3)))
        elif how == "delete":
            del data[at : at + draw(st.integers(1, 3))]
        elif how == "cut":
            del data[at:]
        elif how == "repeat":
            data += data[at : at + draw(st.integers(1, 30))]
    return bytes(data)


def makes_sense(plan: Callable[[], object]) -> bool:
    """Whether a description is one: most random ones are, and those that aren't are compared more
    rarely.
    """
    try:
        plan()
    except FeatureError:
        return False
    return True
