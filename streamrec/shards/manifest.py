"""Manifests: what a data set consists of, as its writer knew it. Pure; reading and writing go by `Storage`.

A manifest is a JSON object:

    {"format": "streamrec manifest", "version": 1,
     "pattern": "train-{shard:05d}.tfrecord", "compression_type": "GZIP",
     "shards": [{"name": "train-00000.tfrecord", "records": 4096, "bytes": 209715104, "crc32c": "1a2b3c4d"}, ...]}

- `pattern` and `name` are relative to the manifest's own directory, so that a data set may be moved or copied with
  its manifest; what is not below that directory has its full URL. A relative name that would read as a full one (it
  begins with `/`, or has `://` in it), or that begins with `./`, has `./` before it. `places.py` says where names may
  lead.
- Each shard has one entry. Numbers are whole and not negative, and a shard holds at most as many records as fit in its
  bytes: nothing is allocated for more.
- `bytes` and `crc32c` are those of the whole object as it is stored, compressed or not; `crc32c` is
  the plain CRC32C (not masked) as eight hexadecimal digits.
- `marks`, where there are some: `[record, byte]` for a few records of an uncompressed shard: their number, and where
  their headers begin. A reader of records in the middle begins there.
- `object_version`, in an index: what the store calls this version of the shard, or null.
- Members that a reader does not know are to be ignored; a `version` that it does not know is to be refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Self

from streamrec.display import display_repr
from streamrec.errors import ManifestError
from streamrec.shards.patterns import NUMBER
from streamrec.shards.places import absolute, check_places, location_of, portable, relative, text_of_name
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, CompressionType, check_compression_type

__all__ = ["FRAME_BYTES", "MARK_BYTES", "Manifest", "ShardInfo", "add_mark"]

FORMAT = "streamrec manifest"
VERSION = 1

FRAME_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
"""What a record takes in a shard in addition to its payload."""

MAX_RATIO: Final = 1 << 15
"""How much longer a shard may be than it is compressed: Zstandard's longest run is 128 KiB of 4 bytes."""

MAX_FIELDS: Final = 2
"""How often a pattern may have the number of the shard."""

MARK_BYTES = 8 << 20
"""How far apart the marks of a shard are, about: what is read and dropped where reading begins between two."""


@display_repr
@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A finished shard.

    Attributes:
        path: Its URL.
        records: How many records it holds.
        bytes: Its size as it is stored.
        crc32c: The CRC32C of all its bytes as they are stored; None where they were not all read (an index of
            local shards, or one made from `.idx` files).
        marks: Number and place of some of its records, in bytes from the start of the shard, about every MARK_BYTES;
            none where it is compressed.
        version: What the store calls this version of the object; None where it has none, or was not asked.
    """

    path: str
    records: int
    bytes: int
    crc32c: int | None
    marks: tuple[tuple[int, int], ...] = ()
    version: str | None = field(default=None, compare=False)


def add_mark(marks: list[tuple[int, int]], record: int, byte: int) -> None:
    """Adds a mark where a record's header begins, if the one before is far enough."""
    if byte - (marks[-1][1] if marks else 0) >= MARK_BYTES:
        marks.append((record, byte))


@display_repr
@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of a data set.

    Attributes:
        path: The manifest's own URL.
        pattern: The URL of the shards, with `{shard}` where their number goes; or of the only one.
        compression_type: "", "GZIP", "ZLIB" or "ZSTD".
        shards: The shards, in order, with their full URLs.
    """

    path: str
    pattern: str
    compression_type: CompressionType
    shards: tuple[ShardInfo, ...]

    def to_json(self, *, in_index: bool = False) -> bytes:
        """The manifest as it is stored.

        Args:
            in_index: Whether it is part of an index. This has the versions of objects; it has no marks, as it knows
                where each record is.

        Examples:
            >>> shard = ShardInfo("s3://b/x/train-0", records=2, bytes=40, crc32c=0xE3069283)
            >>> manifest = Manifest("s3://b/x/manifest.json", "s3://b/x/train-{shard}", "", (shard,))
            >>> Manifest.from_json(manifest.path, manifest.to_json()) == manifest
            True
            >>> b'{"name": "train-0", "records": 2, "bytes": 40, "crc32c": "e3069283"}' in manifest.to_json()
            True
        """

        def name_of(url: str) -> str:
            return relative(self.path, url if in_index else portable(self.path, url))

        def entry(shard: ShardInfo) -> dict[str, Any]:
            crc = None if shard.crc32c is None else f"{shard.crc32c:08x}"
            found = {"name": name_of(shard.path), "records": shard.records, "bytes": shard.bytes, "crc32c": crc}
            if in_index:
                return {**found, "object_version": shard.version}
            return {**found, "marks": shard.marks} if shard.marks else found

        head = {
            "format": FORMAT,
            "version": VERSION,
            "pattern": name_of(self.pattern),
            "compression_type": self.compression_type,
        }
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        shards = ",\n  ".join(json.dumps(entry(shard)) for shard in self.shards)
        return ("{" + ",\n ".join([*lines, f'"shards": [\n  {shards}]']) + "}\n").encode()

    @staticmethod
    def from_json(path: str, data: bytes) -> Manifest:
        """Reads a manifest, whose names are relative to its path."""
        try:
            found = plain_json(data)
            version = found["version"] if found["format"] == FORMAT else None
        except (ValueError, LookupError, TypeError) as error:
            said = "it has no 'format'" if isinstance(error, LookupError | TypeError) else error
            advice = "pass the URL of one that write_manifest or a writer wrote"
            raise ManifestError(f"{path}: this JSON is not a manifest ({said}): {advice}") from error
        if version != VERSION:
            raise ManifestError(
                f"{path}: format {found['format']!r}, version {found['version']!r}, where {FORMAT!r}, version {VERSION}"
                " was wanted: it needs another streamrec"
            )
        try:
            shards = tuple(_shard(path, entry) for entry in found["shards"])
            compression = check_compression_type(found["compression_type"]) or ""
            check_shards(shards, compression)
            return Manifest(path, pattern_of(path, found["pattern"]), compression, shards)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ManifestError(
                f"{path}: this manifest is damaged ({error!r}): write it again: "
                f"streamrec.write_manifest_sync(SHARDS, {path!r})"
            ) from error

    def follow(self, shard_root: str | None = None) -> Self:
        """The same, whose names may be followed; see `places.py`.

        Raises:
            ManifestError: A name leads elsewhere.
        """
        check_places(self.path, [self.pattern, *(shard.path for shard in self.shards)], shard_root)
        return self


def _shard(path: str, entry: Mapping[str, Any]) -> ShardInfo:
    marks = [(record, byte) for record, byte in entry.get("marks", ())]
    url = absolute(path, text_of_name(entry["name"], path))
    version = entry.get("object_version")
    if version is not None and not isinstance(version, str):
        raise ValueError(f"{version!r} is not a version of an object")
    return ShardInfo(url, entry["records"], entry["bytes"], crc_of(entry["crc32c"]), tuple(marks), version)


def plain_json(data: bytes | str) -> Any:
    """What JSON says, where each key comes once and numbers are those of JSON."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number of JSON")

    try:
        return json.loads(data, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def crc_of(value: Any) -> int | None:
    """A CRC32C of eight hexadecimal digits; None for none."""
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch("[0-9a-fA-F]{8}", value):
        raise ValueError(f"{value!r} is not a CRC32C of eight hexadecimal digits")
    return int(value, 16)


def pattern_of(path: str, value: Any) -> str:
    """The URL of the pattern that a manifest at `path` names."""
    pattern = text_of_name(value, path)
    if len(NUMBER.findall(pattern)) > MAX_FIELDS:
        raise ValueError(f"the pattern {pattern!r} has the shard's number more than {MAX_FIELDS} times")
    return absolute(path, pattern)


def check_shards(shards: Sequence[ShardInfo], compression_type: str) -> None:
    """Refuses what no writer can have found out about shards.

    Raises:
        ValueError: A number is invalid or impossible, or a shard occurs twice.
    """
    for shard in shards:
        if not all(_is_count(number) for number in (shard.records, shard.bytes, *_flat(shard.marks))):
            raise ValueError(f"the numbers of {shard.path} are not whole numbers from 0 to 2**63 - 1")
        longest = shard.bytes * MAX_RATIO if compression_type else shard.bytes
        if shard.records > longest // FRAME_BYTES or (shard.bytes and not shard.records and not compression_type):
            raise ValueError(f"{shard.path} cannot have {shard.records:,} records in {shard.bytes:,} bytes")
        marks = ((0, 0), *shard.marks, (shard.records, shard.bytes))
        if shard.marks and (
            compression_type or any(b - a < FRAME_BYTES * (n - m) or m >= n for (m, a), (n, b) in pairwise(marks))
        ):
            raise ValueError(f"the marks of {shard.path} are not those of its records")
    if max(sum(shard.records for shard in shards), sum(shard.bytes for shard in shards)) >= 1 << 63:
        raise ValueError("all shards together have 2**63 records or bytes, or more")
    seen = set[tuple[str, str]]()
    for shard in shards:
        if (location := location_of(shard.path)) in seen:
            raise ValueError(f"{shard.path} occurs twice")
        seen.add(location)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _flat(pairs: Iterable[tuple[int, int]]) -> Iterable[int]:
    return (number for pair in pairs for number in pair)
