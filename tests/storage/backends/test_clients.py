"""Clients are shared by all that one event loop reads and writes with the same options, and closed some time after."""

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

import streamrec
from streamrec import TFRecordDataset, TFRecordWriter
from streamrec.storage import Storages, clients
from streamrec.storage.backends import s3
from streamrec.storage.clients import key_of
from tests.servers.real import Store


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The clients of S3 that are made."""
    kept: list[Any] = []
    connect = s3.connect

    async def counted(*args: Any) -> Any:
        kept.append(await connect(*args))
        return kept[-1]

    monkeypatch.setattr(s3, "connect", counted)
    return kept


async def read(url: str, options: Any) -> list[bytes]:
    async with streamrec.open_shard(url, storage_options=options) as shard:
        return [record async for record in shard]


def written(store: Store) -> tuple[str, dict[str, Any]]:
    """A small object, and options that nobody else has."""
    options = {**store.options, "username": None, "config_kwargs": {"user_agent_extra": uuid4().hex}}
    url = f"{store.url}/{uuid4().hex}"
    with TFRecordWriter(url, storage_options=dict(store.options)) as writer:
        writer.write(b"one")
    return url, options


def test_a_service_has_one_client(s3_store: Store, made: list[Any]) -> None:
    url, options = written(s3_store)
    made.clear()

    async def serve() -> None:
        for _ in range(3):
            assert await read(url, dict(options)) == [b"one"]
        several = await asyncio.gather(*(read(url, dict(options)) for _ in range(1000)))
        assert several == [[b"one"]] * 1000
        async with streamrec.ShardWriter(f"{url}-more", storage_options=options) as writer:
            await writer.write(b"two")
        assert [record async for record in TFRecordDataset(f"{url}*", storage_options=options)] == [b"one", b"two"]
        assert len(made) == 1

    asyncio.run(serve())
    assert is_closed(made[0])


def test_the_bridge_has_one_too(s3_store: Store, made: list[Any]) -> None:
    url, options = written(s3_store)
    made.clear()
    for _ in range(3):
        assert list(TFRecordDataset(url, storage_options=options)) == [b"one"]
        with TFRecordWriter(f"{url}-x", storage_options=options) as writer:
            writer.write(b"two")
    assert len(made) == 1


def test_other_options_other_clients(s3_store: Store, made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = written(s3_store)
    made.clear()

    async def several() -> None:
        await read(url, options)
        await read(url, {**options, "use_ssl": False})
        monkeypatch.setenv("AWS_REGION", "eu-west-3")
        await read(url, options)
        assert len(made) == 3

    asyncio.run(several())


def test_loops_have_clients_of_their_own(s3_store: Store, made: list[Any]) -> None:
    url, options = written(s3_store)
    made.clear()
    for _ in range(2):
        asyncio.run(read(url, options))
    threads = [threading.Thread(target=asyncio.run, args=(read(url, options),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert all(is_closed(backend) for backend in made)
    gc.collect()


def is_closed(backend: Any) -> bool:
    sessions = backend._fs._s3._endpoint.http_session._sessions
    return not sessions


def test_a_client_that_nobody_uses_is_closed(s3_store: Store, made: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while somebody uses it, and not if somebody comes again in time."""
    url, options = written(s3_store)
    made.clear()
    later: list[Callable[[], Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def noted(delay: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if delay == clients.IDLE:
                later.append(partial(callback, *args))
            return call_later(delay, callback, *args, **kwargs)

        monkeypatch.setattr(loop, "call_later", noted)
        async with Storages(options) as storages:
            await storages.at(url)
            await read(url, options)
            assert later == []
        [idle] = later
        await read(url, options)
        assert len(made) == 1
        idle()  # the timer of the time before, which was cancelled: somebody uses it again, or did
        await read(url, options)
        later[-1]()
        closing = [task for task in asyncio.all_tasks() if task.get_name() == "streamrec closes a client"]
        await asyncio.gather(*closing)
        assert any(is_closed(backend) for backend in made)
        await read(url, options)

    asyncio.run(main())
    assert len(made) >= 2


async def test_a_client_that_cannot_be_made_is_not_kept(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = written(s3_store)
    connect, fails = s3.connect, [True]

    async def sometimes(*args: Any) -> Any:
        if fails.pop() if fails else False:
            raise OSError("not today")
        return await connect(*args)

    monkeypatch.setattr(s3, "connect", sometimes)
    with pytest.raises(streamrec.StorageError, match="not today"):
        await read(url, options)
    assert await read(url, options) == [b"one"]


def test_keys_tell_options_apart() -> None:
    class Credentials:
        pass

    one, other = Credentials(), Credentials()
    assert key_of({"token": one})[0] != key_of({"token": other})[0]
    assert key_of({"token": one, "a": [1, {"b": None}]})[0] == key_of({"a": [1, {"b": None}], "token": one})[0]
    assert key_of({"a": 1})[0] != key_of({"a": "1"})[0]
    assert key_of({"token": one})[1] == (one,)
