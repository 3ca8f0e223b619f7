"""All records in a random order, each order as likely as any other, with little memory and a folder on disk.

Each record goes to a bucket that is drawn for it: a file. Then one bucket after the other is read whole, and its
records come in a drawn order. A bucket that is too large for that is scattered to buckets once more. Random words
come straight from PCG64, so that a seed means the same order with every NumPy.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import numpy as np

from streamrec import Framer, Frames, StorageError, encode_records

BUCKETS: Final = 256


@dataclass
class BucketFile:
    """A file of records."""

    path: Path
    records: int = 0
    nbytes: int = 0


class DiskShuffle:
    """A one-time shuffle. Use it in a `with` block: `await scatter(...)` all records, then iterate `shuffled()`.

    A bucket is about `bucket_bytes` large; one of twice the size is scattered once more.
    """

    def __init__(self, seed: int | None, folder: str | None = None, bucket_bytes: int = 64 << 20) -> None:
        self._random = np.random.PCG64(seed)
        self._folder = folder
        self._bucket_bytes = bucket_bytes
        self._stack = ExitStack()
        self._buckets: list[BucketFile] = []
        self._made = 0

    def __enter__(self) -> DiskShuffle:
        with folder_errors(self._folder):
            self._place = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="streamrec-", dir=self._folder))
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def records(self) -> int:
        """How many records were scattered."""
        return sum(bucket.records for bucket in self._buckets)

    @property
    def nbytes(self) -> int:
        """How many bytes they take up in the buckets."""
        return sum(bucket.nbytes for bucket in self._buckets)

    async def scatter(self, blocks: AsyncIterator[Frames], nbytes: int | None) -> None:
        """Takes all records, of about `nbytes` where that is known."""
        with self._scattering(nbytes or BUCKETS * self._bucket_bytes) as writer:
            async for frames in blocks:
                await anyio.to_thread.run_sync(writer.add, frames)
            self._buckets = writer.buckets

    async def shuffled(self) -> AsyncIterator[Frames]:
        """The records in their new order, a bucket at a time. Can be iterated once."""
        buckets_read = self._read_buckets(self._buckets)
        while (frames := await anyio.to_thread.run_sync(next, buckets_read, None)) is not None:
            yield frames

    def _read_buckets(self, buckets: Iterable[BucketFile]) -> Iterator[Frames]:
        for bucket in buckets:
            if bucket.nbytes > 2 * self._bucket_bytes and bucket.records > 1:
                with self._scattering(bucket.nbytes) as writer:
                    for frames in blocks_of(bucket.path):
                        writer.add(frames)
                bucket.path.unlink()
                yield from self._read_buckets(writer.buckets)
            elif bucket.records:
                frames = Framer(verify=False).feed(bucket.path.read_bytes())
                bucket.path.unlink()
                yield frames.picked(np.argsort(self._random.random_raw(len(frames)), kind="stable"))

    @contextmanager
    def _scattering(self, nbytes: int) -> Iterator[BucketWriter]:
        count = min(BUCKETS, nbytes // self._bucket_bytes + 1)
        buckets = [BucketFile(self._place / str(self._made + number)) for number in range(count)]
        self._made += count
        with folder_errors(str(self._place)), ExitStack() as stack:
            yield BucketWriter(buckets, self._random, stack)


class BucketWriter:
    """Puts records into buckets."""

    def __init__(self, buckets: list[BucketFile], random: np.random.PCG64, stack: ExitStack) -> None:
        self.buckets = buckets
        self._random = random
        self._files = [stack.enter_context(bucket.path.open("wb", buffering=128 << 10)) for bucket in buckets]

    def add(self, frames: Frames) -> None:
        """Scatters these records."""
        places = self._random.random_raw(len(frames)) % np.uint64(len(self.buckets))
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places[order], np.arange(len(self.buckets) + 1, dtype=np.uint64))
        for number, bucket in enumerate(self.buckets):
            own = order[ends[number] : ends[number + 1]]
            if len(own):
                data = encode_records(frames.picked(own))
                self._files[number].write(data)
                bucket.records += len(own)
                bucket.nbytes += len(data)


def blocks_of(path: Path) -> Iterator[Frames]:
    framer = Framer(verify=False)
    with path.open("rb") as file:
        while data := file.read(8 << 20):
            yield framer.feed(data)


@contextmanager
def folder_errors(folder: str | None) -> Iterator[None]:
    """What goes wrong with the folder is a StorageError that says what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        message = f"the records wait here to be shuffled, and it fails ({error}): choose another folder with --temp"
        raise StorageError(message, folder or tempfile.gettempdir()) from error
