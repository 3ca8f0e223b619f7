"""The writer that tasks share. `ShardOutput` writes; `Turns` puts their calls in order.

Rules:
- A shard appears under its name when it is complete, and not before: an exception, a cancellation
  or a killed process leaves no partial object there, and (except the killed process) no unfinished
  upload either.
- Each complete shard is verified: the store has the bytes that were sent (see `storage/upload.py`).
- A writer that was killed can be run again with the same names: its unfinished uploads are removed.
- Memory is bounded: one block of records, and the parts in flight of the upload.
- Tasks of one loop may share a writer. Calls that wait take turns; a record that only joins a block
  takes no turn, unless a call waits for one.
"""

from __future__ import annotations

import enum
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import anyio

from streamrec.arguments import (
    check_integer,
    check_number,
    check_overwrite,
    check_path,
    refuse_with,
)
from streamrec.display import display_name
from streamrec.errors import ClosedError
from streamrec.process import process_id
from streamrec.shards.manifest import FRAME_BYTES, ShardInfo
from streamrec.shards.rotation import Rotation
from streamrec.shards.shard_output import ShardOutput
from streamrec.shards.shard_target import ShardTarget
from streamrec.shards.turns import Turns, closed_error
from streamrec.storage import (
    Overwrite,
    Replacement,
    Storages,
    StoreOptions,
    check_keywords,
    locate,
)
from streamrec.tfrecord import Frames, RecordBatch, TFRecordOptions, as_record
from streamrec.tracebacks import border_methods

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger("streamrec")


class State(enum.Enum):
    """How far a writer is: once it is closing, it takes no more records."""

    OPEN = enum.auto()
    CLOSING = enum.auto()
    CLOSED = enum.auto()


OPEN: Final = State.OPEN
"""Each record asks for it, and in Python 3.11 a member of an Enum costs a tenth of a `write`."""


@border_methods
class ShardWriter:
    """Writes records into one shard, or into a new one whenever a limit is reached.

    Sharing: any number of tasks of one event loop may write to one writer. Each record is written
    once, in the order of the calls; the records of a batch stay together. A cancelled write is
    written whole or not at all. `close` waits for the writes before it, and refuses those after it
    (ClosedError). Threads share a TFRecordWriter.

    Examples:
        >>> async def write(images):
        ...     async with ShardWriter("s3://b/train-{shard:05d}.tfrecord", max_shard_bytes=200 << 20) as writer:
        ...         for image in images:
        ...             await writer.write(image)
        ...     return [shard.path for shard in writer.shards]

    On local disks a symbolic link is followed. A target that is not a plain file (/dev/stdout, a
    named pipe) is written directly, and keeps the bytes that were written before an error.

    Args:
        pattern: The shards' URL; `{shard}` or `{shard:05d}` in it stands for the shard's number,
            from 0. `{time}` stands for when the writer was made, in UTC (`{time:%Y-%m-%d}` gives a
            format), and `{uuid}` for 32 digits that no other writer has. Other braces stay as they
            are. `{shards}` is refused: the number of all shards is not known before they are
            written.
        options: Compression; None for none.
        max_shard_bytes: A record that would exceed this begins the next shard; a single longer
            record gets its own shard. In compressed shards the current block counts before
            compression, and bytes inside `compression_threads`, about 2 MiB each, do not count yet.
            None for one shard.
        max_shard_records: The largest number of records in a shard.
        max_shard_seconds: A shard is finished, and visible, when its first record is so old, also
            if no more records come. It needs `overwrite=False`. None for no limit.
        overwrite: Whether a shard replaces an existing object of its name. With several shards, a
            manifest or an index, the replacing objects appear together when all are complete; after
            any failure the old ones are unchanged, and nothing new stays. An existing object that
            this client may not read cannot be put back after a failure, and is not replaced
            (PermissionDeniedError), but with "unsecured". If False, an existing object raises
            AlreadyExistsError: when the shard begins if the object exists by then, otherwise when
            it ends. S3, GCS, local files and memory support False; any other filesystem refuses it
            (UnsupportedOperationError). None: False if the pattern has `{time}` or `{uuid}`, so
            that no run replaces the shards of another, else True.
        manifest: The URL for a manifest, which a successful close writes: records, bytes and CRC32C
            of each shard, as JSON; see `verify`. None for none. `overwrite` applies to it, too.
        index: The URL for an index, which a successful close writes: a manifest and the length of
            each record, for `RecordSource`. Shards must not be compressed. Until then it takes
            about 2 bytes of memory for each record. None for none.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Attributes:
        warns: Whether a writer that is dropped without `close` is logged; set it before entering
            the writer.

    Raises:
        ValueError: A limit is given and the pattern has no `{shard}`, or one whose format is not
            that of a number; or the pattern has `{shards}`; or `index` is given for compressed
            shards; or `max_shard_seconds` for shards that replace others.
    """  # noqa: E501

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        options: TFRecordOptions | str | None = None,
        *,
        max_shard_bytes: int | None = None,
        max_shard_records: int | None = None,
        max_shard_seconds: float | None = None,
        overwrite: Overwrite | None = None,
        manifest: str | os.PathLike[str] | None = None,
        index: str | os.PathLike[str] | None = None,
        **store: Unpack[StoreOptions],
    ) -> None:
        filesystem = store.get("filesystem")
        self._target = ShardTarget(
            pattern=locate(check_path("pattern", pattern), filesystem),
            options=TFRecordOptions.of(options),
            overwrite=None if overwrite is None else check_overwrite(overwrite),
            manifest=(
                None if manifest is None else locate(check_path("manifest", manifest), filesystem)
            ),
            index=None if index is None else locate(check_path("index", index), filesystem),
            max_shard_bytes=check_integer("max_shard_bytes", max_shard_bytes, 1, none=True),
            max_shard_records=check_integer("max_shard_records", max_shard_records, 1, none=True),
            max_shard_seconds=(
                None
                if max_shard_seconds is None
                else check_number("max_shard_seconds", max_shard_seconds, 0)
            ),
        )
        check_keywords("ShardWriter", store, {"compression_type": "write compression='GZIP'"})
        self._storages = Storages(**store)
        self._stack = AsyncExitStack()
        self._output = ShardOutput(self._target, self._storages)
        self._turns = Turns(self._target.pattern)
        self._rotation = Rotation(self._target.max_shard_seconds, self._rotate_old)
        self.warns = True
        self._dropped: weakref.finalize[..., Any] | None = None
        self._process: int | None = None  # the one that entered it
        self._state = OPEN

    @property
    def pattern(self) -> str:
        """The shards' URL, with `{shard}` for their numbers; `{time}` and `{uuid}` are filled."""
        return self._target.pattern

    @property
    def shards(self) -> list[ShardInfo]:
        """The finished shards, in order."""
        return self._output.shards

    def join(self, objects: Replacement) -> None:
        """Makes the writer's objects part of a set that the caller commits; call it before entering
        the writer.
        """
        self._output.objects = objects

    async def __aenter__(self) -> Self:
        if self._state is not OPEN:
            raise closed_error(self._target.pattern)
        if self._process is not None:
            raise ClosedError(f"{self._target.pattern}: this writer is open already: enter it once")
        await self._stack.enter_async_context(self._storages)
        self._process = process_id()
        if self.warns:
            self._dropped = weakref.finalize(
                self, warn_dropped, self._target.pattern, self._process
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await (self.close() if error is None else self._abort(error))

    if not TYPE_CHECKING:  # so that type checkers refuse it
        __enter__ = __exit__ = refuse_with(
            "write `async with ShardWriter(...)`; without asyncio, `with TFRecordWriter(...)`"
        )

    async def write(self, record: Buffer) -> None:
        """Writes one record.

        Raises:
            TypeError: The record is not bytes-like; the message says what to write instead.
            StorageError: The store failed, and retrying did not help. The unfinished shard is lost.
            ClosedError: The writer was closed, or not entered (`async with`) in this process.
        """
        self._check_writable()
        data = as_record(record)
        shard = self._output.current
        waits = shard is None or self._turns.are_taken
        if shard is None or waits or self._output.is_full(shard, len(data) + FRAME_BYTES, 1):
            await self._in_turn(self._output.write, data)
        elif shard.add(data):  # most records only join the block, without a task or a turn
            await self._in_turn(shard.send_block)

    async def write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        """Writes many records; Frames and other RecordBatches are written without an object for
        each record.

        Raises:
            TypeError, StorageError, ClosedError: As `write`. The records before one that is not
                bytes-like are written.
        """
        self._check_writable()
        await self._in_turn(self._write_batch, records)

    async def write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Writes one record of `length` bytes whose frame (header, payload, CRC) comes in pieces,
        as it is.
        """
        self._check_writable()
        await self._in_turn(self._output.write_frame, frame, length)

    async def rotate(self) -> ShardInfo | None:
        """Finishes the current shard, and waits until it is complete and visible.

        All records whose `write` has returned before are durable then: a killed process does not
        lose them. The next record begins the next shard.

        Returns:
            The shard; None if there are no records since the last one.

        Raises:
            ValueError: The pattern has no `{shard}`, or the writer replaces existing objects, which
                all wait for the end.
            StorageError, ClosedError: As `write`.
        """
        self._check_writable()
        if not self._target.numbered:
            raise ValueError(
                f"{display_name(self._target.pattern)!r} gives all shards the same name: add "
                "'{shard:05d}' for their number"
            )
        self._target.check_appears("rotate()")
        shards: list[ShardInfo | None] = []

        async def rotate() -> None:
            shards.append(await self._output.rotate())

        await self._in_turn(rotate)
        return shards[0]

    async def flush(self) -> None:
        """Sends the records so far to the store. They become visible when their shard is
        complete.
        """
        self._check_writable()
        await self._in_turn(self._output.flush)

    async def close(self) -> None:
        """Finishes the last shard and closes the connections. A second call has no effect.

        Without records, it writes an empty shard if the URL has no `{shard}`, otherwise none.

        Raises:
            ClosedError: The writer was never entered, or another process entered it.
        """
        if self._state is OPEN:
            self._check_open()
            self._state = State.CLOSING
        try:
            await self._turns.run(self._close)
        except BaseException as cause:
            await self._abort(cause)
            raise

    async def abort(self) -> None:
        """Drops the unfinished shard and closes the connections; finished shards stay."""
        await self._abort(None)

    async def _abort(self, cause: BaseException | None) -> None:
        if self._process not in (None, process_id()):
            return  # the unfinished shard belongs to another process
        self._state = State.CLOSED
        with anyio.CancelScope(shield=True):
            self._rotation.stop()
            await self._turns.stop()
            self._stop_warning()
            try:
                await self._output.abort(cause)
            finally:
                await self._stack.aclose()

    async def _in_turn(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> None:
        """Awaits `function(*args)` when all calls before it are done."""
        await self._turns.run(function, *args, check=self._check_not_closed)
        self._rotation.watch(self._output.current)

    async def _rotate_old(self, shard: object) -> None:
        """Finishes a shard that has become too old, unless it was finished meanwhile."""

        async def rotate() -> None:
            if self._output.current is shard:
                await self._output.rotate()

        if self._state is OPEN:
            await self._in_turn(rotate)

    def _check_not_closed(self) -> None:
        """Refuses a call if another task has aborted the writer while it waited for its turn."""
        if self._state is State.CLOSED:
            raise closed_error(self._target.pattern)

    async def _write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        # Frames come first: asking whether something follows a protocol takes 20 us.
        if isinstance(records, Frames):
            await self._output.write_batch(records)
        elif isinstance(records, RecordBatch):
            await self._output.write_batch(Frames(records.buffer, records.spans))
        else:
            for record in records:
                await self._output.write(as_record(record))

    async def write_block(self, records: list[bytes]) -> None:
        """Writes a list of records, which the caller must not change any more; for writers of one
        shard.
        """
        self._check_writable()
        await self._in_turn(self._output.write_block, records)

    async def _close(self) -> None:
        if self._state is State.CLOSED:
            return
        self._rotation.stop()
        self._rotation.check()
        await self._output.close()
        self._state = State.CLOSED
        self._stop_warning()
        await self._stack.aclose()

    def _stop_warning(self) -> None:
        if self._dropped is not None:
            self._dropped.detach()

    def _check_writable(self) -> None:
        """Refuses a call to a writer that is not open, and raises what the timer could not."""
        self._check_open()
        self._rotation.check()

    def _check_open(self) -> None:
        if self._state is not OPEN:
            raise closed_error(self._target.pattern)
        if self._process != process_id():
            why = "belongs to the process that forked this one"
            if self._process is None:
                why = "is not open yet"
            raise ClosedError(
                f"{self._target.pattern}: this writer {why}: write within its own `async with` "
                "block"
            )


def warn_dropped(pattern: str, maker: int) -> None:
    """Warns when the writer is collected, or the interpreter ends, before `close`."""
    if process_id() == maker:
        logger.warning(
            "%s: its ShardWriter was dropped without close(), so the unfinished shard is not kept: "
            "use an `async with` "
            "block, or close it",
            display_name(pattern),
        )
