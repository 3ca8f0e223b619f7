"""How each client reads one object, for `benchmarks.faults`: as it comes, in its default settings
but for POLICY.

    python -m benchmarks.faultclients CLIENT \
        '{"warm": ..., "store": "s3", "url": ..., "key": ..., "start": 0}'

First it reads from "warm", a store without faults, so that what is imported is no part of the time.
Then it prints "go", and then what came of it, as JSON: the hash of the bytes, or the error.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

Read = Callable[[], bytes]

POLICY: Final[dict[str, Any]] = {"patience": 20.0, "first_contact": 10.0}
"""How long streamrec waits, in place of five minutes and half a minute."""


def streamrec(store: str, url: str, key: str, start: int) -> Read:
    """Records, which are framed again; or bytes, where reading begins in the middle."""
    from streamrec import RetryPolicy, TFRecordDataset, encode_records
    from streamrec.storage import Storages

    policy = RetryPolicy(**POLICY)
    options = {"endpoint_url": url, **({"anon": True} if store == "s3" else {"token": "anon"})}
    path = f"{'s3' if store == 's3' else 'gs'}://{key}"

    async def read_bytes() -> bytes:
        async with Storages(options, retry=policy) as storages:
            stream = await (await storages.at(path)).stream(path, start)
            data, buffer = bytearray(), memoryview(bytearray(1 << 20))
            while count := await stream.readinto(buffer):
                data += buffer[:count]
            await stream.aclose()
        return bytes(data)

    def read() -> bytes:
        if start:
            return asyncio.run(read_bytes())
        return encode_records(TFRecordDataset(path, storage_options=options, retry=policy))

    return read


def s3fs(store: str, url: str, key: str, start: int) -> Read:
    """`fs.open(...).read()`."""
    from s3fs import S3FileSystem

    return _by_fsspec(S3FileSystem(endpoint_url=url, anon=True), key, start)


def gcsfs(store: str, url: str, key: str, start: int) -> Read:
    """`fs.open(...).read()`."""
    from gcsfs import GCSFileSystem

    return _by_fsspec(GCSFileSystem(endpoint_url=url, token="anon"), key, start)


def obstore(store: str, url: str, key: str, start: int) -> Read:
    """`obstore.get(...)`, or `get_range` where reading begins in the middle."""
    import obstore as obs
    from obstore.store import GCSStore, S3Store

    bucket, _, name = key.partition("/")
    client: Any = {"client_options": {"allow_http": True}, "skip_signature": True}
    place = (
        S3Store(bucket, endpoint=url, region="us-east-1", **client)
        if store == "s3"
        else GCSStore(bucket, base_url=url, **client)
    )
    if start:
        return lambda: bytes(obs.get_range(place, name, start=start, end=1 << 40))
    return lambda: bytes(obs.get(place, name).bytes())


def _by_fsspec(fs: Any, key: str, start: int) -> Read:
    def read() -> bytes:
        with fs.open(key, "rb") as file:
            file.seek(start)
            data: bytes = file.read()
            return data

    return read


CLIENTS: Mapping[str, Callable[..., Read]] = {
    "streamrec": streamrec,
    "s3fs": s3fs,
    "gcsfs": gcsfs,
    "obstore": obstore,
}


def main() -> None:
    """Reads once."""
    make, task = CLIENTS[sys.argv[1]], json.loads(sys.argv[2])
    make(store=task["store"], url=task.pop("warm"), key="bucket/warm", start=task["start"])()
    read = make(**task)
    print("go", flush=True)
    began = time.monotonic()
    told: dict[str, Any]
    try:
        told = {"hash": hashlib.sha256(read()).hexdigest()}
    except Exception as error:
        told = {"error": type(error).__name__, "said": str(error)[:300]}
    print(json.dumps({**told, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
