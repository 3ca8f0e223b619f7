"""S3 as people have it: each option of s3fs and botocore that changes a request, against moto's
server.

For each of them shards are written, read side by side, read in pieces, and gone on with from a
state. The same tests run with awscrt installed, and with the oldest s3fs that we take
(`make test-s3`): there fast paths may fall back, but no request may fail that the client itself
would get answered.
"""

import gc
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError, UnknownServiceError
from botocore.loaders import Loader

from streamrec.storage import Storages, backend
from streamrec.storage.backends.s3 import backend as backend_of_s3
from streamrec.storage.backends.s3.repeated_gets import RepeatedGets
from tests.effort import OTHER_CLIENT, newest_client_only
from tests.runs import in_new_interpreter
from tests.servers.real import Store, nginx
from tests.storage.contract import QUICK_RETRIES, check, note_requests, open_storage, write_object

CUSTOMER = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "0123456789abcdef0123456789abcdef"}
OWNER = "123456789012"
# Moto takes "key:signature" of the old signatures for a scope of the new ones where it has four
# slashes, which is one request in a thousand, and answers 500. With six it never has.
SLASHES = "a/key/of/moto/with/six/slashes"


@pytest.fixture(scope="module")
def proxy(moto_store: Store) -> Iterator[str]:
    with nginx(before=moto_store.endpoint) as before:
        yield before.endpoint


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "requester pays": {"requester_pays": True},
    "customer's key": {"s3_additional_kwargs": CUSTOMER},
    "KMS": {
        "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/aws/s3"}
    },
    "expected owner": {"s3_additional_kwargs": {"ExpectedBucketOwner": OWNER}},
    "session token": {"token": "a-session-token"},
    "path addressing": {"config_kwargs": {"s3": {"addressing_style": "path"}}},
    "signature s3": {"key": SLASHES, "config_kwargs": {"signature_version": "s3"}},
    "signature s3v4": {"config_kwargs": {"signature_version": "s3v4"}},
    "retries": {
        "config_kwargs": {
            "retries": {"max_attempts": 3, "mode": "adaptive"},
            "user_agent_extra": "tests/1",
        }
    },
    "version aware": {
        "version_aware": True,
        "s3_additional_kwargs": {"ACL": "private", "CacheControl": "no-cache"},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_requests_with_any_options_equal_those_of_the_client(
    moto_store: Store, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    fallbacks = check(f"{moto_store.url}/{uuid4().hex}", {**moto_store.options, **CASES[case]})
    if not OTHER_CLIENT:  # with the newest client all fast paths hold
        assert fallbacks == 0, caplog.text


def test_anonymous_requests_read_public_objects(moto_store: Store) -> None:
    """Objects that everybody may read."""
    public = {**moto_store.options, "s3_additional_kwargs": {"ACL": "public-read"}}
    anonymous = {**moto_store.options, "anon": True, "key": None, "secret": None}
    check(f"{moto_store.url}/{uuid4().hex}", anonymous, public)


def test_a_profile_of_the_aws_configuration_gives_the_keys(
    moto_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    keys = f"aws_access_key_id = {moto_store.options['key']}\naws_secret_access_key = x"
    config.write_text(f"[profile ours]\n{keys}\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    options = {**moto_store.options, "profile": "ours", "key": None, "secret": None}
    check(f"{moto_store.url}/{uuid4().hex}", options)


def test_an_endpoint_with_a_path(moto_store: Store, proxy: str) -> None:
    check(
        f"{moto_store.url}/{uuid4().hex}",
        {**moto_store.options, "endpoint_url": f"{proxy}/some/path"},
    )


def test_virtual_hosts_by_a_proxy(moto_store: Store, proxy: str) -> None:
    config = {"s3": {"addressing_style": "virtual"}, "proxies": {"http": proxy}}
    options = {
        **moto_store.options,
        "endpoint_url": "http://s3.streamrec.test",
        "config_kwargs": config,
    }
    check(f"{moto_store.url}/{uuid4().hex}", options)


class PrivateDetailError(Exception):
    """A fast path with a client that has changed."""


async def broken(*_: Any) -> Any:
    raise PrivateDetailError("no such attribute")


@newest_client_only
def test_a_fast_path_that_breaks_is_left_for_good(
    moto_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No request fails; it is said once, and counted."""
    monkeypatch.setattr(RepeatedGets, "_send", broken)
    monkeypatch.setattr(backend, "_logged", set())
    assert check(f"{moto_store.url}/{uuid4().hex}", moto_store.options) == 1
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(["the client's own way" in record.message for record in warnings]) == 1
    assert "PrivateDetailError: no such attribute" in caplog.text


def test_a_body_of_another_kind_is_read_as_the_clients_users_do(
    moto_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where neither the GET can be repeated nor aiohttp's response be had."""
    monkeypatch.setattr(RepeatedGets, "_send", broken)
    monkeypatch.setattr(backend, "_logged", set())
    monkeypatch.setattr(
        "streamrec.storage.backends.s3.backend.aiohttp.ClientResponse", PrivateDetailError
    )
    assert check(f"{moto_store.url}/{uuid4().hex}", moto_store.options) >= 1
    assert "no aiohttp.ClientResponse" in caplog.text


@newest_client_only
async def test_a_refusal_that_the_client_does_not_get_ends_it(
    moto_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even after it has worked, every caller gets the client's answer."""
    names = [f"{moto_store.url}/{uuid4().hex}/{number}" for number in range(4)]
    async with Storages(moto_store.options, retry=QUICK_RETRIES) as storages:
        storage = await storages.at(moto_store.url)
        for name in names:
            await write_object(storage, name, name.encode())
        for name in names[:2]:
            assert await storage.read_range(name, 0, 1000) == name.encode()
        gets: RepeatedGets = storage._backend._repeated_gets  # type: ignore[attr-defined]
        [(bucket, sent)] = gets._proven.items()
        gets._proven[bucket] = type(sent)(
            sent.base, {**sent.headers, "x-amz-copy-source": "?"}, sent.context
        )
        monkeypatch.setattr(RepeatedGets, "_send", refused)
        for name in names:
            assert await storage.read_range(name, 0, 1000) == name.encode()
        assert storages.statistics.snapshot().backends["s3"].fallbacks == 1
        assert not gets.fast_path.is_enabled(bucket)


async def refused(*_: Any) -> Any:
    """What a store says of a request that it does not like."""
    raise ClientError(
        {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}},
        "GetObject",
    )


@newest_client_only
async def test_an_empty_object_says_nothing_of_the_others(moto_store: Store) -> None:
    """Nor before the path is proven, as when many objects are opened at once: a 416 is the answer
    in either way.
    """
    names = [f"{moto_store.url}/{uuid4().hex}/{number}" for number in range(3)]
    async with Storages(moto_store.options, retry=QUICK_RETRIES) as storages:
        storage = await storages.at(moto_store.url)
        for name in names:
            await write_object(storage, name, b"" if name is names[1] else b"x")
        gets: RepeatedGets = storage._backend._repeated_gets  # type: ignore[attr-defined]
        assert await storage.read_range(names[0], 0, 10) == b"x"
        gets._unproven.update(gets._proven)
        gets._proven.clear()
        assert await storage.read_range(names[1], 0, 10) == b""
        gets._unproven.clear()
        assert await storage.read_range(names[2], 0, 10) == b"x"
        assert gets._proven
        assert storages.statistics.snapshot().backends["s3"].fallbacks == 0


async def test_a_handler_of_the_users_sees_each_request_that_is_signed(moto_store: Store) -> None:
    url = f"{moto_store.url}/{uuid4()}"
    async with open_storage(url, moto_store.options) as storage:
        await write_object(storage, url, b"0123456789")
        seen = note_requests(storage, "before-sign.s3.GetObject", lambda request: request.url)
        for start in range(5):
            assert await storage.read_range(url, start, 10) == b"0123456789"[start:]
    assert len(seen) >= 5  # one more if a request was sent again


OPENED = """
import asyncio, json, sys, threading
from pathlib import Path
from streamrec.storage import Storages

opened = []


def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and "botocore/data" in arguments[0]:
        name = Path(arguments[0]).name.partition(".")[0]
        opened.append((name, threading.current_thread() is threading.main_thread()))


async def main():
    async with Storages({"anon": True, "endpoint_url": "http://127.0.0.1:1"}) as storages:
        sys.addaudithook(note)
        await storages.at("s3://bucket/")


asyncio.run(main())
print(json.dumps(opened))
"""


@newest_client_only
def test_large_descriptions_are_parsed_in_a_thread() -> None:
    """A first client does not hold the event loop up for the 60 ms that this takes."""
    opened = json.loads(in_new_interpreter(OPENED))
    large = {"endpoints", "service-2", "endpoint-rule-set-1"}
    assert large <= {name for name, _ in opened}
    assert not large & {name for name, on_the_loop in opened if on_the_loop}


@pytest.mark.parametrize("enabled", [True, False])
def test_parsing_descriptions_does_not_make_the_collector_run(enabled: bool) -> None:
    """They are objects enough for one collection of all that torch has made: 120 ms."""
    begun: list[int] = []

    def note(phase: str, collection: dict[str, int]) -> None:
        if phase == "start":
            begun.append(collection["generation"])

    was_enabled = gc.isenabled()
    if not enabled:
        gc.disable()
    gc.callbacks.append(note)
    try:
        backend_of_s3._load_descriptions.__wrapped__(None)
        assert gc.isenabled() is enabled
        assert (1 in begun) is enabled  # what was parsed is old: no forked worker looks through it
    finally:
        gc.callbacks.pop()
        if was_enabled:
            gc.enable()
    assert len(begun) <= 4  # before, at and after the end of the pause; there were 45


def test_descriptions_are_those_that_botocore_loads(tmp_path: Path) -> None:
    """Also from the user's folders (AWS_DATA_PATH), and what is unknown is botocore's error."""
    own = tmp_path / "s3" / "2006-03-01"
    own.mkdir(parents=True)
    (own / "own-1.json").write_text('{"version": "of the user"}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATA", str(tmp_path))
        loader = backend_of_s3._load_descriptions(f"$DATA{os.pathsep}{tmp_path / 'missing'}")
    for service, kind in (("s3", "service-2"), ("s3", "endpoint-rule-set-1"), ("sts", "service-2")):
        assert loader.load_service_model(service, kind) == Loader().load_service_model(
            service, kind
        )
    assert loader.load_service_model("s3", "own-1") == {"version": "of the user"}
    for service, kind in (("s4", "service-2"), ("sts", "own-1")):
        with pytest.raises(UnknownServiceError, match=service):
            loader.load_service_model(service, kind)
