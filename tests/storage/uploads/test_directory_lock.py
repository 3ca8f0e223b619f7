"""The lock of a directory in a store: one writer holds it, whatever becomes of its requests."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from streamrec.errors import ObjectChangedError, StorageError
from streamrec.storage import RetryPolicy, Storages, directory_lock
from streamrec.storage.directory_lock import DirectoryLock, LockedError, lock_name
from tests.servers.real import Store
from tests.storage.faultproxy import Fault, Request, status
from tests.storage.network import Network, through

POLICY = RetryPolicy(attempts=2, backoff_base=0.01)
LOST = Fault(cut=0, head=lambda head: b"")  # it took effect, and its answer is lost
DROPPED = Fault(answer=b"")  # it does not reach the store
DENIED = status("403 Forbidden")


def writes(request: Request) -> bool:
    return request.method in ("PUT", "POST")


@pytest.fixture(params=["s3_store", "gcs_store"])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    store: Store = request.getfixturevalue(request.param)
    async with through(store, POLICY) as place:
        yield place


def lock_of_this_process(network: Network) -> DirectoryLock:
    return DirectoryLock(network.storage, f"{network.path}/")


def lock_of_another_writer(network: Network) -> DirectoryLock:
    """That of a second writer, whose requests meet nothing."""
    return DirectoryLock(network.direct, f"{network.path}/")


async def lock_objects(network: Network) -> bool:
    name = lock_name(f"{network.path}/")
    return [info.path async for info in network.direct.list(name, hidden=True)] == [name]


@pytest.mark.parametrize("faults", [[], [LOST], [LOST, LOST], [DROPPED], [DROPPED, LOST]], ids=len)
async def test_a_writer_whose_answer_is_lost_holds_the_lock(
    network: Network, faults: list[Fault]
) -> None:
    network.meets(*faults, when=writes)
    lock = lock_of_this_process(network)
    await lock.acquire(0)
    assert lock.is_held
    with pytest.raises(LockedError, match="another writer"):
        await lock_of_another_writer(network).acquire(0)
    await lock.release()
    assert not await lock_objects(network)


@pytest.mark.parametrize("fault", [None, LOST, DROPPED], ids=["none", "lost", "dropped"])
async def test_a_lock_of_another_writer_is_respected_whatever_is_lost(
    network: Network, fault: Fault | None
) -> None:
    first = lock_of_another_writer(network)
    await first.acquire(0)
    network.meets(fault, when=writes)
    lock = lock_of_this_process(network)
    with pytest.raises(LockedError, match="another writer"):
        await lock.acquire(0)
    waiting = asyncio.ensure_future(lock.acquire(60))
    await first.release()
    await waiting
    assert lock.is_held
    with pytest.raises(LockedError):
        await lock_of_another_writer(network).acquire(0)
    await lock.release()


async def test_a_store_that_fails_is_an_error_and_not_a_store_without_locks(
    network: Network,
) -> None:
    network.meets(then=DROPPED, when=writes)
    lock = lock_of_this_process(network)
    with pytest.raises(StorageError):
        await lock.acquire(0)
    assert not lock.is_held


async def test_one_refusal_does_not_mean_that_there_is_no_right_to_lock(network: Network) -> None:
    network.meets(DENIED, when=writes)
    lock = lock_of_this_process(network)
    await lock.acquire(0)
    assert lock.is_held
    await lock.release()


async def test_a_client_without_the_right_works_without_a_lock(network: Network) -> None:
    network.meets(then=DENIED, when=writes)
    lock = lock_of_this_process(network)
    await lock.acquire(0)
    assert not lock.is_held
    lock.check()
    await lock.release()


@pytest.mark.parametrize("lost", [1, 2], ids=["once", "and again"])
async def test_a_lock_is_renewed_after_a_lost_answer(
    network: Network, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    monkeypatch.setattr(directory_lock, "BEAT_SECONDS", 0.01)
    lock = lock_of_this_process(network)
    await lock.acquire(0)
    left = [LOST] * lost
    renewed = asyncio.Event()
    count = 0

    def choose(request: Request) -> Fault | None:
        nonlocal count
        if not writes(request):
            return None
        if left:
            return left.pop()
        count += 1
        if count == 4:
            renewed.set()
        return None

    network.proxy.choose = choose
    name = lock_name(f"{network.path}/")
    before = (await network.direct.stat(name)).version
    async with asyncio.timeout(60):
        await renewed.wait()
    await lock.release()
    assert before is not None
    assert not await lock_objects(network)


async def test_a_lock_is_freed_while_the_answer_to_a_renewal_is_lost(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_lock, "BEAT_SECONDS", 0.01)
    lock = lock_of_this_process(network)
    await lock.acquire(0)
    asked = asyncio.Event()

    def choose(request: Request) -> Fault | None:
        if not writes(request):
            return None
        asked.set()
        return LOST

    network.proxy.choose = choose
    async with asyncio.timeout(60):
        await asked.wait()
    await lock.release()
    assert not await lock_objects(network)


async def test_a_lock_that_does_not_change_is_taken_over_and_its_holder_notices(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_lock, "LEASE_SECONDS", 0.2)
    monkeypatch.setattr(directory_lock, "BEAT_SECONDS", 3600)
    lock = lock_of_this_process(network)
    await lock.acquire(0)
    second = lock_of_another_writer(network)
    await second.acquire(60)
    assert second.is_held
    with pytest.raises(ObjectChangedError, match="stood still"):
        lock.check()
    await lock.release()
    assert await lock_objects(network)  # it is the second writer's
    await second.release()
    assert not await lock_objects(network)


async def test_locks_in_memory_exclude_each_other() -> None:
    async with Storages() as storages:
        storage = await storages.at("memory://x")
        directory = f"memory://{uuid4()}/"
        first, second = DirectoryLock(storage, directory), DirectoryLock(storage, directory)
        await first.acquire(0)
        with pytest.raises(LockedError):
            await second.acquire(0)
        await first.release()
        await second.acquire(0)
        assert second.is_held
        await second.release()
