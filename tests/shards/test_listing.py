"""From names to shards: all listings at once, their answers in order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest

from streamrec.errors import NotFoundError, PermissionDeniedError
from streamrec.shards import Listing, find_shards
from streamrec.storage import ObjectInfo, Storages


class Lister:
    """Storages and Storage in one: a listing is answered when its prefix is let go."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[str] = []
        self.gates: dict[str, anyio.Event] = {}
        self.broken: dict[str, Exception] = {}

    async def at(self, url: str) -> "Lister":
        return self

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.asked.append(prefix)
        await self.gates.setdefault(prefix, anyio.Event()).wait()
        if prefix in self.broken:
            raise self.broken[prefix]
        for name in self.names:
            if name.startswith(prefix):
                yield ObjectInfo(name, 1, None)

    def answer(self, *prefixes: str) -> None:
        for prefix in prefixes:
            self.gates.setdefault(prefix, anyio.Event()).set()


def listing_of(lister: Lister, *names: str) -> Listing:
    return Listing(cast(Any, lister), names)


async def test_all_listings_are_under_way_at_once_and_come_in_order() -> None:
    lister = Lister("m://b2", "m://b1", "m://c1", "m://a1")
    listing = listing_of(lister, "m://a*", "x", "y", "m://b*", "m://c*")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listing.run)
        await anyio.wait_all_tasks_blocked()
        assert lister.asked == ["m://a", "m://b", "m://c"]
        lister.answer("m://c", "m://a")
        await listing.until(2)
        assert listing.paths == ["m://a1", "x", "y"]
        assert not listing.complete
        lister.answer("m://b")
        await listing.until(100)
    assert listing.paths == ["m://a1", "x", "y", "m://b1", "m://b2", "m://c1"]
    assert listing.complete
    assert listing.error is None


async def test_no_more_listings_at_once_than_the_limit() -> None:
    lister = Lister(*(f"m://{number:02d}" for number in range(20)))
    listing = listing_of(lister, *(f"m://{number:02d}*" for number in range(20)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listing.run)
        await anyio.wait_all_tasks_blocked()
        assert len(lister.asked) == 8
        lister.answer(*(f"m://{number:02d}" for number in range(20)))
        await listing.until(20)
    assert listing.paths == list(lister.names)


@pytest.mark.parametrize("error", [PermissionDeniedError("no", "m://b"), None])
async def test_an_error_stands_behind_what_came_before_it(error: Exception | None) -> None:
    lister = Lister("m://a1", "m://c1")
    lister.broken = {"m://b": error} if error else {}
    lister.answer("m://a", "m://b", "m://c")
    listing = listing_of(lister, "m://a*", "m://b*", "m://c*")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listing.run)
        await listing.until(100)
    assert listing.paths == ["m://a1"]
    assert listing.complete
    assert listing.error is error or isinstance(listing.error, NotFoundError)


async def test_names_need_no_listing() -> None:
    listing = listing_of(Lister(), "b-{1..2}", "a")
    await listing.until(1)
    assert listing.paths == ["b-1", "b-2", "a"]
    await listing.until(4)
    assert listing.complete


async def test_no_name_at_all() -> None:
    async with Storages() as storages:
        with pytest.raises(NotFoundError, match="no file name"):
            await find_shards(storages, [])
        with pytest.raises(NotFoundError, match="no object matches"):
            await find_shards(storages, ["a", "memory://nothing/here-*"])
        assert await find_shards(storages, ["b", "a"]) == ["b", "a"]


async def test_a_listing_that_is_cancelled_leaves_no_task() -> None:
    listing = listing_of(Lister("m://a1"), "m://a*")
    before = asyncio.all_tasks()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listing.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert asyncio.all_tasks() == before
