"""Manifests: what a data set consists of, as its writer knew it. Pure; reading and writing go by `Storage`.

A manifest is a JSON object:

    {"format": "streamrec manifest", "version": 1,
     "pattern": "train-{shard:05d}.tfrecord", "compression_type": "GZIP",
     "shards": [{"name": "train-00000.tfrecord", "records": 4096, "bytes": 209715104, "crc32c": "1a2b3c4d"}, ...]}

- `pattern` and `name` are relative to the manifest's own directory, so that a data set may be moved or copied with
  its manifest; what does not lie below that directory stands there with its full URL. A relative name that would read
  as a full one (it begins with `/`, or has `://` in it), or that begins with `./`, has `./` before it.
- `bytes` and `crc32c` are those of the whole object as it lies in the store, compressed where it is; `crc32c` is
  the plain CRC32C (not masked) as eight hexadecimal digits.
- `marks`, where there are some: `[record, byte]` for a few records of an uncompressed shard: their number, and where
  their headers begin. Who wants records from the middle begins to read there.
- Members that a reader does not know are to be ignored; a `version` that it does not know is to be refused.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streamrec.display import display_repr
from streamrec.errors import ManifestError
from streamrec.shards.listing.patterns import NUMBER, is_numbered, number_pattern
from streamrec.storage import Glob, split_chain
from streamrec.tfrecord import CompressionType, check_compression_type

__all__ = ["MARK_BYTES", "Manifest", "Marks", "ShardInfo", "absolute", "relative"]

FORMAT = "streamrec manifest"
VERSION = 1

MARK_BYTES = 8 << 20
"""How far apart the marks of a shard are, about: what is read and dropped where reading begins between two."""


@display_repr
@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A finished shard.

    Attributes:
        path: Its URL.
        records: How many records it holds.
        bytes: Its size as it lies in the store.
        crc32c: The CRC32C of all its bytes as they lie in the store; None where nobody has read them all (an index of
            local shards, or one made from `.idx` files).
        marks: Number and place of some of its records, in bytes from the start of the shard, about every MARK_BYTES;
            none where it is compressed.
        version: What the store calls this version of the object; None where it does not tell, or nobody asked.
    """

    path: str
    records: int
    bytes: int
    crc32c: int | None
    marks: tuple[tuple[int, int], ...] = ()
    version: str | None = field(default=None, compare=False)


class Marks:
    """The marks of a shard as it is gone through."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int]] = []

    def pass_by(self, record: int, byte: int) -> None:
        """A record's number, and where its header begins: a mark if the one before is far enough."""
        if byte - (self._marks[-1][1] if self._marks else 0) >= MARK_BYTES:
            self._marks.append((record, byte))

    def all(self) -> tuple[tuple[int, int], ...]:
        """All of them."""
        return tuple(self._marks)


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

    def to_json(self) -> bytes:
        """The manifest as it is stored.

        Examples:
            >>> shard = ShardInfo("s3://b/x/train-0", records=2, bytes=40, crc32c=0xE3069283)
            >>> manifest = Manifest("s3://b/x/manifest.json", "s3://b/x/train-{shard}", "", (shard,))
            >>> Manifest.from_json(manifest.path, manifest.to_json()) == manifest
            True
            >>> b'{"name": "train-0", "records": 2, "bytes": 40, "crc32c": "e3069283"}' in manifest.to_json()
            True
        """
        head = {
            "format": FORMAT,
            "version": VERSION,
            "pattern": self._relative(self.pattern),
            "compression_type": self.compression_type,
        }
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        shards = ",\n  ".join(json.dumps(self._entry(shard)) for shard in self.shards)
        return ("{" + ",\n ".join([*lines, f'"shards": [\n  {shards}]']) + "}\n").encode()

    @classmethod
    def from_json(cls, path: str, data: bytes) -> Manifest:
        """Reads a manifest.

        Args:
            path: Its URL, which names are relative to.
            data: What lies there.

        Raises:
            ManifestError: It is no manifest, or one of a newer version.
        """
        try:
            found = json.loads(data)
            version = found["version"] if found["format"] == FORMAT else None
        except (ValueError, LookupError, TypeError) as error:
            raise ManifestError(f"{path}: this is no manifest ({error!r}): pass the URL that was written") from error
        if version != VERSION:
            raise ManifestError(
                f"{path}: format {found['format']!r}, version {found['version']!r}, where {FORMAT!r}, version {VERSION}"
                " was wanted: it needs another streamrec"
            )
        try:
            shards = tuple(_shard(path, entry) for entry in found["shards"])
            compression = check_compression_type(found["compression_type"]) or ""
            return cls(path, absolute(path, found["pattern"]), compression, shards)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ManifestError(f"{path}: this manifest is damaged ({error!r}): write it again") from error

    def belongs(self, path: str) -> bool:
        """Whether a URL is one that the writer could have given to a shard: a reader's glob would find it.

        Examples:
            >>> manifest = Manifest("d/manifest.json", "d/train-{shard:03d}.tfrecord", "", ())
            >>> manifest.belongs("d/train-007.tfrecord"), manifest.belongs("d/train-x.tfrecord")
            (True, False)
        """
        return number_pattern(self.pattern).fullmatch(path) is not None

    @property
    def numbered(self) -> bool:
        """Whether there may be more than one shard."""
        return is_numbered(self.pattern)

    @property
    def prefix(self) -> str:
        """What all shards' URLs begin with."""
        before, url, after = split_chain(self.pattern)
        return before + NUMBER.split(url)[0] + after

    @property
    def glob(self) -> Glob:
        """What a listing of `prefix` is to look for; it may find more than `belongs` is true for."""
        before, url, after = split_chain(self.pattern)
        return Glob(before + "*".join(map(glob.escape, NUMBER.split(url)[::2])) + after)

    def _entry(self, shard: ShardInfo) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "name": self._relative(shard.path),
            "records": shard.records,
            "bytes": shard.bytes,
            "crc32c": None if shard.crc32c is None else f"{shard.crc32c:08x}",
        }
        return {**entry, "marks": shard.marks} if shard.marks else entry

    def _relative(self, url: str) -> str:
        return relative(self.path, url)


def _shard(path: str, entry: Mapping[str, Any]) -> ShardInfo:
    return ShardInfo(
        absolute(path, entry["name"]),
        int(entry["records"]),
        int(entry["bytes"]),
        None if entry["crc32c"] is None else int(entry["crc32c"], 16),
        tuple((int(record), int(byte)) for record, byte in entry.get("marks", ())),
    )


def relative(path: str, url: str) -> str:
    """A URL as a manifest at `path` has it."""
    directory = _directory(path)
    name = url.removeprefix(directory)
    taken_for_whole = name.startswith("./") or (directory and (name.startswith("/") or "://" in name))
    return f"./{name}" if taken_for_whole and url.startswith(directory) else name


def _directory(path: str) -> str:
    return path[: path.rfind("/") + 1]


def absolute(path: str, name: str) -> str:
    """A name in a manifest at `path` as a URL."""
    before, url, after = split_chain(path)
    if name.startswith("./"):
        name = name[2:]
    elif "://" in name or name.startswith("/"):
        return name
    return before + _directory(url) + name + after
