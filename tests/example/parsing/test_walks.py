"""The walk in C against the readable one, on any bytes: the same columns, or the same failure."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, assume, given, reject
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
    parse,
)
from streamrec.example.messages import Example
from streamrec.example.parse import parse_batch, parse_example, parse_sequence_example
from streamrec.example.walk import Records, make_plan
from streamrec.kernels import _native
from streamrec.tfrecord import Frames, Scattered
from tests.effort import drawn_examples
from tests.example.compare import assert_same, materialised
from tests.example.conftest import WALKS, walking
from tests.example.strategies import (
    context_descriptions,
    damaged,
    example_descriptions,
    examples,
    list_descriptions,
    makes_sense,
    sequences,
)
from tests.example.wire import example, feature, field, ints, strings, varint

many_examples = drawn_examples(
    400, HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large
)
KINDS = [bytes, np.float32, np.int64]
DESCRIPTIONS: list[dict[str, Feature]] = [
    {key: VarLenFeature(KINDS[index % 3]) for index, key in enumerate("abcdefghi")},
    {
        key: FixedLenFeature([], KINDS[index % 3], ["1", 1, 1][index % 3])
        for index, key in enumerate("abcdef")
    },
    {
        key: FixedLenSequenceFeature([2], KINDS[index % 3], True)
        for index, key in enumerate("abcdefghi")
    },
]
CORPUS = Path(__file__).parents[3] / "fuzz" / "corpus"


def columns_or_error(
    walk: str, parser: Callable[..., Any], *arguments: Any, **keywords: Any
) -> Any:
    """The columns, or the message of the error."""
    with walking(walk):
        try:
            return parser(*arguments, **keywords)
        except FeatureError as error:
            return str(error)


def check_walks(parser: Callable[..., Any], *arguments: Any, string_columns: bool = False) -> None:
    wanted, found = (
        columns_or_error(walk, parser, *arguments, string_columns=string_columns) for walk in WALKS
    )
    if isinstance(wanted, str) or isinstance(found, str):
        assert found == wanted
        return
    for part, other in (
        zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
    ):
        assert list(part) == list(other)
        for name in other:
            assert_same(materialised(part[name]), materialised(other[name]), name)


def serialized(records: list[bytes], layout: str) -> Any:
    if layout == "scattered":
        lanes = [records[lane::2] for lane in range(2)]
        return Scattered.in_turn(
            [[Frames.of([b"before", *lane]).window(1, 1 + len(lane))] for lane in lanes], 1
        )
    return Frames.of(records) if layout == "frames" else records


LAYOUTS = ["list", "frames", "scattered"]


@many_examples
@given(st.data())
def test_damaged_examples(data: st.DataObject) -> None:
    features = data.draw(example_descriptions)
    assume(makes_sense(lambda: make_plan("examples", features)))
    records = [
        data.draw(damaged(record)) for record in data.draw(st.lists(examples(features), max_size=3))
    ]
    batch, columns = (
        serialized(records, data.draw(st.sampled_from(LAYOUTS))),
        data.draw(st.booleans()),
    )
    check_walks(parse_example, batch, features, string_columns=columns)


@many_examples
@given(st.data())
def test_damaged_sequences(data: st.DataObject) -> None:
    context, lists = data.draw(context_descriptions), data.draw(list_descriptions)
    assume(
        (context or lists)
        and makes_sense(lambda: (make_plan("context", context), make_plan("lists", lists)))
    )
    messages = sequences(context, lists)
    records = [data.draw(damaged(record)) for record in data.draw(st.lists(messages, max_size=3))]
    batch, columns = (
        serialized(records, data.draw(st.sampled_from(LAYOUTS))),
        data.draw(st.booleans()),
    )
    check_walks(parse_sequence_example, batch, context, lists, string_columns=columns)


@pytest.mark.parametrize("row", [(0, 4, 0), (2, 1, 0), (-1, 1, 0), (0, 1, 2), (0, 1, -1)])
@pytest.mark.usefixtures("walk")
def test_rows_outside_their_buffers_are_refused(row: tuple[int, int, int]) -> None:
    start, end, number = row
    rows = np.array([[0, 0, 1 << 32, 0], [start, end, number << 32, 0]], np.int64)
    with pytest.raises(ValueError, match=r"a span lies in buffer|leaves a buffer of 3 bytes"):
        parse.walk_examples(Records(None, (b"abc", b"d"), rows), (), spans=False)


def test_buffers_that_are_none_are_refused() -> None:
    with pytest.raises(TypeError):
        _native.decode_examples(
            _native.decode_plan(()), None, (b"abc", 5), np.zeros((1, 4), np.int64), ()
        )


def parse_bytes(record: bytes, columns: bool) -> None:
    """Any bytes as an Example and as a SequenceExample, on some descriptions."""
    for features in DESCRIPTIONS:
        check_walks(parse_example, [record], features, string_columns=columns)
    context = DESCRIPTIONS[1]
    steps = DESCRIPTIONS[2]
    lists = DESCRIPTIONS[0]
    check_walks(parse_sequence_example, [record], context, lists, string_columns=columns)
    check_walks(parse_sequence_example, [record], lists, steps, string_columns=columns)


@many_examples
@given(st.binary(max_size=60), st.booleans())
def test_all_parsers_agree_on_random_bytes(record: bytes, columns: bool) -> None:
    parse_bytes(record, columns)


@pytest.mark.parametrize("path", sorted(CORPUS.iterdir()), ids=lambda path: path.name[:8])
def test_the_fuzzers_corpus(path: Path) -> None:
    """What the fuzzer of the C code found worth keeping; its first two bytes are not part of a
    record.
    """
    parse_bytes(path.read_bytes()[2:], columns=False)


# mostly below 2**28, as one block with a longer value leaves the way for short ones
short_varints = st.lists(
    st.integers(0, 2**28 - 1) | st.integers(0, 300) | st.integers(0, 2**15), max_size=300
)
any_varints = st.integers(0, 2**64 - 1) | st.integers(0, 300) | st.integers(0, 2**15)
varint_decoders = [
    way for way in range(4) if _native.decode_varints(b"", np.empty(0, np.int64), way) == 0
]


@pytest.mark.parametrize("way", varint_decoders)
@given(
    short_varints | st.lists(any_varints, max_size=300), st.binary(max_size=12), st.integers(0, 320)
)
def test_runs_of_varints(way: int, values: list[int], tail: bytes, room: int) -> None:
    """Every way of reading runs, beyond the room and with damage after it, agrees with the twin."""
    data = b"".join(map(varint, values)) + tail
    array = np.full(room, 77, dtype=np.int64)
    count = _native.decode_varints(data, array, way)
    assert (
        _native.decode_varints(data, array[:0], way) == count
    )  # without room they are only counted
    record = example(("x", field(3, field(1, data))))
    wanted = columns_or_error("reference", parse_example, [record], {"x": RaggedFeature(np.int64)})
    if isinstance(wanted, str):
        assert count == -1
        return
    flat = wanted["x"].flat_values
    assert count == len(flat)
    shown = min(count, room)
    assert array[:shown].tolist() == flat[:shown].tolist()
    assert (array[shown:] == 77).all() or room >= 64


@pytest.mark.parametrize("way", varint_decoders)
@pytest.mark.parametrize("size", range(1, 13))
@pytest.mark.parametrize("before", [0, 1, 53, 54, 55, 63, 64])
def test_a_varint_has_at_most_ten_bytes(size: int, before: int, way: int) -> None:
    """Wherever in a block it lies."""
    data = bytes(before) + b"\x81" * (size - 1) + bytes(100)
    count = before + 100 if size <= 10 else -1
    for room in (0, 200):
        assert _native.decode_varints(data, np.empty(room, np.int64), way) == count


PADDED: dict[str, Feature] = {
    "ints": FixedLenSequenceFeature([], np.int64, True, -7),
    "floats": FixedLenSequenceFeature([2], np.float32, True),
    "strings": FixedLenSequenceFeature([1], bytes, True, b"-"),
}


def drawn_example(rng: np.random.Generator, most: int) -> bytes:
    """Up to `most` values of each, packed or not; some are left out, or have none."""
    count = int(rng.integers(0, most + 1))
    columns = {
        "ints": rng.integers(-(2**40), 2**40, count).tolist(),
        "floats": rng.integers(0, 9, 2 * count).tolist(),
        "strings": [b"%d" % each for each in range(count % 9)],
    }
    kinds = dict(zip(columns, (np.int64, np.float32, bytes), strict=True))
    entries = [
        (key, feature(kinds[key], values, bool(rng.integers(0, 4))))
        for key, values in columns.items()
    ]
    return example(*[entry for entry in entries if rng.integers(0, 9)])


@pytest.mark.parametrize(
    ("records", "most"), [(0, 0), (1, 0), (3, 0), (1, 9), (50, 40), (3, 300), (400, 900)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_one_length(records: int, most: int, layout: str) -> None:
    """Also where they are so many that they are written past the cache."""
    rng = np.random.default_rng(records + most)
    batch = serialized([drawn_example(rng, most) for _ in range(records)], layout)
    check_walks(parse_example, batch, PADDED)
    found = parse_example(batch, PADDED, string_columns=True)
    assert found["ints"].shape[0] == records  # type: ignore[union-attr]
    assert found["floats"].shape[::2] == (records, 2)  # type: ignore[union-attr]


def test_only_examples_have_padded_slots() -> None:
    fill = (7).to_bytes(8, "little")
    padded = _native.decode_plan(((b"a", 3, False, True, 1, fill, False, False),))
    nothing = _native.decode_plan(())
    splits = (np.zeros(1, np.int64),)
    with pytest.raises(ValueError, match="only slots of Examples"):
        _native.decode_sequences(padded, nothing, (), None, None, (None,), ())
    with pytest.raises(ValueError, match="only slots of Examples"):
        _native.decode_sequences(nothing, padded, (), None, None, (), splits)


@pytest.mark.parametrize("fill", [None, b"short"])
def test_a_padded_slot_needs_what_it_is_filled_up_with(fill: bytes | None) -> None:
    with pytest.raises(ValueError, match="a slot of"):
        _native.decode_plan(((b"a", 3, False, True, 1, fill, False, False),))


def test_ways_of_reading_runs() -> None:
    """The plain way is everywhere; a way that does not exist gives -2."""
    assert varint_decoders[0] == 0
    assert _native.decode_varints(b"\1", np.empty(1, np.int64), 4) == -2


@st.composite
def single_values(draw: Callable[[st.SearchStrategy[Any]], Any], kind: Any) -> bytes:
    """A Feature of one value, of any size; at times of another kind, of none or of two."""
    choices = {
        np.int64: st.integers(0, 2**64 - 1)
        | st.integers(0, 300)
        | st.integers(0, 63).map(lambda bit: 1 << bit),
        np.float32: st.floats(width=32),
        bytes: st.integers(0, 140).map(bytes),
    }
    if draw(st.integers(0, 9)) == 9:
        kind = draw(st.sampled_from(KINDS))
    count = draw(st.sampled_from([1, 1, 1, 1, 1, 1, 1, 0, 2]))
    return feature(
        kind,
        draw(st.lists(choices[kind], min_size=count, max_size=count)),
        draw(st.integers(0, 9)) < 9,
    )


@many_examples
@given(st.data(), st.booleans())
def test_single_values_in_their_usual_form(data: st.DataObject, columns: bool) -> None:
    """They go into their columns at once: under keys of any length, twice, missing, in any order,
    damaged.
    """
    lengths = data.draw(
        st.lists(st.integers(0, 30) | st.integers(90, 130), min_size=1, max_size=4, unique=True)
    )
    kinds = {"k" * length: data.draw(st.sampled_from(KINDS)) for length in lengths}
    entries = st.sampled_from(list(kinds)).flatmap(
        lambda key: st.tuples(st.just(key), single_values(kinds[key]))
    )
    usual = st.tuples(*(st.tuples(st.just(key), single_values(kinds[key])) for key in kinds))
    records = [
        example(*data.draw(usual | st.lists(entries, max_size=6)))
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    if data.draw(st.integers(0, 3)) == 3:
        records[-1] = data.draw(damaged(records[-1]))
    defaults = {bytes: b"none", np.float32: 0.5, np.int64: -1}
    features: dict[str, Feature] = {
        key: FixedLenFeature([], kind, defaults[kind]) for key, kind in kinds.items()
    }
    check_walks(parse_example, records, features, string_columns=columns)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, 17, 30, 110])
@pytest.mark.parametrize(
    ("kind", "value"), [(np.int64, 300), (np.int64, 5), (np.float32, 0.5), (bytes, b"abc")]
)
def test_every_byte_of_a_usual_entry_counts(kind: Any, value: Any, length: int) -> None:
    """Any change of one byte makes the same difference to both walks, though the entry was
    expected.
    """
    key = "abcdefghij" * 11
    good = example((key[:length], feature(kind, [value])), ("other", ints(1)))
    features: dict[str, Feature] = {
        key[:length]: FixedLenFeature([], kind, {bytes: b"none", np.float32: 9, np.int64: 9}[kind]),
        "other": FixedLenFeature([], np.int64, 0),
    }
    for place in range(len(good)):
        for change in (1, 2, 0x80, 0xFF):
            records = [good, good[:place] + bytes([good[place] ^ change]) + good[place + 1 :], good]
            check_walks(parse_example, records, features)


def test_keys_in_changing_orders() -> None:
    """Keys are guessed from their last order; a wrong guess must not matter."""
    rng = np.random.default_rng(3)
    names = [f"key{index}" for index in range(30)] + [f"other{index}" for index in range(100)]
    records = []
    for _ in range(300):
        chosen = rng.permutation(len(names))[: rng.integers(1, len(names))]
        records.append(example(*((names[index], ints(int(index))) for index in chosen)))
    features: dict[str, Feature] = {name: FixedLenFeature([], np.int64, -1) for name in names[:30]}
    check_walks(parse_example, records, features)


@pytest.mark.parametrize(
    "sizes", [[200_000, *[1] * 50], [1] * 50 + [200_000], [0] * 500, [3000] * 60]
)
def test_lists_of_very_different_lengths(sizes: list[int]) -> None:
    """Buffers grow by what the records so far let expect; that must not matter either."""
    records = [
        example(("i", ints(*range(size))), ("s", strings(*[b"ab"] * size))) for size in sizes
    ]
    features: dict[str, Feature] = {"i": RaggedFeature(np.int64), "s": RaggedFeature(bytes)}
    found = parse_example(records, features)
    assert found["i"].flat_values.tolist() == [n for size in sizes for n in range(size)]  # type: ignore[union-attr]
    assert np.diff(found["s"].nested_row_splits[0]).tolist() == sizes  # type: ignore[union-attr]


@many_examples
@given(st.data())
def test_features_that_are_not_described_are_counted(data: st.DataObject) -> None:
    features = data.draw(example_descriptions)
    assume(makes_sense(lambda: make_plan("examples", features)))
    records = data.draw(st.lists(examples(features), max_size=5))
    batch = serialized(records, data.draw(st.sampled_from(LAYOUTS)))
    try:
        names = [name for record in records for name in Example.FromString(record).features.feature]
        plan = make_plan("examples", features)
        _, found = parse_batch(plan, batch, string_columns=False)
    except (
        DecodeError,
        FeatureError,
    ):  # field numbers of 0, which TensorFlow takes, or values that do not fit
        reject()
    assert bool(found) == bool(set(names) - {slot.name for slot in plan.slots})
