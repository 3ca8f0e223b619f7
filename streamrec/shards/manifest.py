"""Manifests: the shards of a data set, as its writer described them.

Pure; `manifest_files.py` reads and writes them.

A manifest is a JSON object:

    {"format": "streamrec manifest", "version": 1,
     "pattern": "train-{shard:05d}.tfrecord", "compression_type": "GZIP",
     "shards": [{"name": "train-00000.tfrecord", "records": 4096,
                 "bytes": 209715104, "crc32c": "1a2b3c4d"}, ...]}

- `pattern` and `name` are relative to the manifest's own directory, so that a data set may be moved
  or copied with its manifest; an object outside that directory has its full URL. A relative name
  that looks like a full one (it begins with `/`, or contains `://`), or that begins with `./`, has
  `./` before it. `places.py` says which names are allowed.
- Each shard has one entry. Numbers are whole and not negative, and a shard holds at most as many
  records as fit in its bytes, so that a manifest cannot make a reader allocate more.
- `bytes` and `crc32c` are those of the whole object as it is stored, compressed or not; `crc32c` is
  the plain CRC32C (not masked) as eight hexadecimal digits.
- `marks` (optional): `[record, byte]` for a few records of an uncompressed shard: their number, and
  the byte where their header begins. A reader of records in the middle begins there.
- `object_version`, in an index: the store's version of the shard, or null.
- Readers ignore members that they do not know, and refuse a `version` that they do not know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Final, Self

from streamrec.display import display_repr
from streamrec.errors import ManifestError
from streamrec.shards.patterns import NUMBER
from streamrec.shards.places import (
    absolute,
    check_name,
    check_places,
    find_repeated,
    portable,
    relative,
)
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, CompressionType, check_compression_type

FORMAT = "streamrec manifest"
VERSION = 1

FRAME_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
"""The bytes of a record's frame in addition to its payload."""

MAX_RATIO: Final = 1 << 15
"""The largest ratio of compression: Zstandard's longest run is 128 KiB of 4 bytes."""

MAX_FIELDS: Final = 2
"""How often a pattern may have the number of the shard."""

MARK_BYTES = 8 << 20
"""The approximate distance of marks, in bytes.

A reader that begins between two reads and drops up to this many.
"""


@display_repr
@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A finished shard.

    Attributes:
        path: Its URL.
        records: Its number of records.
        bytes: Its size as it is stored.
        crc32c: The CRC32C of all its bytes as they are stored; None if they were not all read (an
            index of local shards, or one made from `.idx` files).
        marks: The number of some of its records, about every MARK_BYTES, and the offset of their
            header in bytes; none for a compressed shard.
        version: The store's version of the object; None if it has none, or was not asked.
    """

    path: str
    records: int
    bytes: int
    crc32c: int | None
    marks: tuple[tuple[int, int], ...] = ()
    version: str | None = field(default=None, compare=False)


def add_mark(marks: list[tuple[int, int]], record: int, byte: int) -> None:
    """Adds a mark for the record whose header begins at `byte`.

    Only if the mark before is far enough.
    """
    if byte - (marks[-1][1] if marks else 0) >= MARK_BYTES:
        marks.append((record, byte))


@display_repr
@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of a data set.

    Attributes:
        path: The manifest's own URL.
        pattern: The URL of the shards, with `{shard}` for their number; or that of the only one.
        shards: The shards, in order, with their full URLs.
    """

    path: str
    pattern: str
    compression_type: CompressionType
    shards: tuple[ShardInfo, ...]

    def to_json(self, *, in_index: bool = False) -> bytes:
        """The manifest as it is stored.

        In an index it has the versions of objects, and no marks.

        Examples:
            >>> shard = ShardInfo("s3://b/x/train-0", records=2, bytes=40, crc32c=0xE3069283)
            >>> manifest = Manifest("s3://b/x/m.json", "s3://b/x/train-{shard}", "", (shard,))
            >>> Manifest.from_json(manifest.path, manifest.to_json()) == manifest
            True
            >>> entry = b'{"name": "train-0", "records": 2, "bytes": 40, "crc32c": "e3069283"}'
            >>> entry in manifest.to_json()
            True
        """

        def name_of(url: str) -> str:
            return relative(self.path, url if in_index else portable(self.path, url))

        def entry(shard: ShardInfo) -> dict[str, Any]:
            crc = None if shard.crc32c is None else f"{shard.crc32c:08x}"
            fields = {
                "name": name_of(shard.path),
                "records": shard.records,
                "bytes": shard.bytes,
                "crc32c": crc,
            }
            if in_index:
                return {**fields, "object_version": shard.version}
            return {**fields, "marks": shard.marks} if shard.marks else fields

        head = {
            "format": FORMAT,
            "version": VERSION,
            "pattern": name_of(self.pattern),
            "compression_type": self.compression_type,
        }
        # One shard a line: people read manifests, and compare them with diff.
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        shards = ",\n  ".join(json.dumps(entry(shard)) for shard in self.shards)
        return ("{" + ",\n ".join([*lines, f'"shards": [\n  {shards}]']) + "}\n").encode()

    @staticmethod
    def from_json(path: str, data: bytes) -> Manifest:
        """Parses the manifest at `path`, whose names are relative to it."""
        try:
            manifest = parse_json(data)
            version = manifest["version"] if manifest["format"] == FORMAT else None
        except (ValueError, LookupError, TypeError) as error:
            reason = "it has no 'format'" if isinstance(error, LookupError | TypeError) else error
            advice = "pass the URL of one that write_manifest or a writer wrote"
            raise ManifestError(
                f"{path}: this JSON is not a manifest ({reason}): {advice}"
            ) from error
        if version != VERSION:
            raise ManifestError(
                f"{path}: this is format {manifest['format']!r}, version {manifest['version']!r}, "
                f"and this release reads {FORMAT!r}, version {VERSION}: read it with the release "
                "that wrote it, or write it again"
            )
        # A manifest may come from anywhere: what a stranger can write in it must be an error here,
        # and not where the value is used.
        try:
            shards = tuple(_parse_shard(path, entry) for entry in manifest["shards"])
            compression = check_compression_type(manifest["compression_type"]) or ""
            check_shards(shards, compression)
            pattern = check_name(manifest["pattern"], path)
            if len(NUMBER.findall(pattern)) > MAX_FIELDS:
                raise ValueError(
                    f"the pattern {pattern!r} has the shard's number more than {MAX_FIELDS} times"
                )
            return Manifest(path, absolute(path, pattern), compression, shards)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ManifestError(
                f"{path}: this manifest is damaged ({error!r}): write it again: "
                f"streamrec.write_manifest_sync(SHARDS, {path!r})"
            ) from error

    def follow(self, shard_root: str | None = None) -> Self:
        """Checks that the manifest's names may be followed, and returns it; see `places.py`."""
        check_places(self.path, [self.pattern, *(shard.path for shard in self.shards)], shard_root)
        return self


def _parse_shard(path: str, entry: Mapping[str, Any]) -> ShardInfo:
    marks = tuple((record, byte) for record, byte in entry.get("marks", ()))
    url = absolute(path, check_name(entry["name"], path))
    version = entry.get("object_version")
    crc = entry["crc32c"]
    if version is not None and not isinstance(version, str):
        raise ValueError(f"{version!r} is not a version of an object")
    if crc is not None and not (isinstance(crc, str) and re.fullmatch("[0-9a-fA-F]{8}", crc)):
        raise ValueError(f"{crc!r} is not a CRC32C of eight hexadecimal digits")
    return ShardInfo(
        url,
        records=entry["records"],
        bytes=entry["bytes"],
        crc32c=None if crc is None else int(crc, 16),
        marks=marks,
        version=version,
    )


def parse_json(data: bytes | str) -> Any:
    """Parses JSON strictly: each key occurs once, and NaN and infinities are refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError("a key occurs twice")
        return members

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    try:
        return json.loads(data, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def check_shards(shards: Sequence[ShardInfo], compression_type: str) -> None:
    """Refuses descriptions of shards that no writer can have written, by a ValueError."""
    for shard in shards:
        # Python's bool is an int, and JSON's numbers have no limit; int64 arrays hold these.
        numbers = (shard.records, shard.bytes, *chain.from_iterable(shard.marks))
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(
                f"the numbers of {shard.path} are not whole numbers from 0 to 2**63 - 1"
            )
        longest = shard.bytes * MAX_RATIO if compression_type else shard.bytes
        if shard.records > longest // FRAME_BYTES or (
            shard.bytes and not shard.records and not compression_type
        ):
            raise ValueError(
                f"{shard.path} cannot have {shard.records:,} records in {shard.bytes:,} bytes"
            )
        marks = ((0, 0), *shard.marks, (shard.records, shard.bytes))
        if shard.marks and (
            compression_type
            or any(b - a < FRAME_BYTES * (n - m) or m >= n for (m, a), (n, b) in pairwise(marks))
        ):
            raise ValueError(f"the marks of {shard.path} are not those of its records")
    if max(sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)) >= 1 << 63:
        raise ValueError("all shards together have 2**63 records or bytes, or more")
    if (repeated := find_repeated(shard.path for shard in shards)) is not None:
        raise ValueError(f"the shard {repeated} is listed twice")
