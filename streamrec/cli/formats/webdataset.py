r"""WebDataset tar: the features of a record are files, one after the other: `KEY.FEATURE.TYPE`.

- int64 and float32 are `.npy` arrays of one dimension, which WebDataset's decoder reads.
- One byte string is a file as it is: `.jpg` or `.png` where it is such an image, `.txt` where it is
  text, else `.bin`. Any other number of them is a `.json` list as in `jsonl.py`; so is a feature
  without a kind.
- A feature has one ending in all records: `.json` where one of them needs it, else `.bin` where
  they differ.
- `/` in a feature's name is written as a dot, and the header has the name. It is written as `%2F`
  where two features would have the same files. So are `%`, `\` and control characters.
- The key is the record's number. A feature `__key__`, one byte string, is the key itself, where it
  can be one; reading gives it back. A header at the beginning says that a tar was written here; of
  other tars every key becomes `__key__`.
- Of other tars, what follows the first dot of a name is the feature, and the file is its value:
  `0001.jpg` is the byte string `jpg`. `cls` is a number, as for WebDataset.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import IO, Any, BinaryIO, Final, Self, cast
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

import numpy as np

from streamrec.cli.formats.codec import Codec, Field, FileEncoder, Look, Reading
from streamrec.cli.formats.jsonl import feature_from_json, feature_to_json
from streamrec.cli.library import (
    BYTES,
    FLOAT,
    INT64,
    FeatureValues,
    example_of,
    features_of,
    image_type,
    text_of,
)

MARK: Final = {"STREAMREC.members": "key.feature.type"}
NAMES: Final = "STREAMREC.names"
"""The header's field with the features whose names have a slash.

It says what their files have in its place, and the name.
"""

KEY: Final = "__key__"
NO_FEATURE: Final = "__empty__"
"""The one file of a record that has no feature."""

DTYPES: Final[dict[str | None, np.dtype[Any]]] = {INT64: np.dtype("<i8"), FLOAT: np.dtype("<f4")}
MAX_HEADER_BYTES: Final = 1 << 20
"""The limit of a member that only describes others, such as long names."""

USABLE_KEY: Final = re.compile(r"(?![0-9]+\Z)[\w-]+(/[\w-]+)*", re.ASCII)
SPECIAL: Final = re.compile(r"[%/\\\x00-\x1f\x7f]")
MEMBER: Final = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)


class WebDatasetEncoder(FileEncoder):
    """Encodes a tar whose members are the features of one record after the other.

    Args:
        columns: All features, with the ending of their files.
        first: The number of the first record, which is its key.
    """

    def __init__(self, columns: Iterable[Field], first: int) -> None:
        self._endings = {column.name: column.ending for column in columns}
        self._number = first
        self._last = ""
        self._names = names_in_files(self._endings)
        dotted = {file: name for name, file in self._names.items() if file != escape(name)}
        header = MARK | ({NAMES: urlencode(dotted)} if dotted else {})
        # It waits for the first record: no tar may hold nothing else.
        self._beginning = tarfile.TarInfo.create_pax_global_header(header)

    def write(self, records: Iterable[bytes]) -> bytes:
        members = b"".join(self._sample(record) for record in records)
        if members:
            members = self._beginning + members
            self._beginning = b""
        return members

    def finish(self) -> bytes:
        """The two empty blocks at the end of a tar."""
        return bytes(2 * tarfile.BLOCKSIZE)

    def _sample(self, record: bytes) -> bytes:
        features = features_of(record, self._number)
        key = key_in(features)
        if key is None or key == self._last:  # readers join samples of the same key
            key = f"{self._number:09d}"
        else:
            del features[KEY]
        self._number += 1
        self._last = key
        files = [] if features else [member(f"{key}.{NO_FEATURE}", b"")]
        for name, values in features.items():
            ending = self._endings.get(name, "json")
            path = f"{key}.{self._names.get(name) or escape(name)}.{ending}"
            files.append(member(path, content_of(values, ending)))
        return b"".join(files)


def escape(name: str) -> str:
    """Writes what a file's name cannot hold, and `%`, as `%` and two hexadecimal digits."""
    return SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", name)


def names_in_files(names: Iterable[str]) -> dict[str, str]:
    """What each feature is called in the names of its files.

    Examples:
        >>> names_in_files(["image/encoded", "a/b", "a.b"])
        {'image/encoded': 'image.encoded', 'a/b': 'a%2Fb', 'a.b': 'a.b'}
    """
    dotted = {name: escape(name.replace("/", ".")) for name in names}
    times = Counter(dotted.values())
    return {name: file if times[file] == 1 else escape(name) for name, file in dotted.items()}


@lru_cache(1)
def names_in_header(text: str) -> Mapping[str, str]:
    """The features whose names have a slash, by what their files have in its place."""
    return dict(parse_qsl(text, keep_blank_values=True))


def key_in(features: Mapping[str, FeatureValues]) -> str | None:
    """The key in a record's features, if it is valid."""
    kind, values = features.get(KEY, (None, []))
    if kind != BYTES or len(values) != 1:
        return None
    text = values[0].decode(errors="replace")
    return text if USABLE_KEY.fullmatch(text) else None


def content_of(values: FeatureValues, ending: str) -> bytes:
    """The file of a feature: JSON, an array, or its one byte string as it is."""
    if ending == "json":
        return json.dumps(feature_to_json(values)).encode()
    if ending == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.array(values.values, DTYPES[values.kind]), allow_pickle=False)
        return buffer.getvalue()
    data: bytes = values.values[0]
    return data


def ending_of(values: FeatureValues) -> str:
    """The ending that a feature's file needs."""
    if values.kind in DTYPES:
        return "npy"
    if values.kind is None or len(values.values) != 1:
        return "json"
    data: bytes = values.values[0]
    if image := image_type(data):
        return image.replace("jpeg", "jpg")
    return "bin" if text_of(data) is None else "txt"


def endings_in(records: Iterable[bytes]) -> dict[str, str]:
    """The ending that each feature's files need in these records."""
    endings: dict[str, str] = {}
    for number, record in enumerate(records):
        features = features_of(record, number)
        endings = join_endings(
            endings, {name: ending_of(values) for name, values in features.items()}
        )
    return endings


def join_endings(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """The endings of two parts of the data.

    Where they differ, it is "json" if a list or an array is among them, else "bin".
    """
    endings = {**one, **other}
    for name in one.keys() & other.keys():
        if one[name] != other[name]:
            endings[name] = "json" if {one[name], other[name]} & {"json", "npy"} else "bin"
    return endings


def member(name: str, data: bytes) -> bytes:
    """A file in a tar: the header, the data, and zeros up to a whole block."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + padding


class BoundedFile:
    """A file for `tarfile` that allows 16 reads at its end.

    A damaged header can make `tarfile` read forever.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ends = 0

    def read(self, size: int) -> bytes:
        """Reads up to `size` bytes.

        Raises:
            EOFError: `tarfile` goes on at the end of the file.
        """
        data = self._file.read(size)
        self._ends += not data
        if self._ends > 16:
            raise EOFError("the file ends within a member")
        return data


class Member(tarfile.TarInfo):
    """A header: if it is damaged, an error, which is the end of the tar for `tarfile`.

    Its size must be in bounds.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parses a header, and checks what `tarfile` does not.

        Raises:
            tarfile.ReadError: The header is damaged, or of a sparse file.
        """
        try:
            header = super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"a damaged header: {error}") from error
        if header.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError(
                "a sparse member, which is not read: write the tar without --sparse"
            )
        if header.size < 0 or (
            header.type not in tarfile.REGULAR_TYPES and header.size > MAX_HEADER_BYTES
        ):
            raise tarfile.ReadError(f"a header of {header.size:,} bytes, which is damage")
        return header


def records_in(file: BinaryIO, reading: Reading) -> Iterator[bytes]:
    """Reads a tar; skips files without a dot in their name."""
    with tarfile.open(
        fileobj=cast(Any, BoundedFile(file)), mode="r|", encoding="utf-8", tarinfo=Member
    ) as tar:
        features: dict[str, FeatureValues] = {}
        last = None
        for key, suffix, member_file in files_in(tar):
            if key != last and last is not None:
                record = example_of(features)
                features = {}
                yield record
            last = key
            # Known from the first member on: the header stands before all members.
            ours = MARK.items() <= tar.pax_headers.items()
            names = names_in_header(tar.pax_headers.get(NAMES, "")) if ours else None
            if suffix != NO_FEATURE:
                name, values = feature_of(suffix, contents_of(member_file), names)
                if reading.wants(name):
                    features[name] = values
            if reading.wants(KEY) and not (ours and key.isdigit()):
                features[KEY] = FeatureValues(BYTES, [key.encode("utf-8", "surrogateescape")])
        if last is not None:
            record = example_of(features)
            features = {}  # while the record is written, nothing holds the values too
            yield record


def files_in(tar: tarfile.TarFile) -> Iterator[tuple[str, str, IO[bytes]]]:
    """The key, suffix and contents of each file; read the contents before the next file."""
    while (info := tar.next()) is not None:
        # Else `tarfile` keeps the name of every file in memory.
        tar.members.clear()  # type: ignore[attr-defined]
        found = MEMBER.fullmatch(info.name)
        opened = tar.extractfile(info) if info.isfile() else None
        if found and opened:
            yield found[1], found[2], opened


def contents_of(file: IO[bytes]) -> bytes:
    """All bytes of a file, in a growing buffer.

    `read()` needs three times the memory, and headers may be wrong.
    """
    buffer = io.BytesIO()
    while piece := file.read(1 << 20):
        buffer.write(piece)
    return buffer.getvalue()


def array_in(data: bytes) -> np.ndarray[Any, Any] | None:
    """The array of numbers of one dimension in a `.npy` file; None for any other array."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    try:
        shape, _, dtype = read_header(file)
    except Exception as error:  # the header is a Python literal, whose parser raises anything
        raise ValueError(f"no header of an array: {type(error).__name__}") from error
    if len(shape) != 1 or dtype.kind not in "if":
        return None
    if not 0 <= shape[0] * dtype.itemsize <= len(data) - file.tell():
        raise ValueError(f"an array of {shape[0]:,} numbers in {len(data):,} bytes")
    return np.frombuffer(data, dtype, shape[0], file.tell())


def feature_of(
    suffix: str, data: bytes, names: Mapping[str, str] | None
) -> tuple[str, FeatureValues]:
    """A feature's name and values.

    `names` are those that the header has, None for a tar of another program.
    """
    escaped, dot, kind = suffix.rpartition(".")
    ours = names is not None
    name = escaped if names is None else names.get(escaped) or unquote_to_bytes(escaped).decode()
    if kind == "npy" and dot:
        # Of other arrays, which other programs write, the file itself is the value.
        array = array_in(data)
        for known, dtype in DTYPES.items():
            if array is not None and array.dtype == dtype:
                return name, FeatureValues(known, array.tolist())
    if kind == "json" and ours:
        return name, feature_from_json(name, json.loads(data))
    if not ours:
        if kind == "cls":
            return suffix, FeatureValues(INT64, [int(data)])
        return suffix, FeatureValues(BYTES, [data])
    return name, FeatureValues(BYTES, [data])


LOOK: Final = Look(
    see=endings_in,
    join=join_endings,
    columns=lambda endings, _: tuple(
        Field(name=name, ending=ending) for name, ending in endings.items()
    ),
    saved=False,
)
CODEC: Final = Codec(lambda columns, first, _: WebDatasetEncoder(columns, first), records_in, LOOK)
