"""An object in a real store behind a proxy that does damage: what the tests of reading and writing
have in common.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from streamrec.storage import RetryPolicy, Storage, Storages
from tests.servers.real import Store
from tests.storage.contract import read_all
from tests.storage.faultproxy import Fault, FaultProxy, Request


def is_get(request: Request) -> bool:
    return request.method == "GET"


@dataclass
class Network:
    """A name of its own in a store, a Storage that goes through the proxy, and one that goes to the
    store directly.
    """

    store: Store
    proxy: FaultProxy
    storage: Storage
    direct: Storage
    path: str

    def meets(
        self,
        *faults: Fault | None,
        then: Fault | None = None,
        when: Callable[[Request], bool] = is_get,
    ) -> None:
        """From now on requests of this kind meet these faults in order, and then always `then`."""
        turns = iter(faults)
        self.proxy.choose = lambda request: next(turns, then) if when(request) else None
        self.proxy.log.clear()

    async def read(self, start: int = 0) -> bytes:
        return await read_all(await self.storage.stream(self.path, start))

    async def put(self, data: bytes) -> None:
        """Writes the object, past the proxy."""
        if not self.store.url.startswith("http"):
            await asyncio.to_thread(self.store.put, {self.path: data})
            return
        path = self.store.directory / Path(self.path).name
        beside = path.with_name("beside")  # the server may still send what the file holds
        beside.write_bytes(data)
        beside.replace(path)

    async def stored(self) -> bytes:
        return await read_all(await self.direct.stream(self.path), 1 << 20)


@asynccontextmanager
async def through(store: Store, policy: RetryPolicy) -> AsyncIterator[Network]:
    async with FaultProxy(store.endpoint) as proxy:
        options = (
            {**store.options, "endpoint_url": proxy.url} if "endpoint_url" in store.options else {}
        )
        path = f"{store.url if options else proxy.url}/{uuid4().hex}"
        async with Storages(options, retry=policy) as storages, Storages(store.options) as direct:
            yield Network(store, proxy, await storages.at(path), await direct.at(path), path)


async def unfinished(storage: Storage, path: str) -> list[str]:
    """The URLs of unfinished multipart uploads that begin with the path, in S3."""
    bucket, _, key = path.removeprefix("s3://").partition("/")
    client = storage._backend._fs  # type: ignore[attr-defined]
    page = await client._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
    return [f"s3://{bucket}/{upload['Key']}" for upload in page.get("Uploads", [])]
