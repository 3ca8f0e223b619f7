"""From names and patterns to shards: listings run at the same time, and their results come in
order.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import NotFoundError, PermissionDeniedError
from streamrec.shards import NameListing, find_shards
from streamrec.shards.listing import fingerprint_of, stands_for_others, to_names
from streamrec.shards.patterns import is_manifest, is_pattern
from streamrec.storage import Glob, ObjectInfo, Storages

PIECES = [
    "a",
    "/",
    "*",
    "?",
    "[",
    "]",
    "{",
    "}",
    "0..9",
    ",",
    ".json",
    ".index",
    "::",
    "s3://",
    "https://",
    "zip://",
    "#",
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join), st.booleans())
def test_a_name_is_looked_at_closely_where_it_may_stand_for_others(
    name: str, patterns: bool
) -> None:
    """A cheaper test passes over the other names first."""
    assert stands_for_others(name, patterns) == (
        is_pattern(name) or (is_manifest(name) and not patterns)
    )


class Lister:
    """Storages and Storage in one: a listing gives its result after `answer(prefix)`."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[str] = []
        self.gates: dict[str, anyio.Event] = {}
        self.broken: dict[str, Exception] = {}

    async def at(self, url: str) -> "Lister":
        return self

    async def stat(self, path: str) -> ObjectInfo:
        self.asked.append(path)
        if path not in self.names:
            raise NotFoundError("no", path)
        return ObjectInfo(path, 1, None)

    async def list(self, prefix: str, glob: Glob) -> AsyncIterator[ObjectInfo]:
        self.asked.append(prefix)
        await self.gates.setdefault(prefix, anyio.Event()).wait()
        if prefix in self.broken:
            raise self.broken[prefix]
        for name in self.names:
            if glob.wants(name):
                yield ObjectInfo(name, 1, None)

    def answer(self, *prefixes: str) -> None:
        for prefix in prefixes:
            self.gates.setdefault(prefix, anyio.Event()).set()


def listing_of(lister: Lister, *names: str) -> NameListing:
    return NameListing(cast(Any, lister), names)


async def test_listings_run_at_the_same_time_and_come_in_order() -> None:
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


async def test_at_most_eight_listings_run_at_the_same_time() -> None:
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
async def test_an_error_comes_after_the_results_before_it(error: Exception | None) -> None:
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


async def test_braces_cost_one_stat_and_the_listings_within_them_run_at_the_same_time() -> None:
    lister = Lister("m://x/a1", "m://x/b1")
    listing = listing_of(
        lister, "x-{1..2}", "m://x/{a,b}*", "https://h/y-{1..2}", "m{1,2}://b{3..4}/z"
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listing.run)
        await anyio.wait_all_tasks_blocked()
        assert lister.asked == ["x-{1..2}", "m://x/{a,b}*", "m://x/a", "m://x/b"]
        lister.answer("m://x/a", "m://x/b")
        await listing.until(100)
    urls = ["https://h/y-1", "https://h/y-2", "m1://b3/z", "m1://b4/z", "m2://b3/z", "m2://b4/z"]
    assert listing.paths == ["x-1", "x-2", "m://x/a1", "m://x/b1", *urls]
    assert listing.error is None


async def test_an_object_with_exactly_the_name_wins(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "streamrec")
    names = (
        "m://x/a*",
        "m://x/a1",
        "m://x/b[1]",
        "m://x/b1",
        "m://x/{c,d}",
        "m://x/c",
        "m://x/d",
        "m://x/[e]",
    )
    for patterns, expected in (
        (False, ["m://x/a*", "m://x/b[1]", "m://x/{c,d}", "m://x/[e]"]),
        (True, ["m://x/a*", "m://x/a1", "m://x/b1", "m://x/{c,d}", "m://x/[e]"]),
    ):
        lister = Lister(*names)
        lister.answer("m://x/a", "m://x/b", "m://x/")
        asked = ["m://x/a*", "m://x/b[1]", "m://x/{c,d}", "m://x/[e]"]
        assert await find_shards(cast(Any, lister), asked, patterns=patterns) == expected
    warned = [record.getMessage() for record in caplog.records]
    assert [message.split(": ")[0] for message in warned] == ["m://x/a*", "m://x/b[1]"]
    assert "match 1 more" in warned[0]
    caplog.clear()
    assert await find_shards(cast(Any, lister), "m://x/a*") == ["m://x/a*"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_no_name_and_no_match_are_errors() -> None:
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


def test_names_keep_their_order_and_may_be_paths() -> None:
    assert to_names(["b", Path("a"), "c-{1..2}"]) == ["b", "a", "c-{1..2}"]
    assert to_names(Path("a")) == ["a"]
    assert to_names(name for name in "ba") == ["b", "a"]


INFO = ObjectInfo("a", 1, "v1")


@pytest.mark.parametrize(
    ("paths", "known", "complete"),
    [
        (["a"], {}, True),
        (["a", "b"], {"a": INFO}, True),
        (["a"], {"a": INFO}, False),
        (["a"], {"a": ObjectInfo("a", 2, "v1")}, True),
        (["a"], {"a": ObjectInfo("a", 1, "v2")}, True),
        (["c"], {"c": INFO}, True),
    ],
)
def test_a_fingerprint_changes_with_names_sizes_versions_and_completeness(
    paths: list[str], known: dict[str, ObjectInfo], complete: bool
) -> None:
    assert fingerprint_of(paths, known, complete) != fingerprint_of(["a"], {"a": INFO}, True)


def test_a_fingerprint_does_not_depend_on_objects_that_are_not_shards_of_the_listing() -> None:
    others = {"a": INFO, "z": ObjectInfo("z", 9, "v9")}
    assert fingerprint_of(["a"], others, True) == fingerprint_of(["a"], {"a": INFO}, True)
