"""Elements as bytes and back, in columns: what a cache file holds. No I/O, and no pickle: reading runs no code.

A block is the length of a JSON text (4 bytes, little-endian), that text, and buffers back to back. The text is
`{"sizes": [bytes of each buffer], "elements": node}`, and a node is a list: its kind, then what that kind needs, where
numbers called `buffer` say which buffer. Lists whose elements are alike become columns, so that a block of a
thousand small elements has one node for each of their parts.

What comes back is what went in: kinds, dtypes, shapes and order, save that arrays are contiguous and can be written to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.example import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.dtypes import named_dtype
from streamrec.pipeline.elements.chunk import Batches, Elements
from streamrec.pipeline.elements.columns import Columns, objects
from streamrec.pipeline.elements.ragged_rows import RaggedRows, ragged_rows
from streamrec.pipeline.elements.sparse_rows import SparseRows
from streamrec.tfrecord import Frames, Scattered

__all__ = ["digest_of", "pack", "unpack"]

Node = list[Any]

LENGTH_BYTES = 4
NUMBERS = "biufcmMSU"
"""Kinds of dtypes whose `str` says all of them."""


def pack(elements: Elements) -> bytes:
    """Elements as one block.

    Raises:
        TypeError: One of them, or a part of one, is of a type that cannot be stored; the message names it.
    """
    packing = _Packing()
    node = packing.node(elements)
    head = {"sizes": [len(buffer) for buffer in packing.buffers], "elements": node}
    text = json.dumps(head, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *packing.buffers])


def unpack(block: memoryview) -> Any:
    """The elements of a block. Frames share its memory; all else is copied out."""
    end = LENGTH_BYTES + int.from_bytes(block[:LENGTH_BYTES], "little")
    found = json.loads(bytes(block[LENGTH_BYTES:end]).decode("utf-8", "surrogatepass"))
    buffers = []
    for size in found["sizes"]:
        buffers.append(block[end : end + size])
        end += size
    return _Unpacking(buffers).value(found["elements"])


class _Packing:
    """Makes nodes, and keeps the buffers that they name."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def node(self, value: Any) -> Node:
        """The node of any value."""
        kind = type(value)
        if kind in _PACKERS:
            return _PACKERS[kind](self, value)
        if isinstance(value, np.generic):
            return ["scalar", *self._raw(np.asarray(value))]
        raise TypeError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be stored in a cache file: arrays, records, numbers,"
            " strings, and dicts, tuples and lists of them can; map elements to these first, or cache in memory"
        )

    def keep(self, data: Any) -> int:
        """Keeps a buffer; returns its number."""
        self.buffers.append(memoryview(data).cast("B"))
        return len(self.buffers) - 1

    def _raw(self, array: npt.NDArray[Any]) -> Node:
        return [dtype_name(array.dtype), list(array.shape), self.keep(array.tobytes())]

    def frames(self, frames: Frames) -> Node:
        """Records: their lengths, and their payloads back to back."""
        return ["frames", self.keep(frames.lengths.astype("<i8").tobytes()), self.keep(frames.compact().buffer)]

    def batches(self, batches: Batches) -> Node:
        return ["batches", batches.size, self.frames(batches.frames)]

    def columns(self, columns: Columns) -> Node:
        return ["columns", self.node(columns.nest)]

    def bytes_column(self, column: BytesColumn) -> Node:
        return ["column", list(column.shape), self.frames(Frames(column.buffer, column.spans.reshape(-1, 2)))]

    def ragged(self, ragged: RaggedTensor) -> Node:
        return ["ragged", self.node(ragged.flat_values), [self.node(splits) for splits in ragged.nested_row_splits]]

    def sparse(self, sparse: SparseTensor) -> Node:
        return ["sparse", *map(self.node, sparse)]

    def ragged_rows(self, rows: RaggedRows) -> Node:
        return ["ragged rows", self.ragged(rows.tensor())]

    def sparse_rows(self, rows: SparseRows) -> Node:
        return ["sparse rows", self.sparse(rows.tensor()), self.array(rows.shapes)]

    def array(self, array: npt.NDArray[Any]) -> Node:
        if array.dtype.kind == "O":
            return ["objects", list(array.shape), self.rows(array.ravel().tolist())]
        return ["array", *self._raw(array)]

    def plain(self, value: Any) -> Node:
        return ["json", value]

    def string(self, value: bytes) -> Node:
        return ["bytes", self.keep(value)]

    def mapping(self, value: Mapping[Any, Any]) -> Node:
        return ["dict", self._keys(value), [self.node(part) for part in value.values()]]

    def parts(self, value: Sequence[Any]) -> Node:
        return ["tuple", [self.node(part) for part in value]]

    def rows(self, values: Sequence[Any]) -> Node:
        """A list: in columns where its elements are alike."""
        kinds = set(map(type, values))
        if len(kinds) == 1:
            columns = self._alike(kinds.pop(), values)
            if columns is not None:
                return columns
        return ["list", [self.node(value) for value in values]]

    def _alike(self, kind: type, values: Sequence[Any]) -> Node | None:
        """Values of one type as columns; None where they differ in something else, or the type has no columns."""
        if kind is dict and values[0] and all(list(value) == list(values[0]) for value in values):
            return ["dicts", self._keys(values[0]), [self.rows([value[key] for value in values]) for key in values[0]]]
        if kind is tuple and values[0] and len(set(map(len, values))) == 1:
            return ["tuples", [self.rows(part) for part in zip(*values, strict=True)]]
        if kind is bytes:
            return ["strings", self.frames(Frames.of(values))]
        if kind in PLAIN:
            return ["plains", list(values)]
        if kind is np.ndarray and len({(value.dtype, value.shape) for value in values}) == 1:
            if values[0].dtype.kind == "O" or not values[0].ndim:
                return None
            return ["arrays", *self._raw(np.stack(values).astype(values[0].dtype, copy=False))]
        if kind is np.ndarray and len({(value.dtype, value.ndim) for value in values}) == 1:
            return None if values[0].dtype.kind == "O" else self._uneven(values)
        if issubclass(kind, np.generic) and len({value.dtype for value in values}) == 1:
            return ["scalars", *self._raw(np.array(values, values[0].dtype))]
        return None

    def _uneven(self, arrays: Sequence[npt.NDArray[Any]]) -> Node:
        """Arrays of one dtype and rank, and of several shapes."""
        shapes = np.array([array.shape for array in arrays], np.int64)
        flat = np.concatenate([array.ravel() for array in arrays])  # in the machine's byte order, as `np.stack`
        return ["uneven", self._raw(shapes), self._raw(flat.astype(arrays[0].dtype, copy=False))]

    def _keys(self, value: Mapping[Any, Any]) -> list[Any]:
        for key in value:
            if type(key) not in PLAIN:
                raise TypeError(
                    f"the key {key!r}, a {type(key).__name__}, cannot be stored in a cache file: map it to str"
                )
        return list(value)


PLAIN = (str, int, float, bool, type(None))

_PACKERS: dict[type, Callable[[_Packing, Any], Node]] = {
    Frames: _Packing.frames,
    Scattered: _Packing.frames,
    Batches: _Packing.batches,
    Columns: _Packing.columns,
    BytesColumn: _Packing.bytes_column,
    RaggedTensor: _Packing.ragged,
    SparseTensor: _Packing.sparse,
    np.ndarray: _Packing.array,
    bytes: _Packing.string,
    dict: _Packing.mapping,
    tuple: _Packing.parts,
    list: _Packing.rows,
    RaggedRows: _Packing.ragged_rows,
    SparseRows: _Packing.sparse_rows,
    **dict.fromkeys(PLAIN, _Packing.plain),
}


class _Unpacking:
    """Makes values of nodes, over the buffers that they name."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers

    def value(self, node: Node) -> Any:
        """The value of a node."""
        kind, *parts = node
        return _UNPACKERS[kind](self, *parts)

    def _raw(self, dtype: str, shape: Sequence[int], buffer: int) -> npt.NDArray[Any]:
        kind = named_dtype(dtype)
        if kind.hasobject:  # its bytes would be taken for pointers
            raise ValueError(
                f"a stored array of dtype {dtype!r}, which holds objects: the file or the state is damaged"
            )
        return np.ndarray(tuple(shape), kind, self._buffers[buffer]).copy()

    def frames(self, lengths: int, payloads: int) -> Frames:
        ends = np.cumsum(np.frombuffer(self._buffers[lengths], "<i8"), dtype=np.int64)
        return Frames(self._buffers[payloads], np.stack([np.concatenate([[0], ends[:-1]])[: len(ends)], ends], 1))

    def batches(self, size: int, frames: Node) -> Batches:
        return Batches(self.value(frames), size)

    def columns(self, nest: Node) -> Columns:
        return Columns(self.value(nest))

    def bytes_column(self, shape: Sequence[int], frames: Node) -> BytesColumn:
        found = self.value(frames)
        return BytesColumn(found.buffer, found.spans.reshape(*shape, 2))

    def ragged(self, values: Node, splits: Sequence[Node]) -> RaggedTensor:
        return RaggedTensor(self.value(values), tuple(map(self.value, splits)))

    def sparse(self, *parts: Node) -> SparseTensor:
        return SparseTensor(*map(self.value, parts))

    def ragged_rows(self, ragged: Node) -> Any:
        return ragged_rows(self.value(ragged))

    def sparse_rows(self, sparse: Node, shapes: Node) -> SparseRows:
        rows = SparseRows.of(self.value(sparse))
        return SparseRows(rows.indices, rows.values, rows.starts, rows.ends, self.value(shapes))

    def scalar(self, *raw: Any) -> Any:
        return self._raw(*raw)[()]

    def objects(self, shape: Sequence[int], rows: Node) -> npt.NDArray[np.object_]:
        return objects(self.value(rows)).reshape(shape)

    def plain(self, value: Any) -> Any:
        return value

    def string(self, buffer: int) -> bytes:
        return bytes(self._buffers[buffer])

    def mapping(self, keys: Sequence[Any], parts: Sequence[Node]) -> dict[Any, Any]:
        return dict(zip(keys, map(self.value, parts), strict=True))

    def parts(self, parts: Sequence[Node]) -> tuple[Any, ...]:
        return tuple(map(self.value, parts))

    def items(self, parts: Sequence[Node]) -> list[Any]:
        return [self.value(part) for part in parts]

    def plains(self, values: list[Any]) -> list[Any]:
        return values

    def dicts(self, keys: Sequence[Any], columns: Sequence[Node]) -> list[Any]:
        return [dict(zip(keys, values, strict=True)) for values in zip(*map(self.value, columns), strict=True)]

    def tuples(self, columns: Sequence[Node]) -> list[Any]:
        return list(zip(*map(self.value, columns), strict=True))

    def strings(self, frames: Node) -> list[bytes]:
        return list(self.value(frames))

    def arrays(self, *raw: Any) -> list[Any]:
        return list(self._raw(*raw))

    def uneven(self, shapes: Sequence[Any], flat: Sequence[Any]) -> list[Any]:
        values, first, arrays = self._raw(*flat), 0, []
        for shape in self._raw(*shapes).tolist():
            last = first + int(np.prod(shape, dtype=np.int64))
            arrays.append(values[first:last].reshape(shape))
            first = last
        return arrays


_UNPACKERS: dict[str, Callable[..., Any]] = {
    "frames": _Unpacking.frames,
    "batches": _Unpacking.batches,
    "columns": _Unpacking.columns,
    "column": _Unpacking.bytes_column,
    "ragged": _Unpacking.ragged,
    "sparse": _Unpacking.sparse,
    "ragged rows": _Unpacking.ragged_rows,
    "sparse rows": _Unpacking.sparse_rows,
    "array": _Unpacking._raw,
    "objects": _Unpacking.objects,
    "json": _Unpacking.plain,
    "bytes": _Unpacking.string,
    "dict": _Unpacking.mapping,
    "tuple": _Unpacking.parts,
    "list": _Unpacking.items,
    "plains": _Unpacking.plains,
    "dicts": _Unpacking.dicts,
    "tuples": _Unpacking.tuples,
    "strings": _Unpacking.strings,
    "arrays": _Unpacking.arrays,
    "uneven": _Unpacking.uneven,
    "scalar": _Unpacking.scalar,
    "scalars": _Unpacking.arrays,
}


def dtype_name(dtype: np.dtype[Any]) -> str:
    """A dtype as text that gives it again.

    Raises:
        TypeError: There is none: it has fields, or holds objects.
    """
    if dtype.kind in NUMBERS:
        return dtype.str
    try:
        if np.dtype(dtype.name) == dtype:  # ml_dtypes'
            return dtype.name
    except TypeError:
        pass
    raise TypeError(f"an array of dtype {dtype} cannot be stored in a cache file: map it to numbers or strings")


def digest_of(value: Any) -> str:
    """A digest of values, in whatever they lie."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in digested(value):
        digest.update(b"%d:" % len(piece) + piece)
    return digest.hexdigest()


def digested(value: Any) -> Iterator[bytes]:
    """Bytes that differ where values do."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield repr(key).encode()
            yield from digested(part)
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        yield f"{value.dtype.str}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, tuple | list | Frames | RaggedRows | SparseRows | np.ndarray):
        kind = Frames if isinstance(value, Frames) else type(value)  # Frames of many buffers are Frames
        yield f"{kind.__name__}{len(value)}".encode()
        for part in value:
            yield from digested(part)
    else:
        yield repr(value).encode()
