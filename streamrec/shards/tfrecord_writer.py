"""TFRecordWriter: TensorFlow's synchronous writer, for any URL."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from streamrec import bridge
from streamrec.arguments import check_path
from streamrec.display import display_name
from streamrec.errors import ClosedError
from streamrec.process import process_id
from streamrec.shards.manifest import FRAME_BYTES
from streamrec.shards.shard_writer import ShardWriter
from streamrec.storage import Overwrite, StoreOptions, check_keywords
from streamrec.tfrecord import TFRecordOptions, as_record
from streamrec.tracebacks import border, shorten_traceback

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger("streamrec")

BLOCK_BYTES = 2 << 20
"""Bytes of records that go to the loop's thread at a time."""


class TFRecordWriter:
    """Writes records to one shard, as `tf.io.TFRecordWriter` does, to any URL or path.

    Unlike in TensorFlow, the shard appears only when it is closed and complete. If an exception
    leaves the `with` block, no new object appears, and an old one of this name stays. The same
    holds for a writer that is dropped without `close`, or is open when the interpreter exits; both
    are logged.

    A symbolic link is followed. A target that is not a plain file (/dev/stdout, a named pipe) is
    written directly, and keeps the bytes that were written before an error.

    Sharing: any number of threads may write to one writer; each record is written once, those of
    one thread in order. `close` waits for the writes that have begun, and refuses later ones
    (ClosedError).

    Args:
        path: The shard's URL or path.
        options: `TFRecordOptions`, or a compression type: "", "GZIP", "ZLIB", "ZSTD".
        overwrite: Whether to replace an existing object of this name. If False, an existing object
            raises AlreadyExistsError (see ShardWriter).
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Examples:
        >>> with TFRecordWriter("memory://doc/one.tfrecord") as writer:
        ...     writer.write(b"a record")
    """

    @border
    def __init__(
        self,
        path: str | os.PathLike[str],
        options: TFRecordOptions | str | None = None,
        *,
        overwrite: Overwrite = True,
        **store: Unpack[StoreOptions],
    ) -> None:
        check_keywords(
            "TFRecordWriter",
            store,
            dict.fromkeys(("compression", "compression_type"), "write options='GZIP'"),
        )
        self._path = check_path("path", path)
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._closed = self._failed = False
        self._process = process_id()
        self._lock = threading.RLock()  # re-entrant: a signal handler may close the writer
        self._writer = ShardWriter(self._path, options, overwrite=overwrite, **store)
        self._writer.warns = False  # this writer does
        self._dropped = weakref.finalize(
            self, warn_dropped, self._path, bridge.detach(self._writer.abort)
        )
        bridge.run(self._writer.__aenter__)

    def write(self, record: Buffer) -> None:
        """Writes one record.

        Raises:
            TypeError: The record is not bytes-like; the message says what to write instead.
            StorageError: The store failed, and retrying did not help.
            ClosedError: The writer was closed, or is used in a process that was forked since it was
                made.
        """
        try:
            data = record if type(record) is bytes else as_record(record)
            with self._lock:
                if self._closed or self._process != process_id():
                    self._check_open()
                self._block.append(data)
                self._block_bytes += len(data) + FRAME_BYTES
                if self._block_bytes >= BLOCK_BYTES:
                    self._send()
        except Exception as error:
            shorten_traceback(error)
            raise

    @border
    def flush(self) -> None:
        """Sends the records so far to the store. The shard appears with `close` only."""
        with self._lock:
            self._check_open()
            self._send()
            bridge.run(self._writer.flush)

    @border
    def close(self) -> None:
        """Finishes the shard: it appears under its name. A second call has no effect.

        Raises:
            StorageError: The store failed, and retrying did not help. The shard is dropped.
            ClosedError: An earlier write failed or was interrupted, and the shard was dropped.
        """
        with self._lock:
            if self._failed:
                self._check_open()
            if self._closed:
                return
            self._check_open()
            try:
                self._send()
                self._closed = True
                bridge.run(self._writer.close)
            except BaseException:
                self._abort()
                raise
            self._dropped.detach()

    def __enter__(self) -> Self:
        return self

    @border
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._closed and self._process == process_id():
            self._abort()

    def _send(self) -> None:
        try:
            block = self._block
            self._block = []
            self._block_bytes = 0
            if block:
                bridge.run(self._writer.write_block, block)
        except BaseException:  # a shard that lacks records must not appear
            self._failed = True
            self._abort()
            raise

    def _abort(self) -> None:
        self._closed = True
        bridge.run(self._writer.abort)
        self._dropped.detach()

    def _check_open(self) -> None:
        if self._failed:
            raise ClosedError(
                f"{self._path}: a write failed or was interrupted, so nothing of this shard is kept"
            )
        if self._closed:
            raise ClosedError(f"{self._path}: this writer was closed: make a new one to write more")
        if self._process != process_id():
            raise ClosedError(
                f"{self._path}: this writer belongs to the process that forked this one: make "
                "another"
            )


def warn_dropped(path: str, abort: Callable[[], bool]) -> None:
    """Drops the shard and warns, when the writer is collected, or the interpreter ends, before
    `close`.
    """
    if abort():
        logger.warning(
            "%s: its TFRecordWriter was dropped without close(), so nothing of it is kept: "
            "use a `with` block, or close it",
            display_name(path),
        )
