"""Secrets in URLs and options: no error, traceback, log, state or page shows them, whatever
fails.
"""

import asyncio
import json
import logging
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

import streamrec
from streamrec import (
    Dataset,
    NotFoundError,
    RetryPolicy,
    StorageError,
    TFRecordDataset,
    TFRecordWriter,
    html,
)
from streamrec.errors import ManifestError
from streamrec.opentelemetry import observe
from streamrec.prometheus import StatisticsCollector
from streamrec.storage import Storages
from tests.servers.answering import Answer, answering

SECRET = "C4n4ry-pA55"
QUICK = RetryPolicy(attempts=1, connect_timeout=5)

QUERIES = [
    *(
        f"?{name}={SECRET}"
        for name in ("apikey", "key", "password", "code", "jwt", "client_secret", "X-Amz-Signature")
    ),
    f"?%6bey={SECRET}",
    f"?part=1&key={SECRET}&key=2{SECRET}",
    f"?{SECRET}",
    f"?part=1&{SECRET}",
    f"?x=a'{SECRET}",
    f"?x=a b{SECRET}",
    f"?x=a?{SECRET}",
    f"?versionId=1;tok={SECRET}",
    f"?x={SECRET})",
    f"#{SECRET}",
    f"#access_token={SECRET}",
    f";sid={SECRET}",
    f"/x;{SECRET}/y",
]
USERS = [
    f"{SECRET}@",
    f"{SECRET}:@",
    f"user:{SECRET}@",
    f"user:a/{SECRET}@",
    f"user:a@{SECRET}@",
    f"{SECRET}:x-oauth@",
]


def texts_shown(error: BaseException) -> str:
    """All that is shown of an error."""
    return "\n".join(
        [
            str(error),
            repr(error),
            *traceback.format_exception(error),
            *map(str, getattr(error, "__notes__", ())),
        ]
    )


def error_of(fail: Callable[[], Any]) -> Exception:
    """What it raises; an error of no words where it does not."""
    try:
        fail()
    except Exception as error:
        return error
    return Exception()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with answering(lambda asked: Answer(404)) as url:
        yield url.removeprefix("http://")


@pytest.fixture
def urls(server: str) -> list[str]:
    """URLs with secrets of a server that has none of them, and of one that is not there."""
    urls = [f"http://{host}/a{query}" for query in QUERIES for host in (server, "127.0.0.1:1")]
    urls += [f"http://{user}{host}/a" for user in USERS for host in (server, "127.0.0.1:1")]
    urls += [
        f"http://user:{SECRET}@127.0.0.1:99999999/",
        f"http://{SECRET}@[::1/a",
        f"https://{SECRET}@{server}/a",
    ]
    urls += [
        f"simplecache::http://{server}/a?key={SECRET}",
        f"zip://a::http://{SECRET}@{server}/a.zip?part=1",
    ]
    urls += [
        f"s3://{SECRET}:secret@bucket/a",
        f"nothing://user:{SECRET}@host/a",
        f"ftp://{SECRET}@127.0.0.1:1/a",
    ]
    urls += [f"memory://user:{SECRET}@host/a", f"sftp://user:{SECRET}@127.0.0.1:1/a"]
    return urls


def failures(url: str) -> Iterator[Callable[[], Any]]:
    """What fails with this URL."""
    yield lambda: list(TFRecordDataset(url, retry=QUICK))
    if "apikey" not in url and "user" not in url:  # of most, one way is enough
        return
    yield lambda: list(TFRecordDataset([url, url], retry=QUICK).shuffle(2).batch(2))
    yield lambda: list(TFRecordDataset(f"{url}*.tfrecord", retry=QUICK))
    yield lambda: TFRecordWriter(url, retry=QUICK)
    yield lambda: asyncio.run(streamrec.verify(f"{url}.json", retry=QUICK))
    yield lambda: asyncio.run(streamrec.RecordSource.open(url, retry=QUICK))


def test_no_error_and_no_log_shows_a_secret(
    urls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamrec")
    for url in urls:
        for fail in failures(url):
            error = error_of(fail)
            assert SECRET not in texts_shown(error), url
            assert SECRET not in texts_shown(pickle.loads(pickle.dumps(error))), url
    assert SECRET not in caplog.text


def test_no_repr_state_metric_or_trace_shows_a_secret(
    urls: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in (
        url for url in urls if not ("http://" in url and "127.0.0.1:1/" in url)
    ):  # that of a server will do
        dataset = TFRecordDataset(url, retry=QUICK).shuffle(3).batch(2)
        registry, reader = CollectorRegistry(), InMemoryMetricReader()
        with dataset.iterate(trace=tmp_path / "trace", progress=True) as run:
            error_of(partial(list, run))
            state, stats = run.state_dict(), run.stats()
            registry.register(StatisticsCollector(run.stats))
            observe(run.stats, MeterProvider([reader]).get_meter("streamrec"))
            metrics = generate_latest(registry).decode() + str(reader.get_metrics_data())
        several = TFRecordDataset([url, *(f"{url}{number}" for number in range(9))])
        told: list[Any] = [
            dataset,
            several,
            Dataset.list_files(url),
            dataset.cache(url),
            state,
            stats,
            dataset.chain,
        ]
        told += [dataset.fingerprint(), several.fingerprint(), json.dumps(state)]
        told += [
            streamrec.shards.ShardInfo(url, 1, 2, 3, 4),
            str(stats),
            stats._repr_html_(),
            dataset._repr_html_(),
        ]
        told += [streamrec.tfrecord.Loss(url, 1, 2, "broken", 3), metrics, *capsys.readouterr()]
        told.append((tmp_path / "trace").read_text())
        for text in (show(each) for each in told for show in (repr, str)):
            assert SECRET not in text, (url, text[max(0, text.find(SECRET) - 200) :][:300])


def test_states_tell_urls_apart_that_differ_in_what_is_masked() -> None:
    state = TFRecordDataset("http://127.0.0.1:1/a?object=1").iterate().state_dict()
    with pytest.raises(streamrec.errors.PositionMismatchError):
        TFRecordDataset("http://127.0.0.1:1/a?object=2").iterate(state)
    signed = TFRecordDataset("http://127.0.0.1:1/a?object=1&sig=1").iterate().state_dict()
    TFRecordDataset("http://127.0.0.1:1/a?object=1&sig=2").iterate(signed).close()


OPTIONS: list[Any] = [
    f"key={SECRET}",
    [("secret", SECRET)],
    {"secret", SECRET},
    [f"{'x' * 50}{SECRET}"],
    {"nothing": SECRET},
    {"secret": {"a": SECRET}, "key": SECRET, "anon": "no"},
    {"client_kwargs": {"aws_secret_access_key": SECRET, "wrong": 1}},
    {"client_kwargs": SECRET},
    {"config_kwargs": {"proxies": f"http://user:{SECRET}@127.0.0.1:1"}},
    {"endpoint_url": f"user:{SECRET}@127.0.0.1"},
    {"endpoint_url": f"http://user:{SECRET}@127.0.0.1:1", "key": "k", "secret": SECRET},
    {"endpoint_url": f"http://127.0.0.1:1/?key={SECRET}", "key": "k", "secret": SECRET},
    {"token": SECRET},
    {"token": {"private_key": SECRET, "client_email": "a"}},
    {"headers": {"Authorization": f"Bearer {SECRET}"}},
    {"headers": f"Authorization: Bearer {SECRET}"},
    {
        "connection_string": f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={SECRET};EndpointSuffix=y"  # noqa: E501
    },
    {"account_key": SECRET, "account_name": 5},
    {"password": SECRET, "username": "x", "port": SECRET},
]


@pytest.mark.parametrize("options", OPTIONS, ids=range(len(OPTIONS)))
def test_no_error_shows_an_option(options: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamrec")
    urls = ["s3://bucket/a", "gs://bucket/a", "http://127.0.0.1:1/a", "abfs://c@account.example/a"]
    for url in [
        *urls,
        "ftp://127.0.0.1:1/a",
        "sftp://127.0.0.1:1/a",
        "zip://a::/nowhere",
        "github://a:b@c/d",
    ]:
        error = error_of(
            lambda url=url: list(TFRecordDataset(url, storage_options=options, retry=QUICK))
        )
        assert SECRET not in texts_shown(error), url
    for fail in (
        lambda: TFRecordDataset("x", filesystem=options),
        lambda: Storages(filesystem=options),
    ):
        with pytest.raises(TypeError) as caught:
            fail()
        assert SECRET not in texts_shown(caught.value)
    assert SECRET not in caplog.text


def test_the_rest_of_a_url_is_shown() -> None:
    for url in (
        "sftp://user:{}@host:22/a.tfrecord",
        "zip://a.tfrecord::sftp://user:{}@host:22/a.zip",
    ):
        secret, shown = url.format("se:cr@et"), url.format("***")
        for error in (NotFoundError("it failed", secret), ManifestError(f"it failed ({secret})")):
            for same in (error, pickle.loads(pickle.dumps(error))):
                for text in (str(same), repr(same)):
                    assert shown in text
                    assert not re.search("se:cr|et@", text)


def test_harmless_names_are_shown() -> None:
    url = "https://host/a?versionId=3&partNumber=2&X-Amz-Expires=60&generation=7"
    assert str(StorageError("it failed", url)) == f"{url}: it failed"
    for name in (
        "s3://bucket/train-????.tfrecord",
        "/data/year=2020&month=1/x",
        "abfs://container@account.dfs/x",
    ):
        assert str(StorageError("it failed", name)) == f"{name}: it failed"


def test_texts_of_clients() -> None:
    for said in (
        f"Authorization: Bearer {SECRET}",
        f"{{'Authorization': 'Basic {SECRET}'}}",
        f"request with x-amz-security-token={SECRET}",
        f'Could not connect to the endpoint URL: "https://h/a?X-Amz-Credential={SECRET}&x=1"',
        f"AccountName=a;AccountKey={SECRET}==;EndpointSuffix=b",
        f"got an unexpected keyword: secret='{SECRET}', x",
        f"<Error><Resource>https://h/?a={SECRET}</Resource></Error>",
        f"see https://h/a?k={SECRET}, and https://{SECRET}@h",
    ):
        assert SECRET not in str(StorageError(said)) + html.text(said), said
