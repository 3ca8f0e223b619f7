"""Columns as Arrow arrays, without a copy where the layouts agree, and without pyarrow.

A column becomes a description of an Arrow array (`kernels.arrow_array` says how it looks), by the layouts of
arrow.apache.org/docs/format/Columnar.html:

- Numbers of shape [n]: a primitive array over the same memory. bool is copied, to bits.
- Numbers of shape [n, k]: a fixed-size list of k values.
- Strings: large_binary, or large_utf8 where the caller says that they are text. They are copied together, unless they
  lie back to back.
- A RaggedTensor: for each ragged dimension a list (int32 splits) or large list (int64 splits) over the same memory.
- A SparseTensor whose rows are lists, as a VarLenFeature gives it: a large list, whose offsets are counted.
- A dict: a struct of its columns.

A consumer trusts offsets and lengths, and reads what they say: whatever was not made here is checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.arguments import check_spans
from streamrec.errors import FeatureError
from streamrec.example.columns import BytesColumn, RaggedTensor, SparseTensor, checked_splits, list_splits

__all__ = ["ArrowBatch", "Described", "described_column"]

Described: TypeAlias = "tuple[str, str, int, tuple[Any, ...], tuple[Any, ...]]"
"""An Arrow array: format, name, length, buffers, children."""

FORMATS: Final = {
    "int8": "c",
    "uint8": "C",
    "int16": "s",
    "uint16": "S",
    "int32": "i",
    "uint32": "I",
    "int64": "l",
    "uint64": "L",
    "float16": "e",
    "float32": "f",
    "float64": "g",
}
"""Arrow's format strings of NumPy's dtypes."""


class ArrowBatch:
    """A batch of columns that speaks the Arrow PyCapsule interface, as a struct or record batch.

    `pyarrow.record_batch(ArrowBatch(columns))`, `polars.DataFrame(ArrowBatch(columns))` and the like take it; they need
    no other package, and numbers are not copied.

    Args:
        columns: What `parse_example` gives: a dict of arrays, BytesColumns, ragged and sparse tensors.
        text: Names of columns of byte strings that become text (large_utf8) instead of binary.

    Attributes:
        described: The description of the batch.

    Raises:
        FeatureError: A column has no counterpart in Arrow, or columns have different lengths; `text` names something
            that is not a column of byte strings, or whose bytes are not UTF-8. The message says which column, and for
            bytes which row.

    Examples:
        >>> import pyarrow
        >>> batch = pyarrow.record_batch(ArrowBatch({"label": np.array([3, 4]), "name": np.array([b"a", b"b"])}))
        >>> batch["label"].to_pylist(), batch["name"].to_pylist()
        ([3, 4], [b'a', b'b'])
    """

    def __init__(self, columns: Mapping[str, Any], *, text: Iterable[str] = ()) -> None:
        form, name, count, buffers, children = described_column("", dict(columns))
        wanted = frozenset(text)
        check_names(wanted, columns)
        children = tuple(_text(child) if child[1] in wanted else child for child in children)
        self.described: Described = (form, name, count, buffers, children)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return _nbytes(self.described)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The capsules `arrow_schema` and `arrow_array`. `requested_schema` is not heeded, as the interface allows."""
        return kernels.arrow_array(self.described)


def check_names(text: Iterable[str], columns: Iterable[str]) -> None:
    """Raises FeatureError for the first name in `text` that is not among `columns`."""
    known = list(columns)
    if unknown := sorted(set(text).difference(known)):
        raise FeatureError(
            f"no column has this name, which text= gives: the columns are {', '.join(known)}", unknown[0]
        )


def _nbytes(described: Described) -> int:
    _, _, _, buffers, children = described
    return sum(memoryview(buffer).nbytes for buffer in buffers if buffer is not None) + sum(map(_nbytes, children))


def _text(described: Described) -> Described:
    """A column of byte strings as one of text.

    Raises:
        FeatureError: It has other values, or bytes that are not UTF-8; says in which row.
    """
    form, name, count, buffers, children = described
    if form == "Z":
        _check_utf8(name, *buffers[1:])
        return ("U", name, count, buffers, ())
    if form == "+s" or not children:
        raise FeatureError("this column has no byte strings, and only these can be text: leave it out of text=", name)
    try:
        return (form, name, count, buffers, (_text(children[0]),))
    except FeatureError as error:
        row = error.record
        if row is not None:
            splits = buffers[1] if len(buffers) > 1 else np.arange(count + 1) * int(form.removeprefix("+w:"))
            row = int(np.searchsorted(splits, row, side="right")) - 1
        raise FeatureError(error.reason, name, row) from None


def _check_utf8(name: str, offsets: npt.NDArray[np.int64], data: Any) -> None:
    """Raises FeatureError for the first string that is not UTF-8.

    All bytes together are decoded at once: if that succeeds, only a string that begins within a character is wrong.
    """
    view = memoryview(data).cast("B")
    starts = offsets[:-1][offsets[:-1] < offsets[1:]]
    try:
        str(view[offsets[0] : offsets[-1]], "utf-8")
        if not (np.frombuffer(view, np.uint8)[starts] & 0xC0 == 0x80).any():
            return
    except UnicodeDecodeError:
        pass
    for row, (start, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        try:
            str(view[start:end], "utf-8")
        except UnicodeDecodeError as error:
            reason = f"bytes that are not UTF-8 ({error.reason} at byte {error.start}): leave the column out of text="
            raise FeatureError(reason, name, row) from None


def described_column(name: str, column: Any) -> Described:
    """The description of a column.

    Raises:
        FeatureError: It has no counterpart in Arrow.
    """
    if isinstance(column, Mapping):
        return _struct(name, [described_column(part, values) for part, values in column.items()])
    if isinstance(column, RaggedTensor):
        return _ragged(name, column)
    if isinstance(column, SparseTensor):
        return _sparse(name, column)
    if hasattr(column, "spans"):  # Frames, or a BytesColumn
        return _fixed(name, _strings, column.shape if isinstance(column, BytesColumn) else (len(column),), column)
    if np.ma.is_masked(column):
        raise FeatureError("a masked array where all values are wanted: fill it first", name)
    array = np.asarray(column)
    if array.dtype.kind == "S":  # strings of at most so many bytes, of which NumPy drops the zeros at the end
        array = array.astype(object)
    if array.dtype == object:
        return _fixed(name, _strings, array.shape, _column_of(name, array))
    if array.dtype == bool:
        return _fixed(name, _bits, array.shape, array)
    if array.dtype.name not in FORMATS:
        raise FeatureError(
            f"a column of dtype {array.dtype} has no counterpart in Arrow: leave it out, or cast it", name
        )
    return _fixed(name, _numbers, array.shape, array)


def _struct(name: str, children: list[Described]) -> Described:
    lengths = {child[2] for child in children}
    if len(lengths) > 1:
        told = ", ".join(f"{child[1]}: {child[2]:,}" for child in children)
        raise FeatureError(f"columns of one batch have different numbers of rows ({told})", name or None)
    return ("+s", name, lengths.pop() if lengths else 0, (None,), tuple(children))


def _fixed(name: str, flat: Any, shape: tuple[int, ...], values: Any) -> Described:
    """Fixed-size lists for all dimensions behind the first."""
    if not shape:
        raise FeatureError("a single value is no column: batch it first", name)
    if len(shape) == 1:
        described: Described = flat(name, shape[0], values)
        return described
    inner = _fixed("item", flat, (shape[0] * shape[1], *shape[2:]), values)
    return (f"+w:{shape[1]}", name, shape[0], (None,), (inner,))


def _numbers(name: str, count: int, array: npt.NDArray[Any]) -> Described:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return (FORMATS[array.dtype.name], name, count, (None, np.ascontiguousarray(native)), ())


def _bits(name: str, count: int, array: npt.NDArray[Any]) -> Described:
    return ("b", name, count, (None, np.packbits(array.reshape(-1), bitorder="little")), ())


def _strings(name: str, count: int, strings: Any) -> Described:
    """large_binary: offsets and bytes back to back."""
    spans = np.asarray(strings.spans, np.int64).reshape(-1, 2)
    if (spans[1:, 0] != spans[:-1, 1]).any():
        strings = strings.compact()
        spans = strings.spans.reshape(-1, 2)
    check_spans(spans, memoryview(strings.buffer).nbytes)
    offsets = np.append(spans[:, 0], spans[-1:, 1] if count else 0)
    return ("Z", name, count, (None, offsets, strings.buffer), ())


def _column_of(name: str, array: npt.NDArray[Any]) -> BytesColumn:
    """An object array of bytes as a column."""
    strings = array.reshape(-1).tolist()
    if not all(isinstance(string, bytes) for string in strings):
        raise FeatureError("an object array has no counterpart in Arrow unless it is of bytes", name)
    ends = np.cumsum([len(string) for string in strings], dtype=np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), ends])[:-1] if len(ends) else ends
    return BytesColumn(b"".join(strings), np.stack([starts, ends], axis=-1).reshape(*array.shape, 2))


def _ragged(name: str, column: RaggedTensor) -> Described:
    inner = described_column("item", column.flat_values)
    for depth, splits in reversed(list(enumerate(checked_splits(column, name)))):
        wide = splits.dtype != np.int32
        splits = np.ascontiguousarray(splits, np.int64 if wide else np.int32)
        inner = ("+L" if wide else "+l", "item" if depth else name, len(splits) - 1, (None, splits), (inner,))
    return inner


def _sparse(name: str, column: SparseTensor) -> Described:
    return _ragged(name, RaggedTensor(column.values, (list_splits(column, name),)))
