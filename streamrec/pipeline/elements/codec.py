"""Packs elements into bytes, as columns, and unpacks them: the format of cache files.

No I/O, and no pickle.

A block is the length of a JSON text (4 bytes, little-endian), that text, and buffers back to back.
The text is `{"sizes": [bytes of each buffer], "elements": node}`. A node is a list: its kind, then
the values of that kind; numbers called `buffer` are indices of buffers. Lists of similar elements
become columns, so that a block of a thousand small elements has one node for each of their parts.

Unpacked elements have the same kinds, dtypes, shapes and order, but their arrays are contiguous and
writable.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.arguments import add_article, describe_value
from streamrec.example import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.columns import CompositeTensor
from streamrec.example.dtypes import dtype_by_name
from streamrec.pipeline.elements.chunk import Batches, Elements
from streamrec.pipeline.elements.columns import Columns, Mixed, objects
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows, ragged_rows
from streamrec.tfrecord import Frames, Scattered

Node = list[Any]

LENGTH_BYTES = 4
NUMBERS = "biufcmMSU"
"""Kinds of dtypes that their `str` describes completely."""


def pack(elements: Elements) -> bytes:
    """Packs elements into one block; a TypeError names a value that cannot be stored."""
    packing = _Packing()
    node = packing.node(elements)
    head = {"sizes": [len(buffer) for buffer in packing.buffers], "elements": node}
    text = json.dumps(head, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *packing.buffers])


def unpack(block: memoryview) -> Any:
    """The elements of a block. Frames share its memory; other values are copies."""
    end = LENGTH_BYTES + int.from_bytes(block[:LENGTH_BYTES], "little")
    head = json.loads(bytes(block[LENGTH_BYTES:end]).decode("utf-8", "surrogatepass"))
    buffers = []
    for size in head["sizes"]:
        buffers.append(block[end : end + size])
        end += size
    return _Unpacking(buffers).value(head["elements"])


PLAIN = (str, int, float, bool, type(None))
STORED = {
    Frames,
    Scattered,
    Batches,
    Columns,
    BytesColumn,
    RaggedTensor,
    SparseTensor,
    RaggedRows,
    SparseRows,
    Mixed,
    np.ndarray,
    bytes,
    dict,
    tuple,
    list,
    *PLAIN,
}
"""Types of values that can be stored, besides NumPy's scalars."""


class _Packing:
    """Makes nodes, and keeps their buffers."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def node(self, value: Any) -> Node:
        """The node of one value, whose buffers are kept; a TypeError for values of other types."""
        kind = type(value)
        if kind not in STORED:  # the exact type: a subclass would come back as its base
            if isinstance(value, np.generic):
                return ["scalar", *self._raw(np.asarray(value))]
            raise TypeError(
                f"{add_article(f'{kind.__module__}.{kind.__qualname__}')} cannot be stored in a "
                "cache file: map elements to arrays, records, numbers, strings, or dicts, tuples "
                "and lists of them, or cache in memory"
            )
        match value:
            case Frames():  # the lengths, and the payloads back to back
                return [
                    "frames",
                    self._keep(value.lengths.astype("<i8").tobytes()),
                    self._keep(value.compact().buffer),
                ]
            case Batches():
                return ["batches", value.size, self.node(value.frames)]
            case Columns():
                return ["columns", self.node(value.nest)]
            case BytesColumn():
                strings = Frames(value.buffer, value.spans.reshape(-1, 2))
                return ["column", list(value.shape), self.node(strings)]
            case RaggedTensor(values, levels):
                return ["ragged", self.node(values), [self.node(splits) for splits in levels]]
            case SparseTensor():
                return ["sparse", *map(self.node, value.parts)]
            case RaggedRows():
                return ["ragged rows", self.node(value.tensor())]
            case SparseRows():
                return ["sparse rows", self.node(value.tensor()), self.node(value.shapes)]
            case np.ndarray() if value.dtype.kind == "O":
                return ["objects", list(value.shape), self._rows(value.ravel().tolist())]
            case np.ndarray():
                return ["array", *self._raw(value)]
            case bytes():
                return ["bytes", self._keep(value)]
            case dict():
                return ["dict", check_keys(value), [self.node(part) for part in value.values()]]
            case tuple():
                return ["tuple", [self.node(part) for part in value]]
            case Mixed():
                return ["mixed", [self.node(part) for part in value.parts], self.node(value.order)]
            case list():
                return self._rows(value)
        return ["json", value]

    def _keep(self, data: Any) -> int:
        """Keeps a buffer; returns its number."""
        self.buffers.append(memoryview(data).cast("B"))
        return len(self.buffers) - 1

    def _raw(self, array: npt.NDArray[Any]) -> Node:
        return [dtype_name(array.dtype), list(array.shape), self._keep(array.tobytes())]

    def _rows(self, values: Sequence[Any]) -> Node:
        """A list, as columns if its elements are similar."""
        kinds = set(map(type, values))
        columns = self._columns(kinds.pop(), values) if len(kinds) == 1 else None
        return columns or ["list", [self.node(value) for value in values]]

    def _columns(self, kind: type, values: Sequence[Any]) -> Node | None:
        """Values of one type as columns.

        None if their structure differs, or if the type has no columns.
        """
        first = values[0]
        # The order of keys counts: a dict comes back with the keys of the first one, in its order.
        if kind is dict and first and all(list(value) == list(first) for value in values):
            columns = [self._rows([value[key] for value in values]) for key in first]
            return ["dicts", check_keys(first), columns]
        if kind is tuple and first and len(set(map(len, values))) == 1:
            return ["tuples", [self._rows(part) for part in zip(*values, strict=True)]]
        if kind is bytes:
            return ["strings", self.node(Frames.of(values))]
        if kind in PLAIN:
            return ["plains", list(values)]
        if issubclass(kind, np.generic) and len({value.dtype for value in values}) == 1:
            return ["scalars", *self._raw(np.array(values, first.dtype))]
        if (
            kind is not np.ndarray
            or first.dtype.kind == "O"
            or len({(each.dtype, each.ndim) for each in values}) > 1
        ):
            return None
        shapes = [each.shape for each in values]
        # `stack` and `concatenate` give the machine's byte order; `astype` brings back the values'.
        if len(set(shapes)) == 1:
            if not first.ndim:  # rows of a column would be scalars, not arrays
                return None
            return ["arrays", *self._raw(np.stack(values).astype(first.dtype, copy=False))]
        flat = np.concatenate([each.ravel() for each in values])
        return [
            "uneven",
            self._raw(np.array(shapes, np.int64)),
            self._raw(flat.astype(first.dtype, copy=False)),
        ]


def check_keys(value: Mapping[Any, Any]) -> list[Any]:
    """The keys of a dict, in order; a TypeError for keys that JSON cannot give back."""
    for key in value:
        if type(key) not in PLAIN:
            raise TypeError(
                f"the key {describe_value(key)} cannot be stored in a cache file: map it to str"
            )
    return list(value)


class _Unpacking:
    """Makes values of nodes and their buffers."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers

    def value(self, node: Node) -> Any:
        """The value of a node; a ValueError if the node is of an unknown kind."""
        match node:
            case ["frames", lengths, payloads]:
                # Damaged lengths may lead outside the buffer: Frames checks each span that it
                # reads.
                ends = np.cumsum(np.frombuffer(self._buffers[lengths], "<i8"), dtype=np.int64)
                starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
                return Frames(self._buffers[payloads], np.stack([starts, ends], 1))
            case ["batches", size, frames]:
                return Batches(self.value(frames), size)
            case ["columns", nest]:
                return Columns(self.value(nest))
            case ["mixed", parts, order]:
                return Mixed([self.value(part) for part in parts], self.value(order))
            case ["column", shape, frames]:
                strings = self.value(frames)
                return BytesColumn(strings.buffer, strings.spans.reshape(*shape, 2))
            case ["ragged", values, splits]:
                return RaggedTensor(self.value(values), tuple(map(self.value, splits)))
            case ["sparse", indices, values, shape]:
                return SparseTensor(self.value(indices), self.value(values), self.value(shape))
            case ["ragged rows", ragged]:
                return ragged_rows(self.value(ragged))
            case ["sparse rows", sparse, shapes]:
                rows = SparseRows.of(self.value(sparse))
                return SparseRows(rows.indices, rows.values, self.value(shapes))
            case ["objects", shape, values]:
                return objects(self.value(values)).reshape(shape)
            case ["array", *raw]:
                return self._raw(*raw)
            case ["scalar", *raw]:
                return self._raw(*raw)[()]
            case ["bytes", buffer]:
                return bytes(self._buffers[buffer])
            case ["dict", keys, parts]:
                return dict(zip(keys, map(self.value, parts), strict=True))
            case ["tuple", parts]:
                return tuple(map(self.value, parts))
            case ["json" | "plains", value]:
                return value
        return self._list(node)

    def _list(self, node: Node) -> list[Any]:
        match node:
            case ["list", parts]:
                return [self.value(part) for part in parts]
            case ["dicts", keys, columns]:
                rows = zip(*map(self.value, columns), strict=True)
                return [dict(zip(keys, row, strict=True)) for row in rows]
            case ["tuples", columns]:
                return list(zip(*map(self.value, columns), strict=True))
            case ["strings", frames]:
                return list(self.value(frames))
            case ["arrays" | "scalars", *raw]:
                return list(self._raw(*raw))
            case ["uneven", shapes, flat]:
                sizes = self._raw(*shapes)
                ends = np.cumsum(np.prod(sizes, axis=1, dtype=np.int64))
                parts = np.split(self._raw(*flat), ends[:-1])
                pairs = zip(parts, sizes.tolist(), strict=True)
                return [part.reshape(shape) for part, shape in pairs]
        raise ValueError(
            f"stored elements have the unknown kind {node[0]!r}: the file or the state is damaged"
        )

    def _raw(self, dtype: str, shape: Sequence[int], buffer: int) -> npt.NDArray[Any]:
        kind = dtype_by_name(dtype)
        if kind.hasobject:  # NumPy would take the bytes for pointers
            raise ValueError(
                f"a stored array has dtype {dtype!r}, which holds objects: the file or state is "
                "damaged"
            )
        return np.ndarray(tuple(shape), kind, self._buffers[buffer]).copy()


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The text that `dtype_by_name` makes the same dtype of.

    Raises a TypeError for dtypes with fields or objects.
    """
    if dtype.kind in NUMBERS:
        return dtype.str
    try:
        if np.dtype(dtype.name) == dtype:  # ml_dtypes'
            return dtype.name
    except TypeError:
        pass
    raise TypeError(
        f"an array of dtype {dtype} cannot be stored in a cache file: map it to numbers or strings"
    )


def digest_values(value: Any) -> str:
    """A digest of values.

    Equal values in different containers have one digest, since containers depend on where chunks
    end.
    """
    digest = hashlib.blake2b(digest_size=16)
    for piece in bytes_of(value):
        digest.update(b"%d:" % len(piece) + piece)
    return digest.hexdigest()


def bytes_of(value: Any) -> Iterator[bytes]:
    """Bytes that differ for different values."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield repr(key).encode()
            yield from bytes_of(part)
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        yield f"{value.dtype.str}{value.shape}".encode()
        yield value.tobytes()
    elif isinstance(value, tuple | CompositeTensor):
        parts = value.parts if isinstance(value, CompositeTensor) else value
        yield f"{type(value).__name__}{len(parts)}".encode()
        for part in parts:
            yield from bytes_of(part)
    elif isinstance(
        value, list | Frames | Batches | BytesColumn | RaggedRows | SparseRows | np.ndarray
    ):
        rows: list[Any] = [value[index] for index in range(len(value))]
        shapes = {
            (row.dtype, row.shape) if isinstance(row, np.ndarray | np.generic) else None
            for row in rows
        }
        # As one array if it can be: a list of equal rows and an array of them are equal values.
        if len(shapes) == 1 and None not in shapes and rows[0].dtype.kind != "O":
            yield from bytes_of(np.array(rows))
        else:
            yield f"ndarray{len(rows)}".encode()
            for row in rows:
                yield from bytes_of(row)
    elif hasattr(value, "__array__") and not isinstance(value, np.generic):
        yield from bytes_of(np.asarray(value))  # a tensor's repr has only some values
    else:
        yield repr(value).encode()
