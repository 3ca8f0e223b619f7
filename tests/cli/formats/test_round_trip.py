"""What goes through another format and back is what it was: kinds, empty lists, missing
features.
"""

import io
import math
import struct
import tracemalloc
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import (
    Example,
    FeatureError,
    Frames,
    encode_example,
    encode_sequence_example,
    infer_features,
)
from streamrec.cli.formats import codec_of
from streamrec.cli.formats.codec import Reading
from streamrec.cli.formats.webdataset import member
from streamrec.example.changes import Changes
from tests.effort import drawn_examples

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["__key__", "a/b", "a.npy", "image.json", "%2F", "X", "x", "\x00"]
)
FLOATS = st.floats(width=32)
BYTES = (
    st.binary(max_size=6)
    | st.text(max_size=6).map(str.encode)
    | st.sampled_from([b"\xff\xd8\xff", b"k-1", b"12"])
)


@st.composite
def data_sets(draw: st.DrawFn, one_kind: bool) -> list[bytes]:
    """Records of some features, each of which has one kind, or another one in each record."""
    names = draw(st.lists(NAMES, unique=True, max_size=4))
    kinds = {
        name: draw(st.sampled_from(["int64_list", "float_list", "bytes_list"])) for name in names
    }
    values = {"int64_list": INT64, "float_list": FLOATS, "bytes_list": BYTES}
    records = []
    for _ in range(draw(st.integers(0, 6))):
        example = Example()
        for name in names:
            state = draw(
                st.sampled_from(["missing", "no kind", "empty", "one", "one", "one", "many"])
            )
            kind = kinds[name] if one_kind else draw(st.sampled_from(sorted(values)))
            if state == "missing":
                continue
            feature = example.features.feature[name]
            if state != "no kind":
                target = getattr(feature, kind)
                target.SetInParent()
                count = {"empty": 0, "one": 1}.get(state, 3)
                target.value.extend(draw(st.lists(values[kind], min_size=count, max_size=count)))
        records.append(example.SerializeToString())
    return records


def comparable_features(record: bytes) -> list[tuple[str, str | None, list[object]]]:
    """The features by name, kind and values; one float that is no number is as good as another."""
    found = Example.FromString(record).features.feature
    rows = []
    for name in sorted(found):
        kind = found[name].WhichOneof("kind")
        values = [] if kind is None else getattr(found[name], kind).value
        rows.append((name, kind, [bits_of_float(value) for value in values]))
    return rows


def bits_of_float(value: object) -> object:
    """A float by its bits, so that -0.0 is not 0.0."""
    if not isinstance(value, float):
        return value
    return "nan" if math.isnan(value) else struct.pack("<f", value)


def there_and_back(name: str, records: list[bytes], block: int = 2) -> list[bytes]:
    codec = codec_of(name)
    blocks = [records[first : first + block] for first in range(0, len(records), block)]
    changes = Changes()
    look = codec.look
    columns = (
        look.columns(reduce(look.join, map(look.see, blocks), look.see(())), changes)
        if look
        else ()
    )
    encoder = codec.encoder(columns, 0, changes)
    made = [*map(encoder.write, blocks)]
    file = io.BytesIO(b"".join(made) + encoder.finish())
    return [record for batch in codec.decode(file, Reading()) for record in batch]


@pytest.mark.parametrize("name", ["jsonl", "webdataset"])
@given(records=data_sets(one_kind=False))
@drawn_examples(100)
def test_records_come_back(name: str, records: list[bytes]) -> None:
    assert [*map(comparable_features, there_and_back(name, records))] == [
        *map(comparable_features, records)
    ]


@given(records=data_sets(one_kind=True))
@drawn_examples(100)
def test_records_come_back_from_parquet(records: list[bytes]) -> None:
    if records and not any(comparable_features(record) for record in records):
        with pytest.raises(FeatureError, match="no rows without columns"):
            there_and_back("parquet", records)
        return
    assert [*map(comparable_features, there_and_back("parquet", records))] == [
        *map(comparable_features, records)
    ]


@pytest.mark.parametrize("name", ["jsonl", "webdataset", "parquet"])
def test_a_sequence_example_is_refused(name: str) -> None:
    with pytest.raises(
        FeatureError, match="record 1: a SequenceExample: only Examples can be converted"
    ):
        encoder = codec_of(name).encoder((), 0, Changes())
        encoder.write(
            [Example().SerializeToString(), encode_sequence_example({"a": 1}, {"b": [[1], [2]]})]
        )


def test_a_long_member_of_a_tar_is_held_twice_at_most() -> None:
    size = 32 << 20
    file = io.BytesIO(member("0.bin", bytes(size)))
    tracemalloc.start()
    try:
        [record] = next(codec_of("webdataset").decode(file, Reading()))
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(record) <= held < 1.5 * size
    assert peak < 2.5 * size


@pytest.mark.parametrize("values", [{"a": 1}, {"a": [1, 2]}, {"a": []}, {"a": b"x", "b": [1, 2]}])
def test_columns_of_arrow_have_no_row_of_nulls_for_another_message(values: Any) -> None:
    pytest.importorskip("pyarrow")
    from streamrec.example.arrow_rows import NullableParser

    kinds = {name: "int64" for name, each in values.items() if each == []}
    known = [encode_example(values, kinds=kinds), encode_example({})]
    parser = NullableParser(infer_features(known).summaries)
    assert parser(Frames.of(known)).num_rows == 2
    other = b"\x09" + bytes(8) + b"\x2a\x05hello"
    with pytest.raises(FeatureError, match="record 2: 16 bytes of another message type"):
        parser(Frames.of([*known, other]))


def test_bytes_that_are_not_an_example_are_not_an_empty_one() -> None:
    """Unknown fields alone parse as a message, of which nothing would be left."""
    with pytest.raises(FeatureError, match="record 0: 2 bytes of another message type"):
        codec_of("jsonl").encoder((), 0, Changes()).write([b"\x18\x05"])
