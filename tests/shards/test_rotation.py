"""Shards that become old: the timer that finishes them. Its clock is the event loop's."""

import asyncio

import pytest

from streamrec.shards.rotation import Rotation


class Finished:
    """Notes the shards that were to be finished, and fails for one of them."""

    def __init__(self, failing: str = "") -> None:
        self.shards: list[object] = []
        self.failing = failing
        self.called = asyncio.Event()

    async def __call__(self, shard: object) -> None:
        self.shards.append(shard)
        self.called.set()
        if shard == self.failing:
            raise OSError("no room")


async def ended(rotation: Rotation) -> None:
    """Lets other tasks run until the rotation has finished a shard."""
    while not rotation.has_ended:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_a_shard_is_finished_when_it_is_old_enough() -> None:
    finished = Finished()
    rotation = Rotation(0.0, finished)
    rotation.watch("a")
    rotation.watch("a")  # each write says again which shard is the current one
    await ended(rotation)
    rotation.check()
    assert finished.shards == ["a"]
    assert not rotation.has_ended


async def test_an_error_of_finishing_is_raised_once() -> None:
    rotation = Rotation(0.0, Finished(failing="a"))
    rotation.watch("a")
    await ended(rotation)
    with pytest.raises(OSError, match="no room"):
        rotation.check()
    rotation.check()
    assert not rotation.has_ended


async def test_only_the_newest_shard_is_finished_and_none_after_a_stop() -> None:
    finished = Finished()
    rotation = Rotation(0.0, finished)
    rotation.watch("a")
    rotation.watch("b")
    await finished.called.wait()
    assert finished.shards == ["b"]
    rotation.watch("c")
    rotation.watch(None)
    rotation.watch("d")
    rotation.stop()
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0, later.set)
    await later.wait()
    assert finished.shards == ["b"]


async def test_without_an_age_no_shard_is_finished() -> None:
    finished = Finished()
    rotation = Rotation(None, finished)
    rotation.watch("a")
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0, later.set)
    await later.wait()
    assert finished.shards == []
    rotation.check()
