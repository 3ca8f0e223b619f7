"""Only the right answer is an object's bytes; anything else is an error that says what arrived."""

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import StreamrecError, TFRecordDataset, encode_records
from streamrec.errors import ManifestError, ObjectChangedError, StorageError
from streamrec.storage import Storages
from streamrec.storage.arrivals import describe_answer, describe_page
from streamrec.storage.faults import (
    TransientError,
    check_past_the_end,
    http_body_range,
    is_same_time,
)
from tests.runs import until_error
from tests.servers.answering import Answer, Asked, answering
from tests.servers.small_store import IMPATIENT, LISTING, MODIFIED, SCHEMES, SmallStore, small_store

FIRST_RECORD_BYTES = len(encode_records([b"0-0000"]))
NAMES = ("s-0", "s-1", "s-2")


def shard(number: int, count: int = 100) -> bytes:
    return encode_records([b"%d-%04d" % (number, row) for row in range(count)])


@pytest.fixture
def store() -> Iterator[SmallStore]:
    with small_store({name: shard(number) for number, name in enumerate(NAMES)}) as running:
        yield running


def dataset(
    store: SmallStore, scheme: str, names: str = "s-{0..2}", **more: Any
) -> streamrec.Dataset[bytes]:
    return TFRecordDataset(
        store.url(scheme, names),
        storage_options=store.options(scheme),
        retry=IMPATIENT,
        **more,
    )


def answer_only(store: SmallStore, kind: str, name: str, answer: Answer) -> None:
    """Answers requests of one kind for one object with this."""

    def replace(asked: Asked, right: Answer) -> Answer:
        return answer if store.kind(asked) == kind and name in asked.path else right

    store.replace = replace


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("status", [201, 202, 203, 204, 205, 226])
@pytest.mark.parametrize("reads", [1, 3])
def test_an_answer_without_the_bytes_is_not_an_empty_shard(
    store: SmallStore, scheme: str, status: int, reads: int
) -> None:
    answer_only(store, "read", "s-1", Answer(status))
    found, _ = until_error(
        dataset(store, scheme),
        StorageError,
        rf"s-1.*\(a {status} \(.* where (a 200 or a 206|the store's)",
    )
    assert found == list(dataset(store, scheme, "s-0"))
    with pytest.raises(StorageError, match="s-1"):
        list(dataset(store, scheme, num_parallel_reads=reads, on_error="skip_shard"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_redirect_to_nowhere_is_an_error(store: SmallStore, scheme: str) -> None:
    answer_only(store, "read", "s-1", Answer(302))
    with pytest.raises(StorageError, match="s-1"):
        list(dataset(store, scheme))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_passing_204_costs_nothing_but_time(store: SmallStore, scheme: str) -> None:
    left = [Answer(204), Answer(202)]

    def replace(asked: Asked, right: Answer) -> Answer:
        return left.pop() if left and store.kind(asked) == "read" else right

    store.replace = replace
    assert len(list(dataset(store, scheme))) == 300


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "content_range", ["", "bytes 0-99/*", "bytes 0-9/10", "bytes 1-2199/2200", "bytes 0-1099/2200"]
)
def test_a_206_with_another_range_is_an_error(
    store: SmallStore, scheme: str, content_range: str
) -> None:
    data = store.objects["s-1"]
    last = content_range.partition("-")[2].partition("/")[0]
    body = data[: int(last) + 1] if last else data
    headers = {"Content-Range": content_range, "X-Goog-Generation": "1"}
    answer_only(store, "read", "s-1", Answer(206, body, headers))
    with pytest.raises(StreamrecError, match="s-1"):
        list(dataset(store, scheme, "s-1"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_206_may_leave_the_size_to_head(store: SmallStore, scheme: str) -> None:
    def replace(asked: Asked, right: Answer) -> Answer:
        if right.status != 206:
            return right
        span, _, _ = right.headers["Content-Range"].partition("/")
        return right._replace(headers={**right.headers, "Content-Range": f"{span}/*"})

    store.replace = replace
    assert len(list(dataset(store, scheme))) == 300


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("proof", ["", "bytes */2200", "bytes */0"])
def test_a_416_must_prove_that_the_object_ends_there(
    store: SmallStore, scheme: str, proof: str
) -> None:
    """HEAD says that it does not end there."""
    answer_only(store, "read", "s-1", Answer(416, b"", {"Content-Range": proof} if proof else {}))
    with pytest.raises(StorageError, match=r"s-1.*a 416 for byte 0"):
        list(dataset(store, scheme))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_empty_object_is_an_empty_shard(store: SmallStore, scheme: str) -> None:
    store.objects["s-1"] = b""
    assert len(list(dataset(store, scheme))) == 200


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("status", [202, 204])
def test_a_strange_answer_to_a_question_about_an_object_is_an_error(
    store: SmallStore, scheme: str, status: int
) -> None:
    answer_only(store, "stat", "s-1", Answer(status))
    with pytest.raises(StorageError, match=rf"s-1.*\(a {status} "):
        list(dataset(store, scheme, num_parallel_reads=2).distribute(0, 2))


@pytest.mark.parametrize("scheme", LISTING)
@pytest.mark.parametrize("status", [202, 204])
def test_a_strange_answer_is_not_an_empty_listing(
    store: SmallStore, scheme: str, status: int
) -> None:
    store.replace = lambda asked, right: Answer(status)
    with pytest.raises(StorageError, match=rf"a {status} "):
        streamrec.matching_files(
            store.url(scheme, "s-*"), storage_options=store.options(scheme), retry=IMPATIENT
        )


@pytest.mark.parametrize("status", [202, 206])
def test_a_strange_answer_to_a_change_is_not_a_success(store: SmallStore, status: int) -> None:
    answer_only(store, "PUT", "new", Answer(status))
    with pytest.raises(StorageError, match=rf"new.*\(a {status} "):  # noqa: SIM117
        with streamrec.TFRecordWriter(
            store.url("s3", "new"), storage_options=store.options("s3"), retry=IMPATIENT
        ) as writer:
            writer.write(b"record")


@pytest.mark.parametrize("scheme", LISTING)
async def test_a_strange_answer_to_a_removal_is_not_a_success(
    store: SmallStore, scheme: str
) -> None:
    answer_only(store, "DELETE", "s-1", Answer(202))
    async with Storages(store.options(scheme), retry=IMPATIENT) as storages:
        storage = await storages.at(store.url(scheme, "s-1"))
        with pytest.raises(StorageError, match=r"s-1.*\(a 202 "):
            await storage.remove(store.url(scheme, "s-1"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_manifest_an_index_and_a_report_need_the_bytes(
    store: SmallStore, scheme: str, tmp_path: Path
) -> None:
    answer_only(store, "read", "s-1", Answer(204))
    names, how = store.url(scheme, "s-{0..2}"), store.options(scheme)
    for call in (streamrec.write_manifest_sync, streamrec.write_index_sync):
        with pytest.raises(StorageError, match="s-1"):
            call(names, f"{tmp_path}/x", storage_options=how, retry=IMPATIENT)
    with pytest.raises(StorageError, match="s-1"):
        streamrec.verify_sync(names, storage_options=how, retry=IMPATIENT)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
@pytest.mark.parametrize("status", [202, 204])
@pytest.mark.parametrize("everything", [False, True])
def test_a_cache_of_a_web_server_is_not_filled_with_answers_without_bytes(
    store: SmallStore, cache: str, status: int, everything: bool, tmp_path: Path
) -> None:
    """Neither if only GET has that answer, nor if HEAD has it, too."""
    store.replace = lambda asked, right: (
        Answer(status) if "s-1" in asked.path and (everything or asked.method == "GET") else right
    )
    with pytest.raises(StorageError, match="s-1"):
        list(
            TFRecordDataset(
                f"{cache}::{store.url('http', 's-{0..2}')}",
                storage_options={cache: {"cache_storage": str(tmp_path)}},
                retry=IMPATIENT,
            )
        )


def test_a_cache_refuses_answers_without_bytes_when_the_process_used_web_servers_before(
    store: SmallStore, tmp_path: Path
) -> None:
    """Fsspec shares one filesystem of web servers, with its session, with the whole process."""
    shared = fsspec.filesystem("http")
    assert shared.cat_file(store.url("http", "s-0")) == shard(0)
    test_a_cache_of_a_web_server_is_not_filled_with_answers_without_bytes(
        store, "simplecache", 204, True, tmp_path
    )
    answer_only(store, "read", "s-1", Answer(204))
    assert shared.cat_file(store.url("http", "s-1")) == b"", "its own user has it as it was"


@pytest.mark.parametrize("status", [202, 204])
def test_azure_answers_without_bytes(status: int) -> None:
    """Its client refuses them."""
    data = shard(0)

    def blob(asked: Asked) -> Answer:
        headers = {"ETag": '"x"', "Last-Modified": MODIFIED, "x-ms-blob-type": "BlockBlob"}
        return Answer(200, data, headers) if asked.method == "HEAD" else Answer(status)

    with answering(blob) as url:
        account = (
            f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;BlobEndpoint={url}/a"
        )
        records = TFRecordDataset(
            "az://c/s-0", storage_options={"connection_string": account}, retry=IMPATIENT
        )
        with pytest.raises(StorageError, match="s-0"):
            list(records)


# A size that is known.


def without_length(right: Answer, end: int | None) -> Answer:
    """A whole answer of HTTP/1.0, whose body ends at `end`."""
    headers = {name: value for name, value in right.headers.items() if name == "ETag"}
    return Answer(200, right.body[:end], {**headers, "Content-Length": ""})


def answer_without_length(store: SmallStore, end: int | None) -> None:
    """All GETs of objects are answered whole and without a length; that of s-1 ends early."""

    def replace(asked: Asked, right: Answer) -> Answer:
        if store.kind(asked) != "read" or right.status not in (200, 206):
            return right
        name = asked.path.partition("?")[0].rpartition("/")[2]
        body = store.objects.get(name, right.body)
        return without_length(right._replace(body=body), end if name == "s-1" else None)

    store.replace = replace


@pytest.fixture
def described(store: SmallStore, tmp_path: Path) -> Any:
    """A manifest and an index of the shards, for each scheme."""

    def describe(scheme: str) -> tuple[str, str]:
        how: Any = {"storage_options": store.options(scheme)}
        names = store.url(scheme, "s-{0..2}")
        manifest, index = f"{tmp_path}/{scheme}.json", f"{tmp_path}/{scheme}.index"
        streamrec.write_manifest_sync(names, manifest, **how)
        streamrec.write_index_sync(names, index, **how)
        return manifest, index

    return describe


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("records", [0, 40, 99])
def test_a_body_without_a_length_that_ends_early_is_an_error(
    store: SmallStore, scheme: str, records: int, described: Any
) -> None:
    manifest, index = described(scheme)
    whole = list(dataset(store, scheme))
    answer_without_length(store, None)
    assert list(dataset(store, scheme)) == whole
    answer_without_length(store, records * FIRST_RECORD_BYTES)
    plain = dataset(store, scheme)
    ways = {
        "plain names": plain,
        "several at once": dataset(store, scheme, num_parallel_reads=3),
        "a share": plain.distribute(0, 1),
        "a manifest": plain.distribute(0, 1, manifest=manifest),
        "an index": plain.distribute(0, 1, manifest=index),
        "a global shuffle": plain.global_shuffle(1, index=index),
    }
    if scheme in LISTING:
        ways["a pattern"] = dataset(store, scheme, "s-*")
    for name, way in ways.items():
        with pytest.raises(StreamrecError, match="s-1"):
            print(name, len(list(way)))
    names, how = store.url(scheme, "s-{0..2}"), store.options(scheme)
    with pytest.raises(StorageError, match="s-1"):
        streamrec.write_manifest_sync(names, manifest, storage_options=how, retry=IMPATIENT)
    with pytest.raises(StorageError, match="s-1"):
        streamrec.verify_sync(names, storage_options=how, retry=IMPATIENT)


@pytest.mark.parametrize("scheme", LISTING)
@pytest.mark.parametrize("what", ["pattern", "manifest", "index"])
def test_the_size_is_enough_without_head(
    store: SmallStore, scheme: str, what: str, described: Any
) -> None:
    manifest, index = described(scheme)
    answer_without_length(store, 40 * FIRST_RECORD_BYTES)
    without = store.replace
    store.replace = lambda asked, right: (
        Answer(405) if asked.method == "HEAD" else without(asked, right)
    )
    names = {
        "pattern": store.url(scheme, "s-*"),
        "manifest": manifest,
        "index": index,
    }[what]
    data = TFRecordDataset(names, storage_options=store.options(scheme), retry=IMPATIENT)
    if what == "pattern":
        found, _ = until_error(data, StorageError, "s-1")
        assert len(found) >= 100


@pytest.mark.parametrize("scheme", LISTING)
@pytest.mark.parametrize("size", [5, 20_000])
def test_a_body_without_a_length_that_is_longer_than_listed_is_an_error(
    store: SmallStore, scheme: str, size: int
) -> None:
    """The same version, if the gateway is believed; the first records would be those of another
    object.
    """
    records = [b"-" * size for _ in range(10)]
    store.objects["s-1"] = encode_records(records)
    longer = encode_records([*records, b"more"])

    def replace(asked: Asked, right: Answer) -> Answer:
        if store.kind(asked) != "read" or "s-1" not in asked.path:
            return right
        return without_length(right._replace(body=longer), None)

    store.replace = replace
    with pytest.raises(StorageError, match=r"s-1.* more bytes than the"):
        list(dataset(store, scheme, "s-*"))


def test_a_server_that_knows_no_sizes_is_read() -> None:
    """A body without a length and a HEAD without one: nothing is known."""
    data = shard(0)
    headers = {"Content-Length": ""}
    with small_store({"s-0": data}) as store:
        store.replace = lambda asked, right: Answer(200, data, headers)
        assert len(list(dataset(store, "http", "s-0"))) == 100
        store.replace = lambda asked, right: (
            Answer(403) if asked.method == "HEAD" else Answer(200, data, headers)
        )
        assert len(list(dataset(store, "http", "s-0"))) == 100


# Two versions of one object.


def other_versions(store: SmallStore, *, also: Any = None) -> None:
    """Listings have another ETag or generation than all other answers."""

    def replace(asked: Asked, right: Answer) -> Answer:
        if store.kind(asked) != "list":
            return right
        body = right.body.replace(b"<ETag>", b"<ETag>other-")
        body = re.sub(rb'("generation": ")', rb"\g<1>9", body)
        right = right._replace(body=body)
        return right if also is None else also(right)

    store.replace = replace


@pytest.mark.parametrize("reads", [1, 3])
@pytest.mark.parametrize("size", [5, 50_000])
def test_a_gateway_whose_listing_has_other_versions_is_read_with_one_warning(
    store: SmallStore, caplog: pytest.LogCaptureFixture, reads: int, size: int, tmp_path: Path
) -> None:
    for number in range(3):
        store.objects[f"s-{number}"] = encode_records(
            [b"%d-%d" % (number, row) + b"-" * size for row in range(10)]
        )
    other_versions(store)
    records = dataset(store, "s3", "s-*", num_parallel_reads=reads)
    assert len(list(records)) == 30
    run = records.iterate()
    first = [next(run) for _ in range(12)]
    assert [*first, *records.iterate(run.state_dict())] == list(records)
    assert sum(len(list(records.distribute(rank, 2))) for rank in range(2)) == 30
    assert (
        sum("names one version" in line or "name one version" in line for line in caplog.messages)
        == 1
    )
    index = f"{tmp_path}/x.index"
    names, how = store.url("s3", "s-*"), store.options("s3")
    streamrec.write_index_sync(names, index, storage_options=how)
    assert len(list(records.distribute(0, 1, even="pad", manifest=index))) == 30
    assert len(list(records.global_shuffle(1, index=index))) == 30


@pytest.mark.parametrize("changed", ["size", "time", "listed again", "refused"])
def test_an_object_that_was_written_since_is_refused_there_too(
    store: SmallStore, changed: str
) -> None:
    listings = [0]

    def also(right: Answer) -> Answer:
        listings[0] += 1
        if changed == "time":
            return right._replace(body=right.body.replace(b"T10:00:00", b"T09:59:58"))
        if changed == "listed again" and listings[0] > 1:
            return right._replace(body=right.body.replace(b"other-", b"new-"))
        if changed == "refused" and listings[0] > 1:
            return Answer(403)
        return right

    other_versions(store, also=also)
    records = dataset(store, "s3", "s-*")
    run = iter(records)
    if changed == "size":
        next(run)
        store.objects["s-2"] = shard(2, 99)
        run = iter(records)
    with pytest.raises(ObjectChangedError, match="when it was listed"):
        list(run)


# What arrived.

PORTAL = b"<!DOCTYPE html><html><head><title>Hotel  WLAN</title></head><body>Log in</body></html>"
PAGE = {"Content-Type": "text/html; charset=utf-8", "Server": "portal/1.0"}
DESCRIPTION_OF_PAGE = r"an HTML page with the title 'Hotel WLAN' \(a 200, text/html.*from 127\.0\.0\.1:\d+, Server: portal/1\.0\)"  # noqa: E501


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tagged", [False, True])
def test_a_page_in_place_of_a_shard(store: SmallStore, scheme: str, tagged: bool) -> None:
    """Whether the portal sends an ETag or not."""
    headers = {**PAGE, "ETag": '"x"'} if tagged else PAGE
    answer_only(store, "read", "s-1", Answer(200, PORTAL, headers))
    for on_error in ("raise", "skip_shard"):
        with pytest.raises(StorageError, match=rf"s-1.*{DESCRIPTION_OF_PAGE}") as caught:
            list(dataset(store, scheme, on_error=on_error))
        assert "written since" not in str(caught.value)
    if scheme in LISTING:
        with pytest.raises(StorageError, match=rf"s-1.*{DESCRIPTION_OF_PAGE}"):
            list(dataset(store, scheme, "s-*"))


@pytest.mark.parametrize("scheme", LISTING)
@pytest.mark.parametrize(
    ("body", "looks"),
    [
        (PORTAL, "an HTML page"),
        (b"<?xml version='1.0'?><Error><Code>Busy</Code></Error>", "an XML document <Error>"),
        (b'{"error": "log in"}', "JSON that begins with"),
        (b"Please log in first.", "a text that begins with 'Please log in"),
    ],
)
def test_a_page_without_a_type_in_place_of_a_shard(
    store: SmallStore, scheme: str, body: bytes, looks: str
) -> None:
    answer_only(store, "read", "s-1", Answer(200, body))
    with pytest.raises(StorageError, match=rf"s-1.*{looks}"):
        list(dataset(store, scheme, "s-*"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("everything", [False, True])
def test_a_page_in_place_of_an_index_or_a_manifest(
    store: SmallStore, scheme: str, everything: bool
) -> None:
    """A portal answers everything, HEAD and listings too."""
    for name in ("x.index", "m.json"):
        store.objects[name] = bytes(1000)
        if everything:
            store.replace = lambda asked, right: Answer(200, PORTAL, PAGE)
        else:
            answer_only(store, "read", name, Answer(200, PORTAL, PAGE))
        with pytest.raises(StorageError, match="text/html"):
            list(dataset(store, scheme, name))


@pytest.mark.parametrize("scheme", LISTING)
@pytest.mark.parametrize(
    ("body", "looks"),
    [
        (PORTAL, DESCRIPTION_OF_PAGE),
        (b"not found\n", "a text that begins with 'not found'"),
        (b'{"status": "ok"}', r'JSON .*\{\\?"status\\?": '),
        (b"<ListBucketResult><Name>b</Name><Contents>", "an XML document <ListBucketResult>"),
        (b"<html><body><p>Error 17", "an HTML page"),
    ],
)
def test_a_listing_that_is_none_says_what_arrived(
    store: SmallStore, scheme: str, body: bytes, looks: str
) -> None:
    store.replace = lambda asked, right: Answer(200, body, PAGE)
    with pytest.raises(StorageError, match=looks) as caught:
        list(dataset(store, scheme, "s-*"))
    assert "Internal Server Error" not in str(caught.value)


def test_a_page_in_answer_to_an_upload_is_not_a_success(store: SmallStore) -> None:
    answer_only(store, "PUT", "new", Answer(200, PORTAL, PAGE))
    with pytest.raises(StorageError, match=DESCRIPTION_OF_PAGE):  # noqa: SIM117
        with streamrec.TFRecordWriter(
            store.url("s3", "new"), storage_options=store.options("s3"), retry=IMPATIENT
        ) as writer:
            writer.write(b"record")


def answer_encoded(store: SmallStore, coding: str, body: Callable[[bytes], bytes] = bytes) -> None:
    """Answers all GETs of objects in one piece, with a coding that was not requested."""

    def replace(asked: Asked, right: Answer) -> Answer:
        if store.kind(asked) != "read" or right.status not in (200, 206):
            return right
        headers = {name: each for name, each in right.headers.items() if name != "Content-Range"}
        return Answer(200, body(right.body), {**headers, "Content-Encoding": coding})

    store.replace = replace


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("coding", ["br", "gzip, br", "compress"])
def test_a_coding_that_cannot_be_read_is_an_error(
    store: SmallStore, scheme: str, coding: str
) -> None:
    answer_encoded(store, coding)
    for on_error in ("raise", "skip_shard"):
        with pytest.raises(StorageError, match=rf"s-0.*Content-Encoding: {coding}"):
            list(dataset(store, scheme, on_error=on_error))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("coding", ["gzip", "aws-chunked", "identity", "UTF-8"])
def test_a_coding_that_is_only_metadata_is_read(
    store: SmallStore, scheme: str, coding: str
) -> None:
    """Uploads leave such values behind; the bytes are as they were stored."""
    answer_encoded(store, coding)
    assert len(list(dataset(store, scheme))) == 300


@pytest.mark.parametrize("scheme", SCHEMES)
def test_errors_of_an_encoded_answer_name_the_coding(store: SmallStore, scheme: str) -> None:
    answer_encoded(store, "gzip", gzip.compress)
    with pytest.raises(StreamrecError, match="Content-Encoding: gzip"):
        list(dataset(store, scheme, compression_type=""))
    if scheme in LISTING:
        with pytest.raises(StreamrecError, match=r"bytes when it was.*Content-Encoding: gzip"):
            list(dataset(store, scheme, "s-*"))


@pytest.mark.parametrize("ending", ["index", "json"])
def test_a_stored_page_is_named_in_place_of_an_index_or_a_manifest(
    tmp_path: Path, ending: str
) -> None:
    """It was downloaded through a portal."""
    (tmp_path / f"x.{ending}").write_bytes(PORTAL)
    with pytest.raises(ManifestError, match="an HTML page with the title 'Hotel WLAN'"):
        list(TFRecordDataset(f"{tmp_path}/x.{ending}"))
    with pytest.raises(ManifestError, match="an HTML page with the title 'Hotel WLAN'"):
        streamrec.RecordSource(f"{tmp_path}/x.{ending}")


@given(st.binary(max_size=600), st.dictionaries(st.text(max_size=12), st.text(max_size=30)))
def test_any_answer_can_be_described(head: bytes, headers: dict[str, str]) -> None:
    said = describe_answer(200, headers, head)
    assert "a 200" in said
    assert (describe_page(head) or "") in said


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
def test_no_shard_is_a_page(records: list[bytes]) -> None:
    assert describe_page(encode_records(records)[:512]) is None


@given(st.integers(100, 599), st.integers(0, 50), st.integers(0, 50))
def test_only_a_200_and_a_206_have_bytes(status: int, start: int, length: int) -> None:
    if status in (200, 206):
        return
    with pytest.raises(TransientError, match=f"a {status}"):
        http_body_range(status, {"Content-Length": str(length)}, start)


@given(st.integers(0, 100), st.none() | st.integers(0, 100), st.none() | st.integers(0, 100))
def test_a_416_proves_an_end_that_is_known(start: int, told: int | None, size: int | None) -> None:
    headers = {} if told is None else {"Content-Range": f"bytes */{told}"}
    known = [each for each in (size, told) if each is not None]
    if known and max(known) <= start:
        assert check_past_the_end(headers, start, size) in known
    else:
        with pytest.raises(TransientError, match="a 416"):
            check_past_the_end(headers, start, size)


def test_times_that_cannot_be_read_do_not_agree() -> None:
    assert not is_same_time("soon", "soon")
    assert is_same_time(12.0, 12.9)
