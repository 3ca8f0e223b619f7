"""A store that makes the bytes of a shard when it is asked for them.

It speaks S3 over HTTP, in a process of its own:

    python -m benchmarks.scale.store --shards 100000 --records 10000 --folder FOLDER
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from benchmarks.scale.shape import BUCKET, Shape, shard_of
from tests.servers.faults import Faults
from tests.servers.network.fault_server import Exchange, FaultServer
from tests.servers.objectstore import OpenedObject, answer_object, refuse
from tests.servers.program import run
from tests.servers.store import s3_responses
from tests.servers.store.listing import Found, Page

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
        self._shard_file = lru_cache(maxsize=24)(self._make_file)

    def respond(self, exchange: Exchange) -> bool:
        """Answers one request."""
        key = exchange.route.key
        if exchange.route.op == "list":
            exchange.whole(200, self._list(exchange.route.query), "application/xml")
            return True
        shard = shard_of(key)
        if 0 <= shard < self._shape.shards:
            # only a request for bytes needs them
            file = self._shard_file(shard) if exchange.route.op == "media" else None
            found = Found(key, self._shape.size(shard), 0)
            number = -1 if file is None else file.fileno()
            return answer_object(exchange, OpenedObject(number, found, f'"{shard:x}"', 1, 0))
        if not (self._folder / key).is_file():
            return refuse(exchange, 404, "NoSuchKey", "There is no such key.")
        with open(self._folder / key, "rb") as table:
            found = Found(key, Path(table.name).stat().st_size, 0)
            etag = f'"{found.size:x}-1"'
            return answer_object(exchange, OpenedObject(table.fileno(), found, etag, 1, 0))

    def _make_file(self, shard: int) -> BinaryIO:
        """A file with the bytes of a shard; it is closed when no answer needs it any more."""
        file = TemporaryFile(buffering=0)  # noqa: SIM115 - it outlives the request
        file.write(self._shape.data(shard))
        return file

    def _list(self, query: Mapping[str, str]) -> bytes:
        """A page of the listing: the keys are made from their numbers, not searched for."""
        first = int(query.get("continuation-token", 0))
        numbers = range(first, min(first + PAGE, self._shape.shards))
        keys = {number: self._shape.path(number).removeprefix(BUCKET) for number in numbers}
        found = tuple(
            Found(key, self._shape.size(number), 0)
            for number, key in keys.items()
            if key.startswith(query["prefix"])
        )
        etags = {key: f'"{number:x}"' for number, key in keys.items()}
        token = str(numbers.stop) if numbers.stop < self._shape.shards else ""
        return s3_responses.list_xml("bucket", query, Page(found, (), token), PAGE, etags)


def make(options: Mapping[str, str], faults: Faults, port: int) -> FaultServer:
    """The server of the store's process."""
    shape = Shape(int(options["shards"]), int(options["records"]))
    return FaultServer(SyntheticStore(shape, options["folder"]).respond, faults, port)


if __name__ == "__main__":
    needed = {"--shards": "how many", "--records": "in each, on average"}
    needed |= {"--folder": "where the manifest and the index are"}
    run("python -m benchmarks.scale.store", needed, make)
