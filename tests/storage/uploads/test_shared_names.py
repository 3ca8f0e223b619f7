"""Two writers of the same names upload to the same hidden names. Neither puts in place what the
other one has uploaded.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streamrec.errors import ObjectChangedError, StorageError
from streamrec.storage import Replacement, RetryPolicy, Storage, Storages
from streamrec.storage.backends.memory import MemoryBackend
from streamrec.storage.faults import Cause, TransientError
from tests.servers.real import Store
from tests.steps import Place, is_hidden, open_place
from tests.storage.faultproxy import Fault, FaultProxy, Request

POLICY = RetryPolicy(attempts=3, backoff_base=0.01)
NAMES = ["a", "b", "m"]


class FailedError(Exception):
    """What a user's block raises."""


def puts_in_place(request: Request) -> bool:
    """Whether a request copies an uploaded object from its hidden name."""
    source = request.headers.get("x-amz-copy-source", "") or request.path.partition("/rewriteTo")[0]
    is_copy = "x-amz-copy-source" in request.headers or "/rewriteTo/" in request.path
    return is_copy and "-new-" in source


async def write(storages: Storages, url: str, tag: bytes, then: Exception | None = None) -> None:
    async with Replacement(storages, keeps=False) as objects:
        for name in NAMES:
            async with await objects.upload(f"{url}/{name}", describes=name == "m") as upload:
                await upload.write(tag)
        if then is not None:
            raise then


@pytest.mark.parametrize("tag", [b"second", b"first"], ids=["other bytes", "the same bytes"])
@pytest.mark.parametrize("name", ["s3_store", "gcs_store"])
async def test_two_writers_that_meet_between_a_look_and_a_copy_both_fail_and_keep_the_old_objects(
    request: pytest.FixtureRequest, name: str, tag: bytes
) -> None:
    """Both writers fail, so the old objects are there, all of them."""
    store: Store = request.getfixturevalue(name)
    url = f"{store.url}/{uuid4()}"
    async with (
        FaultProxy(store.endpoint) as proxy,
        Storages(store.options) as direct,
        Storages({**store.options, "endpoint_url": proxy.url}, retry=POLICY) as through,
    ):
        place = Place(url, store.options, await direct.at(url))
        await place.restore({f"/{each}": b"old" for each in NAMES}, {})
        before = await place.snapshot()
        uploaded, ended = asyncio.Event(), asyncio.Event()

        async def second() -> None:
            with pytest.raises(FailedError):
                async with Replacement(direct, keeps=False) as objects:
                    for each in NAMES:
                        async with await objects.upload(f"{url}/{each}") as upload:
                            await upload.write(tag)
                    uploaded.set()
                    await ended.wait()
                    raise FailedError

        started: list[asyncio.Task[None]] = []

        def choose(asked: Request) -> Fault | None:
            if not puts_in_place(asked):
                return None
            if not started:
                started.append(asyncio.ensure_future(second()))
            return Fault(until=uploaded)

        proxy.choose = choose
        with pytest.raises(ObjectChangedError, match="another writer"):
            await write(through, url, b"first")
        shown = {key: data for key, data in (await place.snapshot()).items() if not is_hidden(key)}
        assert shown == before
        ended.set()
        await started[0]
        assert await place.snapshot() == before


@pytest.fixture(params=["disk", "s3_store", "memory"])
async def storage(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Storage, str]]:
    """Stores that compare the source of a copy; fake-gcs-server does not."""
    if request.param == "memory":
        async with Storages() as storages:
            yield await storages.at("memory://x"), f"memory://{uuid4()}"
        return
    async with open_place(request.param, request) as place:
        yield place.storage, place.url


@pytest.mark.parametrize("exists", [False, True], ids=["new name", "old name"])
async def test_only_the_version_that_was_looked_at_is_copied(
    storage: tuple[Storage, str], exists: bool
) -> None:
    store, url = storage
    for name, data in [("a", b"1"), *([("b", b"old")] if exists else [])]:
        async with await store.upload(f"{url}/{name}") as upload:
            await upload.write(data)
    version = (await store.stat(f"{url}/a")).version
    async with await store.upload(f"{url}/a") as upload:
        await upload.write(b"two")
    with pytest.raises(ObjectChangedError):
        await store.copy(f"{url}/a", f"{url}/b", source_version=version)
    found = {info.path async for info in store.list(f"{url}/", hidden=True)}
    assert found == {f"{url}/a", *([f"{url}/b"] if exists else [])}
    if exists:
        assert await store.read_range(f"{url}/b", 0, 9) == b"old"
    version = (await store.stat(f"{url}/a")).version
    await store.copy(f"{url}/a", f"{url}/b", source_version=version)
    assert await store.read_range(f"{url}/b", 0, 9) == b"two"


class LosesTheAnswer(MemoryBackend):
    """A store that compares no version of what it removes, and whose first answer is lost."""

    answers = 0

    async def remove(self, path: str, version: str | None = None) -> None:
        await super().remove(path)
        self.answers += 1
        if self.answers == 1:
            async with await Storage(MemoryBackend(self._fs)).upload(path) as upload:
                await upload.write(b"second")
            raise TransientError(Cause.BROKEN, "the answer is lost")


async def test_a_removal_whose_answer_is_lost_does_not_remove_the_next_object() -> None:
    """The request is sent again, and another writer has come."""
    storage = Storage(LosesTheAnswer(MemoryFileSystem()), POLICY)
    path = f"memory://{uuid4()}"
    async with await storage.upload(path) as upload:
        await upload.write(b"first")
    with pytest.raises(ObjectChangedError):
        await storage.remove(path, (await storage.stat(path)).version)
    assert await storage.read_range(path, 0, 9) == b"second"


async def test_the_number_of_a_replaced_file_stands_for_it_no_longer(tmp_path: Path) -> None:
    """Two runs of `cp --resume` at once: a file of the one has the number of a file that the other
    one has replaced.
    """
    first, second, kept = (tmp_path / name for name in ("first", "second", "kept"))
    first.write_bytes(b"old")
    os.link(first, kept)
    async with Storages() as storages, Replacement(storages, stages=False) as objects:
        async with await objects.upload(str(first)) as upload:
            await upload.write(b"new")
        # The system gives a number again once it is free; a link has it for certain.
        os.link(kept, second)
        async with await objects.upload(str(second)) as upload:
            await upload.write(b"other")
    assert first.read_bytes() == b"new"
    assert second.read_bytes() == b"other"
    assert kept.read_bytes() == b"old"


async def test_two_names_of_one_file_are_refused_while_they_are_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"old")
    os.link(first, second)
    async with (
        Storages() as storages,
        Replacement(storages, stages=False) as objects,
        await objects.upload(str(first)) as upload,
    ):
        with pytest.raises(
            StorageError, match=r"the same object as .*first, which is written, too"
        ):
            await objects.upload(str(second))
        await upload.write(b"new")
    assert second.read_bytes() == b"old"
