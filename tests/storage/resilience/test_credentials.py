"""Credentials that expire in the middle of a run: renewed once for all, and never on the event
loop.
"""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.credentials import AioRefreshableCredentials
from aiobotocore.session import AioSession
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError, TransportError

from streamrec import encode_records
from streamrec.errors import PermissionDeniedError
from streamrec.storage import RetryPolicy, Storage, Storages
from streamrec.storage.backends.s3 import credentials
from streamrec.storage.tasks import Renewal
from tests.servers.objectstore import ObjectStore, serve_objects
from tests.storage.contract import open_storage, read_all, wait_until
from tests.storage.faultproxy import Fault, FaultProxy, Request

RECORDS = [os.urandom(100) for _ in range(500)]
DATA = encode_records(RECORDS)
POLICY = RetryPolicy(attempts=3, backoff_base=0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with serve_objects(tmp_path, {f"shard-{index}": DATA for index in range(8)}) as store:
        yield store


class Guard:
    """A proxy's choice: only requests with the current token pass."""

    def __init__(self) -> None:
        self.number = 0
        self.refreshes = 0
        self.refused = 0
        self.threads: set[threading.Thread] = set()
        self.error: Exception | None = None
        self.code = "ExpiredToken"

    @property
    def token(self) -> str:
        return f"token-{self.number}"

    def expire(self) -> None:
        self.number += 1

    def issue(self) -> str:
        self.refreshes += 1
        self.threads.add(threading.current_thread())
        if self.error is not None:
            raise self.error
        return self.token

    def __call__(self, request: Request) -> Fault | None:
        sent = request.headers.get("x-amz-security-token") or request.headers.get(
            "authorization", ""
        )
        if sent.removeprefix("Bearer ") == self.token:
            return None
        self.refused += 1
        google = (
            "authorization" in request.headers and "x-amz-security-token" not in request.headers
        )
        refusal = f"<Error><Code>{self.code}</Code><Message>Refused.</Message></Error>".encode()
        line, body = ("401 Unauthorized", b"{}") if google else ("400 Bad Request", refusal)
        if request.method == "HEAD":
            body = b""
        head = (
            f"HTTP/1.1 {line}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        )
        return Fault(answer=head.encode() + b"Connection: close\r\n\r\n" + body)


class GoogleCredentials(Credentials):
    """Tokens of a Guard, with a stated lifetime."""

    def __init__(self, guard: Guard, lasts: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.guard = guard
        self.lasts = lasts
        self.token = guard.token
        self.expiry = self.until()

    def until(self) -> datetime:
        return datetime.now(UTC).replace(tzinfo=None) + timedelta(seconds=self.lasts)

    def refresh(self, request: object) -> None:
        self.token = self.guard.issue()
        self.expiry = self.until()


def aws_session(guard: Guard, lasts: float) -> AioSession:
    """A session like that of a job that assumes a role; its refresh function blocks."""

    def metadata() -> dict[str, str]:
        until = (datetime.now(UTC) + timedelta(seconds=lasts)).isoformat()
        return {"access_key": "k", "secret_key": "s", "token": guard.issue(), "expiry_time": until}

    session = AioSession()
    until = datetime.now(UTC) + timedelta(seconds=lasts)
    session._credentials = AioRefreshableCredentials("k", "s", guard.token, until, metadata, "test")
    return session


def options(scheme: str, guard: Guard, endpoint: str, lasts: float = 3600) -> dict[str, Any]:
    if scheme == "gs":
        return {"endpoint_url": endpoint, "token": GoogleCredentials(guard, lasts), "project": "p"}
    return {
        "endpoint_url": endpoint,
        "session": aws_session(guard, lasts),
        "client_kwargs": {"region_name": "r"},
    }


both = pytest.mark.parametrize("scheme", ["s3", "gs"])


@pytest.fixture
def guard() -> Guard:
    return Guard()


@asynccontextmanager
async def guarded(
    store: ObjectStore, scheme: str, guard: Guard, lasts: float = 3600, retry: RetryPolicy = POLICY
) -> AsyncIterator[tuple[Storages, Storage]]:
    """What reads through a Guard, with credentials of the Guard that last for so many seconds."""
    async with (
        FaultProxy(store.url, guard) as proxy,
        Storages(options(scheme, guard, proxy.url, lasts), retry=retry) as storages,
    ):
        yield storages, await storages.at(f"{scheme}://bucket")


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@both
async def test_a_refused_token_is_renewed_once_for_all_streams(
    store: ObjectStore, guard: Guard, scheme: str
) -> None:
    async with guarded(store, scheme, guard) as (storages, storage):

        async def one(index: int) -> bytes:
            stream = await storage.stream(f"{scheme}://bucket/shard-{index}")
            return await read_all(stream)

        assert await one(0) == DATA
        assert guard.refreshes == 0
        for _ in range(2):
            guard.expire()
            assert await asyncio.gather(*[one(index) for index in range(8)]) == [DATA] * 8
        counts = storages.statistics.snapshot().backends[scheme]
    assert guard.refreshes == 2
    assert guard.refused <= 16
    assert threading.main_thread() not in guard.threads
    assert counts.failures == 0
    assert not any(counts.retries.values())


@both
async def test_metadata_and_listings_renew_too(
    store: ObjectStore, guard: Guard, scheme: str
) -> None:
    async with guarded(store, scheme, guard) as (_, storage):
        guard.expire()
        assert (await storage.stat(f"{scheme}://bucket/shard-1")).size == len(DATA)
        guard.expire()
        assert len([info async for info in storage.list(f"{scheme}://bucket/")]) == 8
    assert guard.refreshes == 2


@both
async def test_a_token_is_renewed_before_it_expires(
    store: ObjectStore, guard: Guard, scheme: str
) -> None:
    """A token valid for two minutes counts as stale; its successor is not renewed again."""
    async with guarded(store, scheme, guard, lasts=120) as (_, storage):
        for index in range(4):
            assert await read_all(await storage.stream(f"{scheme}://bucket/shard-{index}")) == DATA
    assert guard.refused == 0
    assert guard.refreshes == 1
    assert threading.main_thread() not in guard.threads


@both
async def test_credentials_that_cannot_be_renewed_are_a_refusal(
    store: ObjectStore, guard: Guard, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "FAILED_SECONDS", 0.0)  # renewed at once, not after a second
    async with guarded(store, scheme, guard) as (_, storage):
        guard.expire()
        guard.error = RefreshError("revoked")  # type: ignore[no-untyped-call]
        with pytest.raises(PermissionDeniedError):
            await storage.stream(f"{scheme}://bucket/shard-0")
        assert guard.refreshes == 1
        guard.error = None
        assert await read_all(await storage.stream(f"{scheme}://bucket/shard-0")) == DATA


@both
async def test_a_token_service_that_is_away_for_a_moment(
    store: ObjectStore, guard: Guard, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found before a request is sent: tried again like any other fault."""
    monkeypatch.setattr(credentials, "FAILED_SECONDS", 0.0)  # renewed at once, not after a second
    guard.error = TransportError("unreachable")  # type: ignore[no-untyped-call]
    async with guarded(store, scheme, guard, lasts=-1) as (storages, storage):
        with pytest.raises(PermissionDeniedError, match="3 attempts in a row"):
            await storage.stream(f"{scheme}://bucket/shard-0")
        assert guard.refreshes == 3
        assert storages.statistics.snapshot().backends[scheme].retries["credentials"] == 2


async def test_keys_of_a_file_that_is_rewritten(
    store: ObjectStore, guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"

    def write() -> None:
        keys = (
            f"aws_access_key_id = k\naws_secret_access_key = s\naws_session_token = {guard.token}"
        )
        file.write_text(f"[default]\n{keys}\n")

    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write()
    async with FaultProxy(store.url, guard) as proxy:
        own = {"endpoint_url": proxy.url, "client_kwargs": {"region_name": "r"}}
        async with open_storage("s3://bucket", own, POLICY) as storage:
            assert await read_all(await storage.stream("s3://bucket/shard-0")) == DATA
            guard.expire()
            with pytest.raises(
                PermissionDeniedError, match=r"refused.*ExpiredToken.*in 3 attempts"
            ):
                await storage.stream("s3://bucket/shard-0")
            file.write_text("[default]\naws_access_key_id = ")  # half of it
            reading = asyncio.ensure_future(storage.stream("s3://bucket/shard-0"))
            await wait_until(lambda: guard.refused >= 6)
            write()
            assert await read_all(await reading) == DATA


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch"])
async def test_keys_that_were_rotated_are_waited_for(
    store: ObjectStore, guard: Guard, code: str
) -> None:
    """Credentials that never worked are an error at once."""
    guard.code = code
    async with guarded(store, "s3", guard, retry=replace(POLICY, attempts=None)) as (_, storage):
        guard.error = OSError("no new keys yet")
        guard.expire()
        with pytest.raises(
            PermissionDeniedError, match=f"{code}; .*no new keys yet.* in 1 attempt"
        ):
            await storage.stream("s3://bucket/shard-0")
        guard.number -= 1
        assert await read_all(await storage.stream("s3://bucket/shard-0")) == DATA
        guard.expire()
        reading = asyncio.ensure_future(storage.stream("s3://bucket/shard-1"))
        await wait_until(lambda: guard.refreshes >= 4)
        guard.error = None
        assert await read_all(await reading) == DATA


@pytest.mark.parametrize("written", [datetime.isoformat, format_datetime])
async def test_a_program_that_makes_keys_runs_once_in_their_life(
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: Callable[[datetime], str],
) -> None:
    until = written(datetime.now(UTC) + timedelta(seconds=300))
    keys = {
        "Version": 1,
        "AccessKeyId": "k",
        "SecretAccessKey": "s",
        "SessionToken": "t",
        "Expiration": until,
    }
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    program = f"sh -c 'echo run >> {tmp_path}/runs; cat {tmp_path}/keys.json'"
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {program}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    own = {"endpoint_url": store.url, "client_kwargs": {"region_name": "r"}}
    async with open_storage("s3://bucket", own, POLICY) as storage:
        for index in range(40):
            assert await read_all(await storage.stream(f"s3://bucket/shard-{index % 8}")) == DATA
    assert len((tmp_path / "runs").read_text().splitlines()) <= 2


async def test_keys_that_were_passed_are_all_there_is(store: ObjectStore, guard: Guard) -> None:
    async with FaultProxy(store.url, guard) as proxy:
        own = {"endpoint_url": proxy.url, "key": "k", "secret": "s", "token": "old"}
        async with Storages(own, retry=POLICY) as storages:
            with pytest.raises(PermissionDeniedError, match="ExpiredToken"):
                await (await storages.at("s3://bucket")).stream("s3://bucket/shard-0")
    assert guard.refused == 1


# The single flight


async def test_a_waiter_that_leaves_takes_nothing_with_it() -> None:
    go, calls = asyncio.Event(), 0

    async def renew() -> None:
        nonlocal calls
        calls += 1
        await go.wait()

    renewal = Renewal(renew)
    waiting = [asyncio.ensure_future(renewal.renew_after(0)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*waiting[1:])
    await renewal.renew_after(0)  # others did that
    assert (calls, renewal.generation, waiting[0].cancelled()) == (1, 1, True)


async def test_closing_ends_a_renewal() -> None:
    before = asyncio.all_tasks()
    renewal = Renewal(asyncio.Event().wait)  # type: ignore[arg-type]
    waiting = asyncio.ensure_future(renewal.renew_after(0))
    await asyncio.sleep(0)
    await renewal.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == before
