"""RecordSource: an indexed data set as a sequence of records.

Rules for its connections:
- Storages belong to the loop that made them, so each calling loop has its own; sync callers share
  the bridge's.
- They are closed when the source is dropped, and when their loop ends: an async generator holds
  them, and a loop closes its generators (`asyncio.run` and the bridge call `shutdown_asyncgens`).
- A forked child opens its own. It never uses or frees the inherited ones: they belong to loops of
  the parent.
"""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Self, SupportsIndex, Unpack, overload

import numpy as np
import numpy.typing as npt

from streamrec import bridge
from streamrec.arguments import check_flag, check_integer, check_path, describe_value
from streamrec.display import display_name
from streamrec.process import process_id
from streamrec.shards.index import Index, Numbers
from streamrec.shards.indexed_records import (
    CACHE_BYTES,
    PARALLEL,
    IndexedRecords,
    Places,
    open_index,
)
from streamrec.storage import Storages, StoreOptions, check_keywords, check_source, locate
from streamrec.storage.tasks import running_loop
from streamrec.tfrecord import Frames
from streamrec.tracebacks import border

Open = Callable[[], AsyncGenerator[IndexedRecords]]
"""Opens storages, and gives their IndexedRecords.

It closes the storages when the generator is closed.
"""

Opening = asyncio.Future[IndexedRecords]

_inherited: list[object] = []


class RecordSource:
    """The records of an indexed data set, by number.

    Numbers count from 0 through all shards, in the order of the index. Each call fetches its
    records by range requests: one request for records near each other, and several requests at the
    same time. So fetch many records with one call: `source[a:b]`, `source.__getitems__([...])`,
    `await source.get([...])`.

    It is a map-style dataset for `torch.utils.data.DataLoader` (which fetches a batch with one
    call) and a source for `grain.MapDataset.source`. You can pickle it, and use it after a fork;
    each process opens its own connections. Any number of threads and tasks may share it, also tasks
    of different event loops.

    Examples:
        >>> import streamrec
        >>> with streamrec.TFRecordWriter("memory://doc/cats.tfrecord") as writer:
        ...     for number in range(5):
        ...         writer.write(b"cat %d" % number)
        >>> index = streamrec.write_index_sync("memory://doc/cats.tfrecord", "memory://doc/cats.index")
        >>> source = streamrec.RecordSource("memory://doc/cats.index")
        >>> len(source), source[3], source[-1], list(source[:2])
        (5, b'cat 3', b'cat 4', [b'cat 0', b'cat 1'])
        >>> list(source.__getitems__([4, 0, 4]))
        [b'cat 4', b'cat 0', b'cat 4']

    Args:
        index: The URL of the index; see `write_index` and `ShardWriter`. It is opened at once: in
            an event loop, use `await RecordSource.open(...)`, which does not block.
        shard_root: The URL of the shards' directory, if that is not the index's own. An index that
            names objects outside both is refused.
        verify: Check each record's length and CRC32C.
        parallel: The largest number of requests of one call at the same time.
        cache_bytes: How many bytes of the index to keep in memory; a record takes about 2.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Attributes:
        index: The tables of the index: the shards, their sizes and versions.

    Raises:
        NotFoundError: The index does not exist.
        ManifestError: The object is not an index, is cut off or damaged, has another version, or
            names objects elsewhere.
        StorageError: The store failed, and retrying did not help.
    """

    @border
    def __init__(
        self,
        index: str | os.PathLike[str],
        *,
        shard_root: str | None = None,
        verify: bool = True,
        parallel: int = PARALLEL,
        cache_bytes: int = CACHE_BYTES,
        **store: Unpack[StoreOptions],
    ) -> None:
        check_keywords("RecordSource", store)
        filesystem = store.get("filesystem")
        check_source(store.get("storage_options"), filesystem, store.get("retry"))
        verify = check_flag("verify", verify)
        parallel = check_integer("parallel", parallel, 1)
        cache = check_integer("cache_bytes", cache_bytes, 0)
        storages = partial(Storages, **store, cached=True)
        opened: Index = bridge.run(
            index_at, storages, locate(check_path("index", index), filesystem)
        )
        self.index = opened.follow(None if shard_root is None else locate(shard_root, filesystem))
        self._open: Open = partial(
            open_records, storages, self.index, verify=verify, parallel=parallel, cache_bytes=cache
        )
        self._start()

    @classmethod
    @border
    async def open(cls, index: str | os.PathLike[str], **arguments: Any) -> Self:
        """Makes a source without blocking the event loop. Arguments as for the class."""
        running_loop()
        return await asyncio.to_thread(partial(cls, index, **arguments))

    def __len__(self) -> int:
        """The number of records."""
        return len(self.index)

    @overload
    def __getitem__(self, number: SupportsIndex) -> bytes: ...
    @overload
    def __getitem__(self, number: slice) -> Frames: ...
    @border
    def __getitem__(self, number: SupportsIndex | slice) -> bytes | Frames:
        """One record, or those of a slice; negative numbers count from the end.

        Raises:
            IndexError: A number is out of range.
            As `get`.
        """
        if isinstance(number, slice):
            return self.__getitems__(np.arange(*number.indices(len(self))))
        try:
            wanted = operator.index(number)
        except TypeError:
            raise TypeError(
                f"a record's number is {describe_value(number)}: it must be a whole number or a "
                "slice; for several numbers write source.__getitems__([...])"
            ) from None
        return self.__getitems__([wanted])[0]

    @border
    def __getitems__(self, numbers: npt.ArrayLike) -> Frames:
        """The records with these numbers, in this order, fetched by one call.

        Arguments and errors as for `get`.
        """
        return bridge.run(self.get, numbers)

    def _getitems(self, numbers: Sequence[int]) -> list[bytes]:
        """Fetches a batch for Grain (its `SupportsBatchedReadRandomAccessDataSource`)."""
        return list(self.__getitems__(numbers))

    @border
    async def get(self, numbers: npt.ArrayLike) -> Frames:
        """The records with these numbers, in this order.

        Args:
            numbers: Whole numbers: a list, or an array. Negative ones count from the end; a
                repeated number gives its record again.

        Raises:
            IndexError: A number is out of range. Nothing was fetched.
            ObjectChangedError: A shard, or the index, was written since; the message says what to
                run.
            NotFoundError: A shard is gone.
            CorruptRecordError: A record is damaged.
            ManifestError: The index is damaged.
            StorageError: The store failed, and retrying did not help.
        """
        wanted = in_bounds(numbers, len(self))
        return await (await self._here()).fetch(wanted)

    @border
    async def places(self, numbers: npt.ArrayLike) -> Places:
        """The places of the records with these numbers.

        They are the shards, the byte offsets in them, and the lengths.

        Arguments and errors as for `get`; no shard is read.
        """
        wanted = in_bounds(numbers, len(self))
        return await (await self._here()).places(wanted)

    def __iter__(self) -> Iterator[bytes]:
        """All records in order, about 16 MiB at a time. A `TFRecordDataset` streams them faster."""
        step = max(1, (16 << 20) * len(self) // max(1, self.index.nbytes))
        for first in range(0, len(self), step):
            yield from self[first : first + step]

    def __enter__(self) -> Self:
        """Itself; `close` at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        """Itself; `aclose` at the end of the block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @border
    def close(self) -> None:
        """Frees the connections of sync callers.

        The source can still be used: the next call opens them again.
        """
        bridge.run(self.aclose)

    async def aclose(self) -> None:
        """Frees the connections that calls on the running event loop have opened."""
        if self._process == process_id() and (
            kept := self._of_loop.pop(asyncio.get_running_loop(), None)
        ):
            await kept[1]
            await kept[0].aclose()

    def _start(self) -> None:
        """Begins in this process, without open connections."""
        self._process = process_id()
        self._of_loop: dict[
            asyncio.AbstractEventLoop, tuple[AsyncGenerator[IndexedRecords], Opening]
        ] = {}

    async def _here(self) -> IndexedRecords:
        """The open records of the running loop; opens them at its first call."""
        loop = running_loop()
        if self._process != process_id():
            _inherited.append(self._of_loop)
            self._start()
        if loop not in self._of_loop:
            self._of_loop = {
                other: kept for other, kept in self._of_loop.items() if not other.is_closed()
            }
            generator = self._open()
            self._of_loop[loop] = generator, asyncio.ensure_future(anext(generator))
        return await asyncio.shield(self._of_loop[loop][1])

    def __repr__(self) -> str:
        path = display_name(self.index.path)
        return f"RecordSource({path!r}: {len(self):,} records in {len(self.index.shards):,} shards)"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_of_loop"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()


async def index_at(storages: Callable[[], Storages], url: str) -> Index:
    """Reads the tables of an index by connections of its own, which are closed again."""
    async with storages() as opened:
        return await open_index(await opened.at(url), url)


async def open_records(
    storages: Callable[[], Storages], index: Index, *, verify: bool, parallel: int, cache_bytes: int
) -> AsyncGenerator[IndexedRecords]:
    """Opens storages, and closes them when the generator is closed."""
    async with storages() as opened:
        yield IndexedRecords(
            opened, index, verify=verify, parallel=parallel, cache_bytes=cache_bytes
        )


def in_bounds(numbers: npt.ArrayLike, count: int) -> Numbers:
    """Record numbers as int64 [n], from 0 on; an IndexError if one is out of range.

    Examples:
        >>> in_bounds([0, -1], 10).tolist()
        [0, 9]
    """
    found = np.asarray(numbers)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(
            f"the numbers are {describe_value(numbers)}: they must be a list or an array of whole "
            "numbers"
        )
    wanted = found.astype(np.int64)
    outside = (wanted >= count) | (wanted < -count)
    if outside.any():
        raise IndexError(
            f"record {int(wanted[outside][0]):,} of {count:,} does not exist: numbers are below "
            f"{count:,}"
        )
    return np.where(wanted < 0, wanted + count, wanted)
