"""S3 over TLS, against a SeaweedFS that has a certificate: uploads without SHA-256, and bodies that land deciphered."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from streamrec import ShardWriter, StorageError, TFRecordDataset
from streamrec.kernels import crc32c
from streamrec.storage import Storage, Storages
from streamrec.storage.backends.http import buffered_body
from streamrec.storage.uploads.checksums import encoded
from streamrec.testing.servers import Store, seaweedfs
from tests.storage.contract import QUICK, read_all

PART = 5 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    directory = tmp_path_factory.mktemp("certificate")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=streamrec tests"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    with seaweedfs("secure", certificate=(certificate, key)) as store:
        yield store


@pytest.fixture
async def storage(store: Store) -> AsyncIterator[Storage]:
    async with Storages(store.options, retry=QUICK) as storages:
        yield await storages.at(store.url)


@pytest.fixture
def path(store: Store) -> str:
    return f"{store.url}/{uuid4().hex}"


@pytest.mark.parametrize("size", [0, 1_000, PART, 3 * PART + 17])
async def test_an_upload_is_verified_without_sha256(storage: Storage, path: str, size: int) -> None:
    """One part and several: signed heads, bodies that only TLS and the CRC32C guard."""
    sent: list[str] = []
    events = storage._backend._fs._s3.meta.events  # type: ignore[attr-defined]
    events.register("before-send.s3", lambda request, **_: sent.append(_said(request.headers)))
    data = os.urandom(size)
    async with await storage.upload(path, part_size=PART) as upload:
        await upload.write(data)
    assert "UNSIGNED-PAYLOAD" in sent
    assert await read_all(await storage.stream(path)) == data
    bucket, _, key = path.removeprefix("s3://").partition("/")
    fs = storage._backend._fs  # type: ignore[attr-defined]
    head = await fs._call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    assert (head["ContentLength"], head.get("ChecksumCRC32C")) == (size, encoded(crc32c(data)))


def _said(headers: dict[str, str | bytes]) -> str:
    """What a request's signature says of its body."""
    value = headers.get("X-Amz-Content-SHA256", "")
    return value.decode() if isinstance(value, bytes) else value


async def test_bodies_land_deciphered(storage: Storage, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole object by one GET and by several, in reads of any size: every byte, though the kernel gathers."""
    landed: list[buffered_body.BufferedBody] = []
    begin = buffered_body.BufferedBody.__init__

    def noted(self: buffered_body.BufferedBody, *arguments: object) -> None:
        landed.append(self)
        begin(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(buffered_body.BufferedBody, "__init__", noted)
    data = os.urandom(21 << 20)
    async with await storage.upload(path) as upload:
        await upload.write(data)
    for step in (70_001, 1 << 20, 4 << 20):
        assert await read_all(await storage.stream(path), step) == data
    assert len(landed) >= 6
    for end in (2_000_000, 2_000_001):
        assert await storage.read_range(path, 7, end) == data[7:end]


def test_a_data_set_over_tls(store: Store, path: str) -> None:
    records = [os.urandom(100_000) for _ in range(150)]

    async def write() -> None:
        async with ShardWriter(f"{path}.tfrecord", storage_options=store.options) as writer:
            for record in records:
                await writer.write(record)

    asyncio.run(write())
    assert list(TFRecordDataset(f"{path}.tfrecord", storage_options=store.options)) == records


async def test_a_certificate_that_nobody_vouches_for_is_refused_at_once(store: Store, path: str) -> None:
    strangers = {**store.options, "client_kwargs": {"region_name": "us-east-1"}}
    async with Storages(strangers, retry=QUICK) as storages:
        with pytest.raises(StorageError, match="certificate was refused") as caught:
            await (await storages.at(path)).stream(path)
    assert caught.value.path == path
