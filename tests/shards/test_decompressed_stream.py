"""Inflating in a thread: who cancels waits for it, because it writes into the caller's buffer."""

import asyncio
import gzip
import threading

import pytest

from streamrec.shards.opening import InflatedStream
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


class NoMoreBytes:
    """What a stream gives at its end."""

    info = tally = None

    async def readinto(self, buffer: memoryview) -> int:
        return 0


async def test_a_cancellation_waits_for_the_thread_and_is_not_lost() -> None:
    inflater, room = HeldInflater(), memoryview(bytearray(len(PLAIN)))
    stream = InflatedStream(NoMoreBytes(), inflater, gzip.compress(PLAIN), 0)
    reading = asyncio.ensure_future(stream.readinto(room))
    await asyncio.to_thread(inflater.begun.wait)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=0)
    assert not done
    inflater.released.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert room == PLAIN
