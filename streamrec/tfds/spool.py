"""Spool: the records of one split, framed, in a temporary file.

The names of shards have the number of shards, and that follows from all records. So no byte goes to
the store before the last example was encoded, and an example that cannot be encoded leaves nothing
there. The file has no name: a killed process leaves nothing.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np

from streamrec.errors import StorageError
from streamrec.tfds.sharding import OVERHEAD, Lengths
from streamrec.tfrecord import encode_records

BLOCK_BYTES = 4 << 20
"""Bytes that are framed, or read, at a time."""


class Spool:
    """Records in a temporary file; they are added by one thread at a time.

    Args:
        directory: Where the file is; None for the system's directory of temporary files.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory or tempfile.gettempdir()
        with self._errors():
            self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        self._lengths = array("q")
        self._lock = Lock()  # shards are sent at the same time, and the file has one position

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def lengths(self) -> Lengths:
        """The number of bytes of each record, without its frame; int64 of shape `[records]`."""
        return np.array(self._lengths, np.int64)

    def add(self, records: Sequence[bytes]) -> None:
        """Appends records.

        Raises:
            StorageError: The disk is full, or fails.
        """
        with self._errors():
            self._file.write(encode_records(records))
        self._lengths.extend(map(len, records))

    def flush(self) -> None:
        """Makes all records readable."""
        with self._errors():
            self._file.flush()

    def bounds(self, counts: Sequence[int]) -> list[tuple[int, int]]:
        """Where the records of each shard begin and end in the file.

        Args:
            counts: The number of records of each shard.
        """
        ends = np.cumsum(self.lengths + OVERHEAD)[np.cumsum(counts) - 1].tolist()
        return list(zip([0, *ends], ends, strict=False))

    def read(self, offset: int, size: int) -> bytes:
        """A block of the file; from any thread."""
        with self._errors(), self._lock:
            self._file.seek(offset)
            return self._file.read(size)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Names the directory in errors of the temporary file."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"the temporary file for the records failed ({error}): they need as much room as "
                "the split; name a directory that has it with temporary_directory=",
                self._directory,
            ) from error
