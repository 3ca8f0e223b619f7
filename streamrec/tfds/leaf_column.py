"""How the values of one feature are found in Examples, and made into a column.

A folder of TensorFlow Datasets stores nested features flat: names are joined by `/`, and the values
of all steps of a sequence follow each other. Where sequences are within sequences, the values are
in `NAME/ragged_flat_values` and the lengths of the rows in `NAME/ragged_row_lengths_0` and so on.
An array with several unknown sizes has its `NAME/shape` and `NAME/value`.
"""

from __future__ import annotations

import math
import wave
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import images
from streamrec.errors import FeatureError
from streamrec.example import BytesColumn, FixedLenFeature, RaggedFeature, RaggedTensor
from streamrec.example.dtypes import dtype_by_name
from streamrec.pipeline.elements.columns import as_array
from streamrec.pipeline.engine.shared_items import for_each_item
from streamrec.tfds.features import LeafFeature
from streamrec.tfrecord import Frames

Array: TypeAlias = "npt.NDArray[Any]"


class SkipDecoding:
    """`skip` as a decoder: images and encoded arrays stay the bytes of their file."""

    def __repr__(self) -> str:
        return "skip"

    def __reduce__(self) -> str:
        return "skip"


skip: Final = SkipDecoding()


@dataclass(frozen=True, kw_only=True)
class LeafColumn:
    """One feature of a batch of Examples.

    Attributes:
        path: The names on the way to it.
        leaf: Its description; that of one frame for a video.
        lengths: The lengths of the sequences around it, outermost first; None for those that differ
            from example to example. The frames of a video are such a sequence.
        decoder: `skip`, or a function that replaces the decoding of each value; None for the usual
            one.
        named: Whether a label becomes the name of its class.
    """

    path: tuple[str, ...]
    leaf: LeafFeature
    lengths: tuple[int | None, ...] = ()
    decoder: SkipDecoding | Callable[[Any], Any] | None = None
    named: bool = False

    @property
    def name(self) -> str:
        """Its name in Examples."""
        return "/".join(self.path)

    @property
    def values_name(self) -> str:
        """The name of its values in Examples: another one within two or more sequences."""
        return self.name if len(self.lengths) < 2 else f"{self.name}/ragged_flat_values"

    @property
    def is_file(self) -> bool:
        """Whether each value is one string that is decoded: an image, or an encoded array."""
        return self.leaf.kind in ("image", "labeled image") or self.leaf.encoding in (
            "bytes",
            "zlib",
            "file",
        )

    @property
    def has_shapes(self) -> bool:
        """Whether each example has the shape of its array, besides the values."""
        return not self.is_image and self.leaf.shape.count(None) > 1

    @property
    def is_image(self) -> bool:
        return self.leaf.kind in ("image", "labeled image")

    @property
    def stored(self) -> Any:
        """The kind of its values in Examples: bytes, np.float32 or np.int64."""
        if self.is_file or self.leaf.dtype == "bytes":
            return bytes
        return np.float32 if "float" in self.leaf.dtype else np.int64

    @property
    def item_shape(self) -> tuple[int | None, ...]:
        """The shape of one value as stored: `()` for a string that is decoded."""
        return () if self.is_file else self.leaf.shape

    @property
    def is_dense(self) -> bool:
        """Whether all examples have the same number of values."""
        sizes = (*self.lengths, *self.item_shape)
        return None not in sizes and 0 not in sizes and len(self.lengths) < 2

    def features(self) -> dict[str, Any]:
        """The configurations to parse it with, by their names in Examples."""
        # TensorFlow Datasets writes arrays with several unknown sizes as two features.
        if self.has_shapes:
            if len(self.lengths) > 1 or not self.is_file:
                raise FeatureError(
                    "arrays with several unknown sizes are read only with an encoding, and within "
                    "at most one sequence: leave the feature out with features=",
                    self.name,
                )
            return {
                f"{self.name}/shape": RaggedFeature(np.int64),
                f"{self.name}/value": RaggedFeature(bytes),
            }
        if self.lengths and None in self.item_shape:
            raise FeatureError(
                "arrays of unknown size in a sequence are read only with an encoding: leave the "
                "feature out with features=",
                self.name,
            )
        if self.is_dense and not self.leaf.optional:
            shape = [size for size in (*self.lengths, *self.item_shape) if size is not None]
            return {self.name: FixedLenFeature(shape, self.stored)}
        if len(self.lengths) < 2:
            return {self.name: RaggedFeature(self.stored)}
        # Each level of nested sequences but the innermost is a feature of row lengths.
        partitions: list[Any] = [
            RaggedFeature.RowLengths(f"{self.name}/ragged_row_lengths_{level}")
            for level in range(len(self.lengths) - 1)
        ]
        if self.item_size > 1:
            partitions.append(RaggedFeature.UniformRowLength(self.item_size))
        return {self.name: RaggedFeature(self.stored, self.values_name, partitions, np.int64)}

    @property
    def item_size(self) -> int:
        """How many stored values make one, apart from a size that is unknown."""
        return math.prod(size for size in self.item_shape if size is not None)

    def column(self, parsed: Mapping[str, Any], count: int) -> Any:
        """The column of `count` examples, from the parsed features.

        An array, with a dimension of the examples in front, if all values have one shape; a
        RaggedTensor if the first size, or the lengths of sequences, differ; else an object array.
        Optional values that are missing are masked in an array of numbers, and None in one of
        objects.
        """
        try:
            if self.has_shapes:
                return self._shaped(parsed, count)
            raw = parsed[self.name]
            if not isinstance(raw, RaggedTensor):
                return self._dense(raw, count)
            if not self.lengths:
                return self._single(raw.flat_values, raw.nested_row_splits[0], count)
            return self._ragged(raw, count)
        except FeatureError as error:
            raise FeatureError(error.reason, self.name, error.record) from error.__cause__

    def rows(self, column: Any) -> Any:
        """A column from which single examples are taken: its arrays are joined within each.

        An example's sequence of images of one size is one array then, as TensorFlow Datasets
        gives it; images of several sizes stay an object array.
        """
        splits = column.nested_row_splits if isinstance(column, RaggedTensor) else ()
        values = column.flat_values if splits else column
        if not self.is_file or self.decoder is not None or values.dtype != object:
            return column
        if len(splits) > 1 or (not splits and column.ndim < 2):
            return column
        joined = np.empty(len(column), object)
        for number, row in enumerate(column):
            joined[number] = self._join(row)
        return joined

    def _join(self, row: Array) -> Array:
        """The arrays of one example as one, if they have one shape."""
        if len(row):
            return stack(list(row)) if len({one.shape for one in row}) == 1 else row
        return np.empty((0, *(size or 0 for size in self.leaf.shape)), self._dtype)

    def decoded(self, column: Any) -> Any:
        """A column of files, or of values for the user's decoder, with each of them decoded."""
        try:
            if isinstance(column, RaggedTensor):
                # The error names the row of the outermost dimension.
                splits = column.nested_row_splits
                values = self._items(column.flat_values, partial(row_within, splits))
                return RaggedTensor(values, splits)
            array = as_array(column) if isinstance(column, Frames) else np.asarray(column)
            if not self.is_file:
                values = self._items(array, lambda item: item)
                return values.reshape(len(array), *values.shape[1:])
            per_row = math.prod(array.shape[1:])
            values = self._items(array.reshape(-1), lambda item: item // per_row)
            return values.reshape(*array.shape, *values.shape[1:])
        except FeatureError as error:
            raise FeatureError(error.reason, self.name, error.record) from error.__cause__

    def _dense(self, raw: Any, count: int) -> Any:
        per_example = math.prod(size for size in self.lengths if size is not None)
        values = self._items(raw.reshape(-1), lambda item: item // per_example)
        return values.reshape(count, *self.lengths, *values.shape[1:])

    def _single(self, flat: Any, splits: Array, count: int) -> Any:
        """A value in each example, which may be missing, or have one unknown size."""
        lengths = np.diff(splits)
        size = self.item_size
        # Without values, an array is empty if its sizes allow that, and else missing.
        if None in self.item_shape:
            check_multiple(lengths, size)
            return self._resized(flat, splits, size)
        if size == 0:
            return np.zeros((count, *(length or 0 for length in self.item_shape)), self._dtype)
        present = lengths > 0
        if (wrong := np.flatnonzero(present & (lengths != size))).size:
            raise FeatureError(
                f"it has {lengths[wrong[0]]:,} values, and features.json says {size:,}",
                record=int(wrong[0]),
            )
        records = np.flatnonzero(present)
        values = self._items(flat, lambda item: int(records[item]))
        if present.all():
            return values
        if not self.leaf.optional:
            raise FeatureError("the example lacks it", record=int(np.flatnonzero(~present)[0]))
        return spread(values, present)

    def _resized(self, flat: Any, splits: Array, size: int) -> Any:
        """Arrays with one unknown size: ragged if that is the first, else each of its own."""
        shape = [-1 if length is None else length for length in self.leaf.shape]
        if shape[0] == -1 and size:
            values = self._cast(flat).reshape(shape)
            return RaggedTensor(values, (splits // size,))
        values = self._cast(flat)
        arrays = np.empty(len(splits) - 1, object)
        for row, (first, last) in enumerate(zip(splits[:-1], splits[1:], strict=True)):
            # Without a value, NumPy cannot tell the unknown size.
            sizes = shape if first < last else [max(length, 0) for length in shape]
            arrays[row] = values[first:last].reshape(sizes)
        return arrays

    def _ragged(self, raw: RaggedTensor, count: int) -> RaggedTensor:
        """The values of sequences."""
        splits = raw.nested_row_splits
        flat: Any = raw.flat_values
        if len(self.lengths) == 1 and self.item_size > 1:
            check_multiple(np.diff(splits[0]), self.item_size)
            splits = (splits[0] // self.item_size,)
        values = self._items(flat.reshape(-1), partial(row_within, splits))
        return RaggedTensor(values, tuple(bounds.astype(np.int64) for bounds in splits))

    def _shaped(self, parsed: Mapping[str, Any], count: int) -> Any:
        """Arrays with several unknown sizes, which each example has."""
        sizes = parsed[f"{self.name}/shape"]
        files = parsed[f"{self.name}/value"]
        rank = len(self.leaf.shape)
        splits = files.nested_row_splits[0]
        if not np.array_equal(sizes.nested_row_splits[0], splits * rank):
            raise FeatureError(f"its shapes do not have {rank} sizes for each value")
        shapes = sizes.flat_values.reshape(-1, rank).tolist()
        strings = files.flat_values
        values: Any = np.empty(len(shapes), object)
        for item, shape in enumerate(shapes):
            record = int(np.searchsorted(splits, item, "right")) - 1
            values[item] = self._decode(bytes(strings[item]), record, tuple(shape))
        if self.lengths:
            return RaggedTensor(values, (splits.astype(np.int64),))
        present = np.diff(splits) > 0
        if present.all():
            return values
        if not self.leaf.optional:
            raise FeatureError("the example lacks it", record=int(np.flatnonzero(~present)[0]))
        return spread(values, present)

    def _items(self, flat: Any, record_of: Callable[[int], int]) -> Any:
        """All values, in an array with a dimension of the values in front."""
        if self.decoder is skip and self.stored is bytes:
            return as_objects(flat)
        if callable(self.decoder):
            return stack(self._call(flat, record_of))
        if not self.is_file:
            shape = [int(size or 0) for size in self.item_shape]
            # Arrays of size 0 store no values, so their number is unknown: there are none then.
            count = len(flat) // size if (size := math.prod(shape)) else 0
            return self._cast(flat).reshape(count, *shape)
        return self._files(flat, record_of)

    def _files(self, flat: Any, record_of: Callable[[int], int]) -> Any:
        """The values of files, each of them decoded."""
        fixed = None not in self.leaf.shape and self.leaf.encoding != "file"
        shape = [int(size) for size in self.leaf.shape if size is not None] if fixed else []
        values: Any = images.empty((len(flat), *shape), self._dtype if fixed else object)
        firsts: Sequence[int] = range(len(flat))
        if isinstance(flat, np.ndarray):
            # Windows of steps have the same image, one object, several times: it is decoded once.
            # The strings of a BytesColumn are made one by one, and are all different objects.
            found: dict[int, int] = {}
            firsts = [found.setdefault(id(data), item) for item, data in enumerate(flat)]
        different = list(dict.fromkeys(firsts))

        def decode(number: int) -> None:
            item = different[number]
            # An image of the right shape is decoded where it stays.
            place = values[item] if fixed else None
            value = self._decode(flat[item], record_of(item), self.leaf.shape, place)
            if value is not place:
                values[item] = value

        for_each_item(len(different), decode)
        if len(different) < len(flat):
            for item, first in enumerate(firsts):
                if first < item:
                    values[item] = values[first]
        return values

    def _call(self, flat: Any, record_of: Callable[[int], int]) -> list[Any]:
        """The results of the user's decoder for each value."""
        assert callable(self.decoder)
        results = []
        for item, value in enumerate(flat):
            try:
                results.append(self.decoder(value))
            except FeatureError as error:
                raise FeatureError(error.reason, record=record_of(item)) from error
        return results

    def _decode(
        self, data: bytes, record: int, shape: Sequence[int | None], out: Any = None
    ) -> Any:
        """One value from its string; `out`, with the value, if that could be decoded into it."""
        if self.decoder is skip:
            return bytes(data)
        try:
            if self.is_image:
                value = decode_pixels(data, self.leaf, out)
            elif self.leaf.encoding == "file":
                value = decode_wave(data, self.leaf)
            else:
                value = self._array(data, list(shape))
        except FeatureError as error:
            raise FeatureError(error.reason, record=record) from error.__cause__
        sizes = zip(value.shape, shape, strict=False)
        if len(value.shape) != len(shape) or any(known not in (None, n) for n, known in sizes):
            raise FeatureError(
                f"it has the shape {list(value.shape)}, and features.json says {list(shape)}",
                record=record,
            )
        return value

    def _array(self, data: bytes, shape: list[int | None]) -> Array:
        """An array that is stored as the bytes of its elements."""
        dtype = self._dtype
        expected = None if None in shape else math.prod(int(size or 0) for size in shape)
        if self.leaf.encoding == "zlib":
            data = inflate(data, None if expected is None else expected * dtype.itemsize)
        try:
            values = np.frombuffer(data, dtype.newbyteorder("<") if dtype.isbuiltin else dtype)
            return values.astype(dtype).reshape([-1 if size is None else size for size in shape])
        except ValueError as error:
            raise FeatureError(
                f"its {len(data):,} bytes do not make an array of {dtype} of shape {shape}: {error}"
            ) from error

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(object) if self.leaf.dtype == "bytes" else dtype_by_name(self.leaf.dtype)

    def _cast(self, flat: Any) -> Any:
        """Stored values in the feature's dtype."""
        if self.stored is bytes:
            return as_objects(flat)
        values = np.asarray(flat)
        if self.named and self.leaf.names is not None:
            # -1 stands for an example without a label.
            names = np.array([*self.leaf.names, None], object)
            return names[np.clip(values, -1, len(self.leaf.names))]
        # int64 has the bits of a uint64, not its value.
        return values.view(np.uint64) if self._dtype == np.uint64 else values.astype(self._dtype)


def row_within(splits: Sequence[Array], item: int) -> int:
    """The row of the outermost dimension that has a value."""
    for bounds in reversed(splits):
        item = int(np.searchsorted(bounds, item, "right")) - 1
    return item


def decode_pixels(data: bytes, leaf: LeafFeature, out: Array | None = None) -> Array:
    """The pixels of an image file; `out`, with them, if they could be decoded into it."""
    channels = leaf.shape[-1] or 0
    if leaf.dtype == "float32":
        # A float is stored as the four channels of a PNG.
        pixels = images.decode_by_default(data, 4, "uint8")
        return np.ascontiguousarray(pixels).view(np.float32)
    return images.decode_by_default(data, channels, leaf.dtype, out)


def decode_wave(data: bytes, leaf: LeafFeature) -> Array:
    """The samples of a WAV file, as whole numbers of its width, in the feature's dtype.

    Those of 8 bits are brought to -128 and above, and those of 24 bits are multiplied by 256.
    """
    try:
        with wave.open(BytesIO(data)) as file:
            channels = file.getnchannels()
            width = file.getsampwidth()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise FeatureError(
            f"streamrec decodes only WAV files of whole numbers ({error}): pass decoders= with "
            "streamrec.tfds.skip, which leaves the bytes of the file, or with a function"
        ) from error
    wanted = leaf.shape[1] if len(leaf.shape) > 1 else 1
    if channels != wanted:
        raise FeatureError(f"it has {channels} channels, and features.json says {wanted}")
    # Samples of 8 bits have no sign. NumPy has no integers of 24 bits: a zero byte is put below.
    if width == 1:
        samples: Array = np.frombuffer(frames, np.uint8).astype(np.int16) - 128
    elif width == 3:
        padded = np.zeros((len(frames) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(frames, np.uint8).reshape(-1, 3)
        samples = padded.view("<i4").reshape(-1)
    else:
        samples = np.frombuffer(frames, f"<i{width}")
    return samples.astype(leaf.dtype).reshape(-1, *([channels] if len(leaf.shape) > 1 else []))


def inflate(data: bytes, expected: int | None) -> bytes:
    """Inflated bytes; no more than expected, so that a few bytes cannot take all memory."""
    try:
        inflater = zlib.decompressobj()
        found = inflater.decompress(data, 0 if expected is None else expected + 1)
        return found if expected is not None else found + inflater.flush()
    except zlib.error as error:
        raise FeatureError(f"it cannot be inflated: {error}") from error


def as_objects(flat: Any) -> Array:
    """Strings as an object array of bytes."""
    return flat.to_numpy() if isinstance(flat, BytesColumn) else np.asarray(flat, object)


def check_multiple(lengths: Array, size: int) -> None:
    """Checks that each example has whole arrays of `size` values."""
    if size > 1 and (wrong := np.flatnonzero(lengths % size)).size:
        raise FeatureError(
            f"it has {lengths[wrong[0]]:,} values, which are not whole arrays of {size:,}",
            record=int(wrong[0]),
        )


def spread(values: Any, present: npt.NDArray[np.bool_]) -> Any:
    """The values in the rows that have one; the others are masked, or None among objects."""
    shape = (len(present), *values.shape[1:])
    if values.dtype == object:
        rows = np.full(shape, None, object)
        rows[present] = values
        return rows
    data = np.zeros(shape, values.dtype)
    data[present] = values
    mask = np.broadcast_to(~present.reshape(-1, *[1] * (len(shape) - 1)), shape)
    return np.ma.MaskedArray(data, mask.copy())


def stack(results: Sequence[Any]) -> Array:
    """The results of a decoder in one array, if they have one shape; else an object array."""
    arrays = [np.asarray(result) for result in results if not isinstance(result, bytes | str)]
    if len(arrays) == len(results) and len({(one.shape, one.dtype) for one in arrays}) == 1:
        return np.stack(arrays)
    values = np.empty(len(results), object)
    for item, result in enumerate(results):
        values[item] = result
    return values
