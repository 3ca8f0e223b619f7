"""All records in a random order, each order as likely as any other, with little memory and a folder on disk.

Each record goes to a bucket that is drawn for it: a file. Then one bucket after the other is read whole, and its
records come in a drawn order. A bucket that is too large for that is scattered to buckets once more. Random words
come straight from PCG64, so that a seed means the same order with every NumPy.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import anyio
import numpy as np

from streamrec.cli.output import Meter
from streamrec import Framer, Frames, StorageError, encode_records

BUCKETS: Final = 256
"""Files that are open at a time. Not tuned."""


class DiskShuffle:
    """A one-time shuffle. Use it in a `with` block: `await scatter(...)` all records, then iterate `shuffled()`.

    A bucket is about `bucket_bytes` large; one of twice the size is scattered once more.

    Attributes:
        records: How many records were scattered.
        nbytes: How many bytes they take up in the buckets.
    """

    def __init__(self, seed: int | None, folder: str | None = None, bucket_bytes: int = 64 << 20) -> None:
        self.records = 0
        self.nbytes = 0
        self._random = np.random.PCG64(seed)
        self._bucket_bytes = bucket_bytes
        self._stack = ExitStack()
        self._folder = folder or tempfile.gettempdir()
        self._buckets: list[Path] = []

    def __enter__(self) -> DiskShuffle:
        with folder_errors(self._folder):
            made = tempfile.TemporaryDirectory(prefix="streamrec-", dir=self._folder)
            self._folder = self._stack.enter_context(made)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def scatter(self, blocks: AsyncIterator[Frames], nbytes: int | None) -> None:
        """Takes all records, of about `nbytes` where that is known."""
        with self._open_buckets(nbytes or BUCKETS * self._bucket_bytes) as files:
            async for frames in blocks:
                self.records += len(frames)
                self.nbytes += await anyio.to_thread.run_sync(self._write, frames, files)
        self._buckets = [Path(file.name) for file in files]

    async def shuffled(self, meter: Meter) -> AsyncGenerator[Frames, None]:
        """The records in their new order, a bucket at a time. Can be iterated once."""
        buckets_read = self._read_buckets(self._buckets)
        while (frames := await anyio.to_thread.run_sync(next, buckets_read, None)) is not None:
            yield frames
            meter.add(frames.nbytes)

    def _read_buckets(self, buckets: Iterable[Path], whole: float = math.inf) -> Iterator[Frames]:
        """The records of buckets into which `whole` bytes were scattered."""
        for path in buckets:
            nbytes = path.stat().st_size
            if 2 * self._bucket_bytes < nbytes < whole:  # one that has all of them, such as a large record, stays whole
                with self._open_buckets(nbytes) as files, path.open("rb") as file:
                    framer = Framer(verify=False)
                    while data := file.read(8 << 20):
                        self._write(framer.feed(data), files)
                path.unlink()
                yield from self._read_buckets([Path(file.name) for file in files], nbytes)
            elif nbytes:
                frames = Framer(verify=False).feed(path.read_bytes())
                path.unlink()
                yield frames.picked(np.argsort(self._random.random_raw(len(frames)), kind="stable"))

    @contextmanager
    def _open_buckets(self, nbytes: int) -> Iterator[list[IO[bytes]]]:
        count = min(BUCKETS, nbytes // self._bucket_bytes + 1)
        with folder_errors(self._folder), ExitStack() as stack:
            made = (tempfile.NamedTemporaryFile(dir=self._folder, buffering=128 << 10, delete=False) for _ in range(count))
            yield [stack.enter_context(file) for file in made]

    def _write(self, frames: Frames, files: list[IO[bytes]]) -> int:
        """Scatters these records to the files; returns how many bytes they take up."""
        places = self._random.random_raw(len(frames)) % np.uint64(len(files))
        order, nbytes = np.argsort(places, kind="stable"), 0
        ends = np.searchsorted(places[order], np.arange(len(files) + 1, dtype=np.uint64))
        for number, file in enumerate(files):
            own = order[ends[number] : ends[number + 1]]
            nbytes += file.write(encode_records(frames.picked(own))) if len(own) else 0
        return nbytes


@contextmanager
def folder_errors(folder: str) -> Iterator[None]:
    """What goes wrong with the folder is a StorageError that says what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        message = f"the records wait here to be shuffled, and it fails ({error}): choose another folder with --temp"
        raise StorageError(message, folder) from error
