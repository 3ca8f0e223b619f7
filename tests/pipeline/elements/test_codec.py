"""What a cache file holds: elements come back as they were, or are refused by the name of their
type.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from streamrec import BytesColumn, Frames, RaggedTensor, SparseTensor
from streamrec.pipeline.elements.chunk import Batches
from streamrec.pipeline.elements.codec import digest_values, pack, unpack
from streamrec.pipeline.elements.columns import Columns, Mixed, join_windows, objects
from tests.effort import drawn_examples
from tests.servers.resuming import plain

DTYPES = st.one_of(
    npst.integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?"),
    npst.boolean_dtypes(),
    npst.complex_number_dtypes(),
    npst.byte_string_dtypes(max_len=4),
    npst.unicode_string_dtypes(max_len=4),
    npst.datetime64_dtypes(),
)
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.characters(categories=["Cs"]),
    st.binary(),
)
VALUES = st.recursive(
    st.one_of(PLAIN, ARRAYS, st.lists(st.binary(), max_size=3).map(Frames.of)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)


def described(value: Any) -> Any:
    """A value as text that tells kinds, dtypes, shapes and values, NaNs too."""
    if isinstance(value, np.ndarray):
        return (
            "array",
            value.dtype.str,
            value.shape,
            [described(one) for one in value.ravel().tolist()],
        )
    if isinstance(value, np.generic):
        return (type(value).__name__, value.dtype.str, repr(value))
    if isinstance(value, BytesColumn):
        return ("column", described(value.to_numpy()))
    if isinstance(value, Frames | Batches | Columns):
        return (type(value).__name__, [described(one) for one in value])
    if isinstance(value, dict):
        return [(repr(key), described(part)) for key, part in value.items()]
    if isinstance(value, Mixed):
        return ("mixed", described([value.parts, value.order]))
    if isinstance(value, tuple | list):
        return (type(value).__name__, [described(part) for part in value])
    return repr(value)


class Named(NamedTuple):
    x: int


def pack_and_unpack(elements: Any) -> Any:
    return unpack(memoryview(pack(elements)))


@given(VALUES)
@drawn_examples(300)
def test_any_value_comes_back(value: Any) -> None:
    assert described(pack_and_unpack([value])) == described([value])
    assert described(pack_and_unpack([value, value])) == described([value, value])


@given(st.data())
@drawn_examples(100)
def test_values_of_one_structure_come_back(data: st.DataObject) -> None:
    dtype = data.draw(DTYPES)
    arrays = npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    rows = st.fixed_dictionaries(
        {"x": arrays, "y": st.tuples(st.binary(), st.integers(), st.floats(), st.text())}
    )
    elements = data.draw(st.lists(rows, max_size=6))
    assert described(pack_and_unpack(elements)) == described(elements)


def test_every_element_that_is_packed_is_unpacked_unchanged() -> None:
    frames = Frames.of([b"a", b"", b"ccc"] * 4)
    ragged = RaggedTensor(np.arange(3), (np.array([0, 2, 3]),))
    sparse = SparseTensor(np.array([[0, 1]]), np.array([b"x\0"], object), np.array([2, 3]))
    column = BytesColumn(b"onetwo", np.array([[[0, 3]], [[3, 6]]]))
    cases: list[Any] = [
        frames,
        frames.window(2, 7),
        Batches(frames, 3),
        Columns({"n": np.arange(12), "f": (frames, [np.arange(n) for n in range(12)])}),
        join_windows([frames, [b"d", np.int64(5)], Columns(np.arange(2))]),
        [ragged, ragged],
        [sparse, (column, np.float32(2))],
        [np.int64(3), np.int64(4)],
        [np.array(3), np.array(4)],
        [{}, {}],
        [(), ()],
        [],
    ]
    for elements in cases:
        assert described(pack_and_unpack(elements)) == described(elements)
    assert [plain(one) for one in pack_and_unpack(Batches(frames, 3))] == [
        plain(one) for one in Batches(frames, 3)
    ]


def test_alike_elements_cost_few_bytes_besides_their_data() -> None:
    elements = [{"x": np.full(4, n, np.float32), "y": (n, b"%05d" % n)} for n in range(1000)]
    assert len(pack(elements)) < 1000 * (16 + 8 + 5 + 8) + 1000


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "builtins.object"),
        (OrderedDict(), "collections.OrderedDict"),
        (Named(1), "Named"),
        ({"x": [{1, 2}]}, "builtins.set"),
        (np.zeros(2, [("a", "i4")]), "dtype"),
        (np.array([object()]), "builtins.object"),
        ({(1, 2): 3}, "tuple"),
    ],
)
def test_a_value_that_cannot_be_packed_is_named(value: Any, name: str) -> None:
    with pytest.raises(TypeError, match=name):
        pack([value])


def test_stored_objects_are_not_pointers() -> None:
    block = bytes(pack([np.arange(1)])).replace(b'"<i8"', b'"|O8"')
    with pytest.raises(ValueError, match=r"a stored array has dtype '\|O8', which holds objects"):
        unpack(memoryview(block))


STRINGS = [b"ab", b"c", b"ab"]


@pytest.mark.parametrize(
    "containers",
    [
        [STRINGS, objects(STRINGS), Frames.of(STRINGS), BytesColumn.of(STRINGS)],
        [[BytesColumn.of(STRINGS)] * 2, BytesColumn.of(STRINGS * 2, (2, 3))],
        [[np.float32(1), np.float32(2)], np.array([1, 2], np.float32)],
        [[np.True_, np.False_], np.array([True, False])],
        [[np.arange(3), np.arange(3)], np.array([np.arange(3)] * 2)],
    ],
    ids=["strings", "rows of strings", "numbers", "flags", "rows of numbers"],
)
def test_equal_values_in_other_containers_have_one_digest(containers: list[Any]) -> None:
    """Which container it is depends on where chunks end, and so on where a run was resumed."""
    assert len({*map(digest_values, containers)}) == 1


class Tensor:
    """As torch's: its repr does not have all values."""

    def __init__(self, values: list[bytes]) -> None:
        self.values = values

    def __repr__(self) -> str:
        return "Tensor(...)"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return objects(self.values)


@pytest.mark.parametrize(
    "container",
    [
        list,
        objects,
        Frames.of,
        BytesColumn.of,
        lambda values: RaggedTensor(BytesColumn.of(values), (np.array([0, 2]),)),
        lambda values: {"nested": [Tensor(values)]},
    ],
    ids=["list", "objects", "frames", "column", "ragged", "tensor"],
)
def test_different_values_of_one_shape_have_different_digests(
    container: Callable[[list[bytes]], Any],
) -> None:
    values = [[b"ab", b"c"], [b"ba", b"c"], [b"c", b"ab"], [b"abc", b""]]
    assert len({digest_values(container(each)) for each in values}) == len(values)
