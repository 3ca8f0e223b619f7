"""Converts columns to Arrow arrays with pyarrow, without a copy if the layouts agree.

- Numbers of shape [n]: a primitive array over the same memory. bool is copied, to bits.
- Numbers of shape [n, k]: a fixed-size list of k values.
- Strings: large_binary, or large_utf8 if the caller declares them as text. They are copied unless
  they are back to back.
- A RaggedTensor: for each ragged dimension a list (int32 splits) or large list (int64 splits) over
  the same memory.
- A SparseTensor whose rows are lists, as a VarLenFeature returns it: a large list with computed
  offsets.
- A dict: a struct of its columns.

Consumers trust offsets and lengths, so all that come from callers are checked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec.arguments import check_spans, describe_value
from streamrec.display import join_names
from streamrec.errors import FeatureError
from streamrec.example.columns import (
    BytesColumn,
    RaggedTensor,
    SparseTensor,
    check_splits,
    list_splits,
    with_nulls,
)
from streamrec.example.features import encode_name
from streamrec.kernels.arrow_buffers import large_binary, load_pyarrow

NUMBERS: Final = frozenset(
    {
        *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        *("float16", "float32", "float64"),
    }
)
"""The NumPy dtypes that Arrow supports."""


class ArrowBatch:
    """A batch of columns with the Arrow PyCapsule interface: a struct or record batch.

    `pyarrow.record_batch(ArrowBatch(columns))`, `polars.DataFrame(ArrowBatch(columns))` and other
    libraries accept it. Numbers are not copied. It needs pyarrow, the extra "arrow".

    Args:
        columns: A dict of arrays, BytesColumns, ragged and sparse tensors, as `parse_example`
            returns it.
        text: Names of columns of byte strings that become text (large_utf8) instead of binary.

    Attributes:
        batch: The `pyarrow.RecordBatch`.

    Raises:
        MissingExtraError: pyarrow is not installed.
        FeatureError: A column has no counterpart in Arrow, the columns have different lengths, or a
            column in `text` does not exist, has no byte strings, or is not UTF-8. The error names
            the column, and for bytes the row.

    Examples:
        >>> import pyarrow
        >>> columns = {"label": np.array([3, 4]), "name": np.array([b"a", b"b"])}
        >>> batch = pyarrow.record_batch(ArrowBatch(columns))
        >>> batch["label"].to_pylist(), batch["name"].to_pylist()
        ([3, 4], [b'a', b'b'])
    """

    def __init__(self, columns: Mapping[str, Any], *, text: Iterable[str] = ()) -> None:
        text = frozenset(text)
        check_names(text, columns)
        arrays = {name: arrow_array(name, column, name in text) for name, column in columns.items()}
        _check_lengths(None, arrays)
        pa = load_pyarrow()
        self.batch = pa.RecordBatch.from_arrays(
            list(arrays.values()), schema=pa.schema(_fields(arrays))
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return int(self.batch.get_total_buffer_size())

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The capsules `arrow_schema` and `arrow_array`."""
        capsules: tuple[object, object] = self.batch.__arrow_c_array__(requested_schema)
        return capsules


def names_of_text(text: Iterable[str]) -> tuple[str, ...]:
    """Checks the argument `text`: a single name, not in a list, is a TypeError."""
    if isinstance(text, str):
        raise TypeError(f"text is {describe_value(text)}: give a list of names")
    return tuple(text)


def check_names(text: Iterable[str], columns: Iterable[str]) -> None:
    """Checks that all names in `text` are among `columns`."""
    known = list(columns)
    if unknown := sorted(set(text).difference(known)):
        raise FeatureError(
            f"text= names a column that does not exist: choose from {join_names(known)}", unknown[0]
        )


def _check_utf8(name: str, strings: Any, per_row: int) -> None:
    """Checks that all strings, of which each row has `per_row`, are UTF-8."""
    pa = load_pyarrow()
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        for number, data in enumerate(strings.view(pa.large_binary())):
            try:
                data.as_py().decode()
            except UnicodeDecodeError as error:
                what = f"{error.reason} at byte {error.start}"
                reason = f"bytes that are not UTF-8 ({what}): leave the column out of text="
                raise FeatureError(reason, name, number // per_row) from None


def arrow_array(name: str, column: Any, text: bool = False) -> Any:
    """The `pyarrow.Array` of a column, which may be a dict of columns (a struct).

    Raises:
        FeatureError: The column has no counterpart in Arrow; `text` is asked for a column without
            byte strings, or for bytes that are not UTF-8.
    """
    if isinstance(column, RaggedTensor):
        return _ragged_array(name, column, text)
    if isinstance(column, SparseTensor):
        return _ragged_array(name, RaggedTensor(column.values, (list_splits(column, name),)), text)
    if hasattr(column, "spans"):  # Frames, or a BytesColumn
        shape = column.shape if isinstance(column, BytesColumn) else (len(column),)
        return _strings(name, shape, column, text)
    if not isinstance(column, Mapping):
        if np.ma.is_masked(column):
            raise FeatureError("a masked array lacks some values: fill it first", name)
        array = with_nulls(column, np.asarray(column))
        # Strings of limited length, of which NumPy drops the zeros at the end.
        if array.dtype.kind == "S":
            array = array.astype(object)
        if array.dtype == object:
            strings = array.reshape(-1).tolist()
            if not all(isinstance(string, bytes) for string in strings):
                raise FeatureError(
                    "an object array has no counterpart in Arrow unless it is of bytes", name
                )
            return _strings(name, array.shape, BytesColumn.of(strings, array.shape), text)
    if text:
        raise FeatureError(
            "this column has no byte strings, and only these can be text: leave it out of text=",
            name,
        )
    if not isinstance(column, Mapping):
        return _numbers(name, array)
    arrays = {part: arrow_array(part, each) for part, each in column.items()}
    _check_lengths(name, arrays)
    return load_pyarrow().StructArray.from_arrays(list(arrays.values()), fields=_fields(arrays))


def _fields(arrays: Mapping[str, Any]) -> list[Any]:
    pa = load_pyarrow()
    return [
        pa.field(encode_name(name), array.type, nullable=False) for name, array in arrays.items()
    ]


def _check_lengths(name: str | None, arrays: Mapping[str, Any]) -> None:
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{part}: {len(array):,}" for part, array in arrays.items())
        raise FeatureError(f"columns of one batch have different numbers of rows ({lengths})", name)


def _numbers(name: str, array: npt.NDArray[Any]) -> Any:
    pa = load_pyarrow()
    if array.dtype == bool:
        return _nest(name, array.shape, pa.array(array.reshape(-1)))
    if array.dtype.name not in NUMBERS:
        raise FeatureError(
            f"a column of dtype {array.dtype} has no counterpart in Arrow: leave it out, or cast "
            "it",
            name,
        )
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
    buffers = [None, pa.py_buffer(native)]
    return _nest(
        name,
        array.shape,
        pa.Array.from_buffers(pa.from_numpy_dtype(native.dtype), native.size, buffers),
    )


def _strings(name: str, shape: tuple[int, ...], strings: Any, text: bool) -> Any:
    spans = np.asarray(strings.spans, np.int64).reshape(-1, 2)
    if (spans[1:, 0] != spans[:-1, 1]).any():
        strings = strings.compact()
        spans = strings.spans.reshape(-1, 2)
    check_spans(spans, memoryview(strings.buffer).nbytes)
    flat = large_binary(strings.buffer, spans, text)
    if text:
        _check_utf8(name, flat, max(1, len(spans) // max(1, shape[0] if shape else 1)))
    return _nest(name, shape, flat)


def _nest(name: str, shape: tuple[int, ...], flat: Any) -> Any:
    """Wraps an array in fixed-size lists, one for each dimension after the first."""
    if not shape:
        raise FeatureError("a single value is not a column: call batch first", name)
    pa = load_pyarrow()
    for depth in range(len(shape) - 1, 0, -1):
        count = int(np.prod(shape[:depth]))
        flat = pa.Array.from_buffers(
            pa.list_(*_fields({"item": flat}), shape[depth]), count, [None], children=[flat]
        )
    return flat


def _ragged_array(name: str, column: RaggedTensor, text: bool) -> Any:
    pa = load_pyarrow()
    all_splits = check_splits(column, name)
    try:
        inner = arrow_array(name, column.flat_values, text)
    except FeatureError as error:
        row = error.record
        if row is not None:
            for splits in reversed(all_splits):
                row = int(np.searchsorted(splits, row, side="right")) - 1
        raise FeatureError(error.reason, name, row) from None
    for splits in reversed(all_splits):
        wide = splits.dtype != np.int32
        offsets = pa.py_buffer(np.ascontiguousarray(splits, np.int64 if wide else np.int32))
        kind = (pa.large_list if wide else pa.list_)(*_fields({"item": inner}))
        inner = pa.Array.from_buffers(kind, len(splits) - 1, [None, offsets], children=[inner])
    return inner
