"""A store that makes the bytes of a shard when it is asked for them.

It speaks S3 over HTTP, in a process of its own:

    python -m benchmarks.scale.store --shards 100000 --records 10000 --length 872 --folder FOLDER
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale.shape import Shape
from tests.servers.faults import Faults
from tests.servers.network.fault_server import Exchange, FaultServer, error_body
from tests.servers.network.http1 import window
from tests.servers.program import ServerProcess, run
from tests.servers.store import s3_responses
from tests.servers.store.listing import Found, page

MODULE = "benchmarks.scale.store"
PAGE = 1000


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
        shard = number_of(asked.key)
        file = self._folder / asked.key
        if 0 <= shard < self._shape.shards:
            data: Any = self._data(shard) if asked.op == "media" else None
            size, etag = self._shape.size(shard), f'"{shard:x}"'
        elif file.is_file():
            data = np.memmap(file, np.uint8, "r")
            size, etag = len(data), f'"{len(data):x}-1"'
        else:
            exchange.whole(404, *error_body(asked, 404, "NoSuchKey", "There is no such key."))
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
        """A page of the listing: the keys are made from their numbers, not searched for."""
        token = query.get("continuation-token", "")
        after = base64.urlsafe_b64decode(token.encode()).decode()
        first = number_of(after) + 1
        numbers = range(first, min(first + PAGE + 1, self._shape.shards))
        items = [Found(key_of(number), self._shape.size(number), 0) for number in numbers]
        prefix = query["prefix"]
        items = [item for item in items if item.key.startswith(prefix)]
        found = page(items, prefix, "", token, PAGE)
        etags = {item.key: f'"{number_of(item.key):x}"' for item in found.found}
        return s3_responses.list_xml("bucket", query, found, PAGE, etags)


def key_of(number: int) -> str:
    """The key of a shard."""
    return f"train-{number:06d}.tfrecord"


def number_of(key: str) -> int:
    """The number of the shard with this key; -1 for other keys.

    >>> number_of(key_of(70)), number_of("train.index"), number_of("")
    (70, -1, -1)
    """
    digits = key.removeprefix("train-").removesuffix(".tfrecord")
    return int(digits) if digits.isdecimal() and key == key_of(int(digits)) else -1


@contextmanager
def serving(shape: Shape, folder: str, faults: Faults) -> Iterator[str]:
    """The URL of a store of this shape, in a process of its own."""
    words = [word for name, value in asdict(shape).items() for word in (f"--{name}", str(value))]
    with ServerProcess(MODULE, (*words, "--folder", folder), faults) as store:
        yield store.url


def main() -> None:
    """The store's process."""

    def make(options: Mapping[str, str], faults: Faults, port: int) -> FaultServer:
        numbers = {name: int(options[name]) for name in ("shards", "records", "length")}
        return FaultServer(
            SyntheticStore(Shape(**numbers), options["folder"]).respond, faults, port
        )

    needed = {"--shards": "", "--records": "", "--length": ""}
    run(f"python -m {MODULE}", {**needed, "--folder": "the folder of manifest and index"}, make)


if __name__ == "__main__":
    main()
