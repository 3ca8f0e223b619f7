"""Writing with fewer rights: what cannot be read is not replaced, and what cannot be removed stays
and is named.
"""

import logging
from collections.abc import AsyncIterator, Callable

import pytest

import streamrec
from streamrec import ShardWriter
from streamrec.errors import PermissionDeniedError
from streamrec.storage import RetryPolicy
from tests.servers.real import Store
from tests.storage.faultproxy import Fault, Request, status
from tests.storage.network import Network, through

POLICY = RetryPolicy(attempts=2, backoff_base=0.01)
DENIED = "403 Forbidden"
LOST = Fault(cut=0, head=lambda head: b"")  # it took effect, and its answer is lost


@pytest.fixture
async def s3(s3_store: Store) -> AsyncIterator[Network]:
    async with through(s3_store, POLICY) as place:
        yield place


async def put(s3: Network, name: str, data: bytes) -> None:
    async with await s3.direct.upload(s3.path + name) as upload:
        await upload.write(data)


async def stored(s3: Network, name: str) -> bytes:
    return await s3.direct.read_range(s3.path + name, 0, 1 << 20)


def make_writer(s3: Network, overwrite: object = True, manifest: bool = False) -> ShardWriter:
    return ShardWriter(
        f"{s3.path}-{{shard}}",
        max_shard_records=1,
        overwrite=overwrite,  # type: ignore[arg-type]
        manifest=f"{s3.path}-m.json" if manifest else None,
        storage_options={**s3.store.options, "endpoint_url": s3.proxy.url},
        retry=POLICY,
    )


def names_old(request: Request) -> bool:
    """Whether a request is to read one of the objects 0 to 2: by HEAD, GET, or a copy."""
    read = request.headers.get("x-amz-copy-source", "") or (
        request.path.partition("?")[0] if request.method in ("HEAD", "GET") else ""
    )
    return read.endswith(("-0", "-1", "-2"))


def reads(request: Request) -> bool:
    return request.method in ("HEAD", "GET") or "x-amz-copy-source" in request.headers


def deny(s3: Network, what: Callable[[Request], bool]) -> None:
    s3.proxy.choose = lambda request: status(DENIED) if what(request) else None


async def test_an_object_that_may_not_be_read_is_not_replaced(s3: Network) -> None:
    for number in range(3):
        await put(s3, f"-{number}", b"old %d" % number)
    deny(s3, names_old)
    with pytest.raises(PermissionDeniedError, match=r"s3:GetObject.*overwrite='unsecured'"):
        async with make_writer(s3) as writer:
            for _ in range(5):
                await writer.write(b"new")
    assert not [request for request in s3.proxy.log if request.method == "PUT"]
    for number in range(3):
        assert await stored(s3, f"-{number}") == b"old %d" % number


async def test_an_object_that_may_be_looked_at_and_not_copied_is_not_replaced(s3: Network) -> None:
    for number in range(3):
        await put(s3, f"-{number}", b"old %d" % number)
    deny(s3, lambda request: names_old(request) and "x-amz-copy-source" in request.headers)
    with pytest.raises(PermissionDeniedError, match="overwrite='unsecured'"):
        async with make_writer(s3) as writer:
            for _ in range(5):
                await writer.write(b"new")
    found = [info.path async for info in s3.direct.list(s3.path, hidden=True)]
    assert found == [f"{s3.path}-{number}" for number in range(3)]
    for number in range(3):
        assert await stored(s3, f"-{number}") == b"old %d" % number


@pytest.mark.parametrize("copies", [False, True], ids=["not read", "not copied"])
async def test_objects_that_cannot_be_secured_are_replaced_on_request(
    s3: Network, copies: bool
) -> None:
    for number in range(2):
        await put(s3, f"-{number}", b"old %d" % number)

    def denied(request: Request) -> bool:
        return names_old(request) and (not copies or "x-amz-copy-source" in request.headers)

    deny(s3, denied)
    async with make_writer(s3, "unsecured") as writer:
        for number in range(2):
            await writer.write(b"new %d" % number)
    for number in range(2):
        assert await stored(s3, f"-{number}") == streamrec.encode_records([b"new %d" % number])
    with pytest.raises(ValueError, match="overwrite is 'secured'"):
        make_writer(s3, "secured")


async def test_new_names_are_written_without_the_right_to_read_or_list(s3: Network) -> None:
    """S3 then answers 403 for missing names, too: a conditional request decides."""
    deny(s3, reads)
    async with make_writer(s3, manifest=True) as writer:
        for number in range(3):
            await writer.write(b"new %d" % number)
    for number in range(3):
        assert await stored(s3, f"-{number}") == streamrec.encode_records([b"new %d" % number])


async def test_without_the_right_to_read_an_existing_name_is_refused(s3: Network) -> None:
    await put(s3, "-1", b"old")
    deny(s3, reads)
    with pytest.raises(PermissionDeniedError, match="overwrite='unsecured'") as caught:
        async with make_writer(s3) as writer:
            for _ in range(3):
                await writer.write(b"new")
    assert caught.value.path == f"{s3.path}-1"
    assert await stored(s3, "-1") == b"old"


async def test_a_set_that_grows_without_the_right_to_list(s3: Network) -> None:
    """Old names are secured, and new ones are created where there is none."""
    for number in range(2):
        await put(s3, f"-{number}", b"old %d" % number)
    missing = f"{s3.path.rpartition('/')[2]}-2"

    def unlisted(request: Request) -> bool:
        path = request.path.partition("?")[0]
        is_new = path.endswith(missing) or ".streamrec-" in path
        return request.method == "HEAD" and is_new and path not in written

    written: set[str] = set()

    def choose(request: Request) -> Fault | None:
        path = request.path.partition("?")[0]
        if unlisted(request):
            return status(DENIED)
        if request.method in ("PUT", "POST"):
            written.add(path)
        return None

    s3.proxy.choose = choose
    async with make_writer(s3) as writer:
        for number in range(3):
            await writer.write(b"new %d" % number)
    for number in range(3):
        assert await stored(s3, f"-{number}") == streamrec.encode_records([b"new %d" % number])


@pytest.mark.parametrize("fault", [status(DENIED), LOST], ids=["refused", "answers lost"])
async def test_one_object_is_replaced_although_the_hidden_one_cannot_be_removed(
    s3: Network, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    await put(s3, "", b"old")
    s3.proxy.choose = lambda request: fault if request.method == "DELETE" else None
    with caplog.at_level(logging.WARNING, "streamrec"):
        async with await s3.storage.upload(s3.path) as upload:
            await upload.write(b"new")
    assert await stored(s3, "") == b"new"
    hidden = [info.path async for info in s3.direct.list(s3.path.rpartition("/")[0], hidden=True)]
    left = [name for name in hidden if ".streamrec-" in name and s3.path.rpartition("/")[2] in name]
    assert len(left) == (fault is not LOST)
    assert [message for message in caplog.messages if left and left[0] in message] or not left


async def test_a_set_is_replaced_without_the_right_to_remove(
    s3: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice: what the first run could not remove does not stop the next one."""
    for tag in (b"old", b"new", b"newer"):
        if tag == b"new":
            deny(s3, lambda request: request.method == "DELETE")
        async with make_writer(s3, manifest=True) as writer:
            for number in range(2):
                await writer.write(b"%s %d" % (tag, number))
        for number in range(2):
            data = streamrec.encode_records([b"%s %d" % (tag, number)])
            assert await stored(s3, f"-{number}") == data
    assert any(
        "-old-" in message and "could not be removed" in message for message in caplog.messages
    )


@pytest.fixture
async def gcs(gcs_store: Store) -> AsyncIterator[Network]:
    async with through(gcs_store, POLICY) as place:
        yield place


def needs_get(request: Request) -> bool:
    """Whether Google Cloud Storage asks for storage.objects.get: metadata, content, rewrites."""
    return request.method == "GET" or "/rewriteTo/" in request.path


@pytest.mark.parametrize("lists", [False, True], ids=["may not list", "may list"])
async def test_new_names_are_written_to_gcs_without_the_right_to_get(
    gcs: Network, lists: bool
) -> None:
    deny(gcs, lambda request: needs_get(request) and not (lists and "/o?" in request.path))
    async with make_writer(gcs, manifest=True) as writer:
        for number in range(3):
            await writer.write(b"new %d" % number)
    for number in range(3):
        assert await stored(gcs, f"-{number}") == streamrec.encode_records([b"new %d" % number])
    found = {info.path async for info in gcs.direct.list(gcs.path, hidden=True)}
    assert found == {f"{gcs.path}-{name}" for name in ("0", "1", "2", "m.json")}


@pytest.mark.parametrize("denied", ["nothing shows", "only this object"])
async def test_an_existing_name_in_gcs_is_refused_without_the_right_to_get(
    gcs: Network, denied: str
) -> None:
    """The store answers 403 for all names, or, with a condition in the policy, for some."""
    await put(gcs, "-1", b"old")
    name = f"{gcs.path.rpartition('/')[2]}-1"
    deny(
        gcs,
        lambda request: needs_get(request) and (denied == "nothing shows" or name in request.path),
    )
    with pytest.raises(PermissionDeniedError, match=r"storage\.objects\.get") as caught:
        async with make_writer(gcs) as writer:
            for _ in range(3):
                await writer.write(b"new")
    assert caught.value.path == f"{gcs.path}-1"
    assert "--overwrite-unsecured" in str(caught.value)
    assert await stored(gcs, "-1") == b"old"


@pytest.mark.parametrize("rewrites", [False, True], ids=["neither read nor copied", "not copied"])
async def test_objects_in_gcs_are_replaced_without_the_right_to_get_on_request(
    gcs: Network, rewrites: bool
) -> None:
    for number in range(2):
        await put(gcs, f"-{number}", b"old %d" % number)
    names = [f"{gcs.path.rpartition('/')[2]}-{number}" for number in range(2)]

    def denied(request: Request) -> bool:
        """Of the old objects; of one that was written meanwhile, too."""
        source = request.path.partition("/rewriteTo/")[0]
        is_old = any(source.partition("?")[0].endswith(name) for name in names)
        return needs_get(request) and is_old and (not rewrites or source != request.path)

    deny(gcs, denied)
    with pytest.raises(PermissionDeniedError, match="--overwrite-unsecured"):
        async with make_writer(gcs) as writer:
            for number in range(2):
                await writer.write(b"new %d" % number)
    for number in range(2):
        assert await stored(gcs, f"-{number}") == b"old %d" % number
    async with make_writer(gcs, "unsecured") as writer:
        for number in range(2):
            await writer.write(b"new %d" % number)
    for number in range(2):
        assert await stored(gcs, f"-{number}") == streamrec.encode_records([b"new %d" % number])
