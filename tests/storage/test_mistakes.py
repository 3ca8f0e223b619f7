"""Typical mistakes with URLs and storage options: each is one error that says what to do."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

import streamrec
from streamrec import RetryPolicy, StreamrecError, TFRecordDataset
from streamrec.errors import MissingExtraError, PermissionDeniedError, StorageError
from streamrec.storage import Storages
from tests.servers.answering import Answer, Asked, answering
from tests.servers.objectstore import serve_objects
from tests.servers.real import Store
from tests.storage.contract import QUICK_RETRIES, open_storage, write_object


class S3Error:
    """A store that answers every request with one error in S3's format."""

    answer: Answer
    requests = 0
    clock_off = timedelta(0)
    options: Mapping[str, Any]

    def __call__(self, asked: Asked) -> Answer:
        self.requests += 1
        date = {"Date": format_datetime(datetime.now(UTC) + self.clock_off, usegmt=True)}
        return self.answer._replace(
            headers={"Content-Type": "application/xml", **date, **self.answer.headers}
        )


@pytest.fixture
def s3_error() -> Iterator[S3Error]:
    error = S3Error()
    with answering(error) as url:
        error.options = {"key": "k", "secret": "s", "endpoint_url": url}
        yield error


def message_of(status: int, body: str, headers: Mapping[str, str] = {}) -> Answer:
    return Answer(
        status, f"<?xml version='1.0' encoding='UTF-8'?>\n<Error>{body}</Error>".encode(), headers
    )


REDIRECT = message_of(
    301,
    "<Code>PermanentRedirect</Code><Message>The bucket you are attempting to access must be "
    "addressed using the "
    "specified "
    "endpoint.</Message><Endpoint>b.s3-eu-west-1.amazonaws.com</Endpoint><Bucket>b</Bucket>",
    {"x-amz-bucket-region": "eu-west-1"},
)
MALFORMED = message_of(
    400,
    "<Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the "
    "region 'us-east-1' "
    "is wrong; expecting 'eu-west-1'</Message><Region>eu-west-1</Region>",
)
SKEWED = message_of(
    403,
    "<Code>RequestTimeTooSkewed</Code><Message>The difference between the request time and the "
    "current time is too "
    "large.</Message><RequestTime>20261124T090000Z</RequestTime><ServerTime>2026-11-24T09:31:07Z</ServerTime>"
    "<MaxAllowedSkewMilliseconds>900000</MaxAllowedSkewMilliseconds>",
)


def test_an_object_in_an_archive(moto_store: Store) -> None:
    client, options = fsspec.filesystem("s3", **moto_store.options), dict(moto_store.options)
    client.call_s3(
        "put_object", Bucket="streamrec", Key="archived", Body=b"x" * 20, StorageClass="GLACIER"
    )
    with pytest.raises(
        StorageError, match=r"the object is in an archive \(InvalidObjectState: .*\): restore it"
    ):
        list(TFRecordDataset("s3://streamrec/archived", storage_options=options))


def test_a_requester_pays_bucket_says_which_option_to_pass() -> None:
    said = {
        "error": {
            "code": 400,
            "message": "Bucket is a requester pays bucket but no user project provided.",
        }
    }
    answer = Answer(400, json.dumps(said).encode(), {"Content-Type": "application/json"})
    paid = pytest.raises(
        PermissionDeniedError, match=r"provided\.\): pass requester_pays=True, and .* project="
    )
    with answering(lambda _: answer) as url, paid:
        list(TFRecordDataset("gs://b/k", storage_options={"endpoint_url": url, "token": "anon"}))


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(
        PermissionDeniedError, match=r"set AWS_ACCESS_KEY_ID and .*, or AWS_PROFILE; or .*-o key="
    ):
        list(TFRecordDataset("s3://b/k", storage_options={"endpoint_url": "http://127.0.0.1:1"}))


def test_a_library_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(
        StorageError, match=r"no client can be made on this machine \(.*lib(jvm|hdfs).*\): install"
    ):
        list(TFRecordDataset("hdfs://127.0.0.1:1/k"))


@pytest.mark.parametrize("answer", [REDIRECT, MALFORMED], ids=lambda answer: answer.status)
async def test_a_bucket_in_another_region_names_it(s3_error: S3Error, answer: Answer) -> None:
    s3_error.answer = answer
    async with open_storage("s3://b/k", s3_error.options) as storage:
        with pytest.raises(
            StorageError, match=r"another region, eu-west-1 .*{'region_name': 'eu-west-1'}"
        ):
            await storage.stream("s3://b/k")
        if answer.headers:  # a HEAD has no body
            with pytest.raises(
                StorageError, match=r"region, eu-west-1 .*{'region_name': 'eu-west-1'}"
            ):
                await storage.stat("s3://b/k")


@pytest.mark.parametrize(
    ("verb", "minutes"), [("stream", 0), ("stat", -20), ("stat", 20), ("stat", 0)]
)
async def test_a_clock_that_is_off(s3_error: S3Error, verb: str, minutes: int) -> None:
    """The body of an answer says it; an answer to a HEAD has none, but its head has the store's
    clock.
    """
    s3_error.answer, s3_error.clock_off = SKEWED, timedelta(minutes=minutes)
    async with Storages(s3_error.options, retry=QUICK_RETRIES) as storages:
        with pytest.raises(PermissionDeniedError) as caught:
            await getattr(await storages.at("s3://b/k"), verb)("s3://b/k")
    known = verb == "stream" or bool(minutes)
    assert (
        re.search(r"this machine's clock is off.*: set it", str(caught.value)) is not None
    ) == known
    assert ("The store's shows 2026-11-24T09:31:07Z" in str(caught.value)) == (verb == "stream")
    assert s3_error.requests == 1


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("root", ["", "file://", "memory:/", "s3://streamrec"])
async def test_a_directory_says_which_pattern_to_write(
    root: str, slash: str, tmp_path: Path, s3_store: Store
) -> None:
    url, options = (
        f"{root}{tmp_path}/shards",
        dict(s3_store.options) if root.startswith("s3") else {},
    )
    async with streamrec.ShardWriter(
        f"{url}/x-{{shard}}.tfrecord", storage_options=options
    ) as writer:
        await writer.write(b"a record")
    with pytest.raises(StorageError) as caught:
        [_ async for _ in streamrec.TFRecordDataset(url + slash, storage_options=options)]
    assert f"this is a directory: write {url}/*.tfrecord* for the shards in it" in str(caught.value)
    advised = streamrec.TFRecordDataset(f"{url}/*.tfrecord*", storage_options=options)
    assert [record async for record in advised] == [b"a record"]


async def test_a_marker_of_a_directory_is_not_a_shard(s3_store: Store) -> None:
    """S3 consoles create them: empty objects whose names end in a slash."""
    url = f"s3://streamrec/{uuid4().hex}/"
    async with open_storage(url, s3_store.options) as storage:
        await write_object(storage, url, b"")
    with pytest.raises(StorageError, match=r"this is a directory: write .*/\*.tfrecord\*"):
        [_ async for _ in streamrec.TFRecordDataset(url, storage_options=s3_store.options)]


async def test_a_bucket_says_which_pattern_to_write(s3_store: Store) -> None:
    with pytest.raises(
        StorageError, match=r"write s3://streamrec/key, or s3://streamrec/\*.tfrecord\*"
    ):
        [
            _
            async for _ in streamrec.TFRecordDataset(
                "s3://streamrec", storage_options=s3_store.options
            )
        ]


@contextmanager
def answer_in_pages(
    scheme: str, status: int = 200, second: bytes = b"", first: bytes | None = None
) -> Iterator[dict[str, Any]]:
    """Options for a store that answers every listing with two pages, of which the first has one
    object.
    """
    gcs = scheme == "gs"
    if first is None:
        first = (
            b'{"items": [{"name": "d/a", "size": "1", "generation": "1"}], "nextPageToken": "t"}'
            if gcs
            else b"<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated><NextContinuationToken>t"  # noqa: E501
            b"</NextContinuationToken><Contents><Key>d/a</Key><Size>1</Size></Contents></ListBucketResult>"
        )
    headers = {"Content-Type": "application/json" if gcs else "application/xml"}

    def page(asked: Asked) -> Answer:
        further = "Token=" in asked.path or "-token=" in asked.path
        return Answer(status, second or first, headers) if further else Answer(200, first, headers)

    with answering(page) as url:
        yield {"endpoint_url": url, **({"token": "anon"} if gcs else {"key": "k", "secret": "s"})}


PAGES = {
    "the first one again": (200, b""),
    "not found": (404, b"{}"),
    "a login page": (200, b"<html>sign in</html>"),
    "no object": (200, b"[]"),
    "deep": (200, b"[" * 100_000),
    "no name": (200, b'{"items": [{}]}'),
    "no key": (200, b"<R><Name>b</Name><Contents><Size>1</Size></Contents></R>"),
    "no token": (200, b"<R><Name>b</Name><IsTruncated>true</IsTruncated></R>"),
    "no size": (200, b"<R><Name>b</Name><Contents><Key>d/b</Key><Size>1e3</Size></Contents></R>"),
}


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("page", PAGES)
def test_a_listing_is_whole_or_an_error(scheme: str, page: str) -> None:
    status, second = PAGES[page]
    retry = RetryPolicy(attempts=2, backoff_base=0.01)
    failed = pytest.raises(
        StorageError,
        match=rf"{scheme}://b/d/: the server (failed|sent something other).*in 2 attempts",
    )
    with answer_in_pages(scheme, status, second) as options, failed:
        streamrec.matching_files(f"{scheme}://b/d/*", storage_options=options, retry=retry)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_a_listing_of_several_pages_is_whole(tmp_path: Path, scheme: str) -> None:
    keys = [f"{number:05}" for number in range(2_050)]
    with serve_objects(tmp_path, dict.fromkeys(keys, b"")) as store:
        async with open_storage(f"{scheme}://bucket/", store.options(scheme)) as storage:
            found = [info.path async for info in storage.list(f"{scheme}://bucket/")]
    assert found == [f"{scheme}://bucket/{key}" for key in keys]


async def test_a_listing_has_no_keys_outside_its_prefix() -> None:
    keys = ["d/a", "e/a", "d", "/d/b"]
    items = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    answers = {
        "s3": f"<R><Name>b</Name>{items}</R>",
        "gs": json.dumps(
            {"items": [{"name": key, "size": "1", "generation": "1"} for key in keys]}
        ),
    }
    for scheme, answer in answers.items():
        with answer_in_pages(scheme, first=answer.encode()) as options:
            async with Storages(options) as storages:
                found = [
                    info.path
                    async for info in (await storages.at(f"{scheme}://b/")).list(f"{scheme}://b/d/")
                ]
        assert found == [f"{scheme}://b/d/a"]


WRONG_NAMES: list[tuple[str, dict[str, Any], str]] = [
    (
        "s3://b/k",
        {"acces_key": "x"},
        "has 'acces_key', which the client does not know: did you mean 'key'?",
    ),
    ("s3://b/k", {"endpoint_ur": "x"}, "did you mean 'endpoint_url'?"),
    (
        "s3://b/k",
        {"client_kwargs": {"endpont_url": "http://h"}},
        "client_kwargs has 'endpont_url', which the client",
    ),
    (
        "s3://b/k",
        {"config_kwargs": {"conect_timeout": 1}},
        "config_kwargs has 'conect_timeout', which the client",
    ),
    (
        "s3://b/k",
        {"endpoint_url": "127.0.0.1:9000"},
        "endpoint_url has no scheme: write 'http://127.0.0.1",
    ),
    (
        "s3://b/k",
        {"client_kwargs": {"endpoint_url": "h:1"}},
        "client_kwargs['endpoint_url'] has no scheme",
    ),
    (
        "s3://b/k",
        {"aws_access_key_id": "k"},
        "'aws_access_key_id', which the client does not know: write key=",
    ),
    ("s3://b/k", {"region": "eu"}, "does not know: write client_kwargs={'region_name': ...}"),
    ("s3://b/k", {"region_name": "eu"}, "does not know: write client_kwargs={'region_name': ...}"),
    (
        "s3://b/k",
        {"secret_key": "s"},
        "'secret_key', which the client does not know: write secret=",
    ),
    ("s3://b/k", {"profile_name": "p"}, "does not know: write profile="),
    ("s3://b/k", {"zzz": 1}, "'zzz', which the client does not know; it knows anon, "),
    (
        "gs://b/k",
        {"credentials": "x.json"},
        "'credentials', which the client does not know: write token=",
    ),
    (
        "gs://b/k",
        {"tokn": "anon"},
        "storage_options has 'tokn', which the client does not know: did you mean 'token'?",
    ),
    (
        "gs://b/k",
        {"session_kwargs": {"trust_en": True}},
        "session_kwargs has 'trust_en', which the client does not",
    ),
    ("gs://b/k", {"token": "anon", "endpoint_url": "h:1"}, "endpoint_url has no scheme"),
    (
        "http://127.0.0.1:1/k",
        {"headrs": {}},
        "storage_options has 'headrs', which the client does not know: did you",
    ),
    (
        "http://127.0.0.1:1/k",
        {"client_kwargs": {"headrs": {}}},
        "client_kwargs has 'headrs', which the client does",
    ),
    ("s4://b/k", {}, "no filesystem is known for s4://: did you mean 's3'?"),
]


@pytest.mark.parametrize(("url", "options", "message"), WRONG_NAMES)
def test_wrong_names(url: str, options: dict[str, Any], message: str) -> None:
    """For a dataset, and for a writer."""
    with pytest.raises(StorageError, match=re.escape(message)) as caught:
        list(TFRecordDataset(url, storage_options=options))
    assert caught.value.path == url
    assert len(str(caught.value)) < 320
    with (
        pytest.raises(StorageError, match=re.escape(message)),
        streamrec.TFRecordWriter(url, storage_options=options) as w,
    ):
        w.write(b"x")


def test_a_name_that_no_bucket_can_have() -> None:
    with pytest.raises(StorageError, match="the request cannot be made"):
        list(TFRecordDataset("s3://A_B!/key", storage_options={"anon": True}))


def test_a_profile_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile ours]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(
        StorageError,
        match=r"profile \(nope\) could not be found; profiles in the AWS .* files: ours",
    ):
        list(TFRecordDataset("s3://b/k", storage_options={"profile": "nope"}))


def test_a_missing_package_of_fsspec_is_named_with_its_install_command() -> None:
    with pytest.raises(
        MissingExtraError, match="dropbox:// URLs need a package: pip install dropboxdrivefs"
    ):
        list(TFRecordDataset("dropbox://datasets/x"))


def test_no_groups_of_exceptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any error in one of several tasks."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(streamrec.encode_records([b"x"]))
    with pytest.raises(StorageError, match="acces_key"):
        streamrec.write_manifest_sync(
            ["s3://b/k", "s3://b/l"], f"{tmp_path}/m.json", storage_options={"acces_key": "x"}
        )

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("of another kind")

    monkeypatch.setattr("streamrec.shards.manifest_files.scan", fails)
    with pytest.raises(RuntimeError, match="of another kind"):
        streamrec.write_manifest_sync([f"{tmp_path}/?"], f"{tmp_path}/m.json")


def test_a_client_that_cannot_be_made_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises."""

    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("deep inside")

    monkeypatch.setattr("streamrec.storage.backends.s3.backend.S3FileSystem.set_session", fails)
    with pytest.raises(
        StreamrecError, match=r"no client can be made from these storage options \(KeyError"
    ):
        list(TFRecordDataset("s3://b/k"))
