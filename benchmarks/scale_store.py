"""A store whose shards exist as arithmetic, for `benchmarks.scale`.

A record holds its own number, and the store makes the bytes of a shard when a request asks for
them. It speaks S3 over HTTP, in a process of its own:

    python -m benchmarks.scale_store --shards 100000 --records 10000 --length 872 --folder FOLDER
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec import Frames, encode_records
from streamrec.shards import Portion, ShardInfo
from streamrec.shards.manifest import add_mark
from tests.servers.faults import Faults
from tests.servers.network.fault_server import Exchange, FaultServer, error_body
from tests.servers.network.http1 import window
from tests.servers.program import ServerProcess, run
from tests.servers.store import s3_responses
from tests.servers.store.listing import Found, page

MODULE = "benchmarks.scale_store"
KINDS: Final = 10
"""Kinds of shards, by their number of records; shard `n` is of kind `n % KINDS`."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """A data set that exists as arithmetic.

    Args:
        shards: How many there are: a multiple of KINDS.
        records: How many a shard holds on average; single ones have up to 5 % more or fewer.
        length: Bytes of the shortest record; others have up to 255 more.
    """

    shards: int
    records: int
    length: int = 872

    @property
    def total(self) -> int:
        return self.shards * self.records

    @cached_property
    def counts(self) -> Numbers:
        off = 2 * (np.arange(self.shards) % KINDS) - KINDS + 1
        return self.records + np.sign(off) * (abs(off) * self.records // (20 * (KINDS - 1)))

    @cached_property
    def firsts(self) -> Numbers:
        """The number of each shard's first record, and the number of records."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def lengths(self) -> Numbers:
        """Those of the records of any shard, as far as it has them."""
        return self.length + 37 * np.arange(int(self.counts.max())) % 256

    @cached_property
    def offsets(self) -> Numbers:
        return np.concatenate([[0], np.cumsum(self.lengths + 16)])

    def path(self, shard: int) -> str:
        return f"s3://bucket/train-{shard:06d}.tfrecord"

    def size(self, shard: int) -> int:
        return int(self.offsets[self.counts[shard]])

    def data(self, shard: int) -> bytes:
        """The bytes of a shard: each record begins with its number."""
        lengths = self.lengths[: self.counts[shard]]
        ends = np.cumsum(lengths)
        spans = np.stack([ends - lengths, ends], 1)
        payloads = np.zeros(int(ends[-1]), np.uint8)
        numbers = np.arange(self.firsts[shard], self.firsts[shard + 1])
        payloads[spans[:, :1] + np.arange(8)] = numbers.view(np.uint8).reshape(-1, 8)
        return encode_records(Frames(payloads.tobytes(), spans))

    def infos(self) -> Iterator[ShardInfo]:
        """What a writer knows of the shards."""
        marks: list[list[tuple[int, int]]] = [[] for _ in range(KINDS)]
        for kind, own in enumerate(marks):
            for record in range(int(self.counts[kind])):
                add_mark(own, record, int(self.offsets[record]))
        for shard, count in enumerate(self.counts.tolist()):
            size, version = self.size(shard), f'"{shard:x}"'
            yield ShardInfo(self.path(shard), count, size, 0, tuple(marks[shard % KINDS]), version)

    def ranges(self, portions: Iterable[Portion]) -> Numbers:
        """The numbers of the records in portions: int64 [n, 2], first and last (exclusive)."""
        found = []
        for portion in portions:
            shard = int(portion.path[-15:-9])
            count = int(self.counts[shard])
            first, last = portion.first, count if portion.last is None else portion.last
            if portion.byte_range is not None:  # its records are those whose frames begin in it
                end = portion.byte_range.end
                first = int(np.searchsorted(self.offsets[:count], portion.byte_range.start))
                last = count if end is None else int(np.searchsorted(self.offsets[:count], end))
            found.append((self.firsts[shard] + first, self.firsts[shard] + last))
        return np.array(found, np.int64).reshape(-1, 2)


class SyntheticStore:
    """Answers S3's requests for the shards of a shape, and for the files in a folder.

    Args:
        shape: The shards.
        folder: Where the manifest and the index are.
    """

    def __init__(self, shape: Shape, folder: str) -> None:
        self._shape = shape
        self._folder = Path(folder)
        self._data = lru_cache(maxsize=24)(shape.data)

    def respond(self, exchange: Exchange) -> bool:
        """Answers one request."""
        asked = exchange.route
        if asked.op == "list":
            exchange.whole(200, self._list(asked.query), "application/xml")
            return True
        shard = (
            int(asked.key[6:12]) if asked.key.startswith("train-0") and len(asked.key) == 21 else -1
        )
        file = self._folder / asked.key
        if 0 <= shard < self._shape.shards:
            data: Any = self._data(shard) if asked.op == "media" else None
            size, etag = self._shape.size(shard), f'"{shard:x}"'
        elif file.is_file():
            data = np.memmap(file, np.uint8, "r")
            size, etag = len(data), f'"{len(data):x}-1"'
        else:
            body, content_type = error_body(
                asked, 404, "NoSuchKey", "The specified key does not exist."
            )
            exchange.whole(404, body, content_type)
            return True
        status, start, stop = window(exchange.field("range"), size)
        fields = (("Content-Length", str(stop - start)), *s3_responses.object_fields(etag, 1, 0))
        if status == 206:
            fields += (("Content-Range", f"bytes {start}-{stop - 1}/{size}"),)
        exchange.head(status, fields, stop - start, more=asked.op == "media")
        if asked.op == "media":
            exchange.client.connection.sendall(memoryview(data)[start:stop])
            exchange.note(sent=stop - start)
        return True

    def _list(self, query: Mapping[str, str]) -> bytes:
        token = query.get("continuation-token", "")
        after = base64.urlsafe_b64decode(token.encode()).decode()
        first = int(after[6:12]) + 1 if after else 0
        last = min(first + 1001, self._shape.shards)
        items = [
            Found(f"train-{n:06d}.tfrecord", self._shape.size(n), 0) for n in range(first, last)
        ]
        found = page(
            [item for item in items if item.key.startswith(query["prefix"])],
            query["prefix"],
            "",
            token,
            1000,
        )
        etags = {item.key: f'"{int(item.key[6:12]):x}"' for item in found.found}
        return s3_responses.list_xml("bucket", query, found, 1000, etags)


@contextmanager
def serving(shape: Shape, folder: str, faults: Faults) -> Iterator[str]:
    """The URL of a store of this shape, in a process of its own."""
    words = zip(("--shards", "--records", "--length"), astuple(shape), strict=True)
    options = [str(word) for pair in words for word in pair]
    with ServerProcess(MODULE, (*options, "--folder", folder), faults) as store:
        yield store.url


def main() -> None:
    """The store's process."""

    def make(options: Mapping[str, str], faults: Faults, port: int) -> FaultServer:
        shape = Shape(int(options["shards"]), int(options["records"]), int(options["length"]))
        return FaultServer(SyntheticStore(shape, options["folder"]).respond, faults, port)

    needed = {
        "--shards": "",
        "--records": "",
        "--length": "",
        "--folder": "the folder of manifest and index",
    }
    run(f"python -m {MODULE}", needed, make)


if __name__ == "__main__":
    main()
