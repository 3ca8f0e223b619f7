"""An overwrite meets something at each of its requests: a fault, a missing right, a second writer.
Whatever happens, no data set is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

import streamrec
from streamrec import ShardWriter
from streamrec.errors import StreamrecError
from streamrec.storage import RetryPolicy, recover, secured_object
from streamrec.storage.registry import Storages
from tests.effort import THOROUGH
from tests.servers.real import Store
from tests.steps import Objects, Place, is_hidden
from tests.storage.faultproxy import Fault, FaultProxy, Request, status

POLICY = RetryPolicy(attempts=3, backoff_base=0.01)
DENIED = status("403 Forbidden")
pytestmark = pytest.mark.thorough
"""They take ten minutes. `tests/cli/test_overwriting.py` tries some requests each time."""

FAULTS = {
    "refused": DENIED,
    "busy": status("500 Oops"),
    "answer lost": Fault(cut=0, head=lambda head: b""),
}


@dataclass
class Requests:
    """Counts requests; something happens at one of them, and rights are missing at all."""

    at: int | None = None
    happen: Callable[[], Fault | None] = lambda: None
    denied: Callable[[Request], bool] = lambda request: False
    seen: list[Request] = field(default_factory=list)

    def choose(self, request: Request) -> Fault | None:
        self.seen.append(request)
        if self.denied(request):
            return DENIED
        return self.happen() if len(self.seen) - 1 == self.at else None


@dataclass
class Written:
    """A place that is written through a proxy, and read past it."""

    place: Place
    direct: Place
    proxy: FaultProxy

    async def write(self, tag: str, count: int, direct: bool = False) -> list[bytes]:
        records = [f"{tag} {number}".encode() for number in range(count)]
        place = self.direct if direct else self.place
        async with ShardWriter(
            f"{place.url}/t-{{shard}}",
            max_shard_records=1,
            manifest=f"{place.url}/m.json",
            storage_options=place.options,
            retry=POLICY,
        ) as writer:
            for record in records:
                await writer.write(record)
        return records

    async def read(self) -> list[bytes]:
        shards = streamrec.TFRecordDataset(
            f"{self.direct.url}/m.json", storage_options=self.direct.options
        )
        return [bytes(record) async for record in shards.aiterate()]


@pytest.fixture(params=["s3_store", "gcs_store"])
async def written(request: pytest.FixtureRequest) -> AsyncIterator[Written]:
    store: Store = request.getfixturevalue(request.param)
    async with FaultProxy(store.endpoint) as proxy, Storages(store.options) as storages:
        url = f"{store.url}/{uuid4()}"
        storage = await storages.at(url)
        options = {**store.options, "endpoint_url": proxy.url}
        direct = Place(url, dict(store.options), storage)
        yield Written(Place(url, options, storage), direct, proxy)


def kept(before: Objects, found: Objects) -> bool:
    """Whether each old object is there, under its name or as a secured copy."""
    copies = {secured_object(name): data for name, data in found.items() if secured_object(name)}
    return all(data in (found.get(name), copies.get(name)) for name, data in before.items())


def shown(found: Objects) -> Objects:
    return {name: data for name, data in found.items() if not is_hidden(name)}


def reads_shard(request: Request) -> bool:
    """Whether a request reads a visible shard: by HEAD, GET, or as the source of a copy."""
    path = request.path.partition("?")[0]
    source = request.headers.get("x-amz-copy-source", "") or path.partition("/rewriteTo")[0]
    reads = request.method in ("HEAD", "GET") or source != path
    return reads and source[-4:-1] in ("/t-", "Ft-")


def copies(request: Request) -> bool:
    return "x-amz-copy-source" in request.headers or "/rewriteTo" in request.path


RIGHTS: dict[str, Callable[[Request], bool]] = {
    "all rights": lambda request: False,
    "no right to read": reads_shard,
    "no right to copy": copies,
    "no right to delete": lambda request: request.method == "DELETE",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rights", RIGHTS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_at_any_request_loses_nothing(
    written: Written, rights: str, fault: str
) -> None:
    await written.write("old", 2)
    before = await written.place.snapshot()
    every = THOROUGH or rights == "no right to read"  # then it is refused at once
    number = 0
    found = before
    step = 1 if every else 7
    while True:
        await written.direct.restore(before, found)
        requests = Requests(number, lambda: FAULTS[fault], RIGHTS[rights])
        written.proxy.choose = requests.choose
        try:
            new = await written.write("new", 3)
        except StreamrecError:
            new = None
        await written.proxy.rest()
        written.proxy.choose = lambda request: None
        found = await written.direct.snapshot()
        met = (number, fault, rights, [each.method + each.path for each in requests.seen[number:]])
        if new is None:
            assert kept(before, found), met
            async with Storages(written.direct.options) as storages:
                async for _ in recover(storages, f"{written.direct.url}/", lease=1):
                    pass
            found = await written.direct.snapshot()
            assert shown(found) == before, met
        else:
            assert await written.read() == new, met
        if number >= len(requests.seen):
            break
        number += step
    assert number > step


@pytest.mark.timeout(600)
@pytest.mark.parametrize("same", [False, True], ids=["other bytes", "the same bytes"])
@pytest.mark.parametrize("fault", ["none", *FAULTS])
async def test_a_second_writer_that_begins_at_any_request_is_not_damaged(
    written: Written, fault: str, same: bool
) -> None:
    """Who succeeds has a whole data set; if neither does, the old one is there."""
    old = await written.write("old", 2)
    before = await written.place.snapshot()
    number = 0
    found = before
    step = 1 if THOROUGH else 9
    while True:
        await written.direct.restore(before, found)
        second: list[asyncio.Task[list[bytes]]] = []

        def begin() -> Fault | None:
            tag, count = ("new", 3) if same else ("second", 4)
            second.append(  # noqa: B023
                asyncio.ensure_future(written.write(tag, count, direct=True))
            )
            return FAULTS.get(fault)

        requests = Requests(number, begin)
        written.proxy.choose = requests.choose
        ended = [await settled(written.write("new", 3))]
        ended += [await settled(task) for task in second]
        await written.proxy.rest()
        written.proxy.choose = lambda request: None
        found = await written.direct.snapshot()
        succeeded = [records for records in ended if records is not None]
        assert await written.read() in (succeeded or [old]), (number, ended)
        if number >= len(requests.seen):
            break
        number += step
    assert number > step


async def settled(writing: Awaitable[list[bytes]]) -> list[bytes] | None:
    """What was written; None if it failed."""
    try:
        return await writing
    except StreamrecError:
        return None
