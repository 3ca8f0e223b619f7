"""Inflating in a thread: who cancels waits for it, because it writes into the caller's buffer."""

import asyncio
import gzip
import threading

import pytest

from streamrec import ObjectChangedError
from streamrec.shards.reading.decompressed_stream import InflatedStream
from streamrec.tfrecord import Inflater

PLAIN = bytes(range(256)) * 4096


class HeldInflater(Inflater):
    """Begins when it is told to."""

    def __init__(self) -> None:
        super().__init__("GZIP")
        self.begun, self.released = threading.Event(), threading.Event()

    def read_into(self, buffer: memoryview) -> int:
        self.begun.set()
        self.released.wait()
        return super().read_into(buffer)


class ChangedFile:
    """Compressed bytes that are not the shard's any more."""

    async def next(self) -> bytes:
        return b""

    async def confirm(self) -> None:
        raise ObjectChangedError("it was replaced", "x")


async def test_a_cancellation_waits_for_the_thread_and_is_not_lost() -> None:
    """Not even where the file changed meanwhile, too."""
    inflater, room = HeldInflater(), memoryview(bytearray(len(PLAIN)))
    stream = InflatedStream(ChangedFile(), inflater, gzip.compress(PLAIN), 0)
    reading = asyncio.ensure_future(stream.readinto(room))
    await asyncio.to_thread(inflater.begun.wait)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=0)
    assert not done
    inflater.released.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert room == PLAIN


async def test_bytes_that_changed_are_not_given() -> None:
    """Neither good ones nor damage."""
    for data in (gzip.compress(PLAIN), b"no gzip"):
        stream = InflatedStream(ChangedFile(), Inflater("GZIP"), data, 0)
        with pytest.raises(ObjectChangedError):
            await stream.readinto(memoryview(bytearray(len(PLAIN))))
