"""examples/service: its process before a SeaweedFS, and clients that are slow, leave, or send what
is wrong.
"""

import asyncio
import io
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import s3fs

import streamrec
from examples.service.app import Settings
from examples.service.examples import from_json, to_json
from examples.service.load import load, scraped
from examples.service.process import Running, running, serving
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess
from tests.servers.real import KEY, SECRET, Store
from tests.storage.contract import wait_until

pytestmark = pytest.mark.timeout(150)

TFRECORD, NDJSON = "application/x-tfrecord", "application/x-ndjson"
RECORDS = 600
LARGE_BYTES = 24 << 20
SLOW_CLIENTS = 6


@dataclass(frozen=True)
class Served:
    """A service, and what lies in its bucket."""

    running: Running
    settings: Settings
    files: s3fs.S3FileSystem

    def bytes_of(self, name: str) -> bytes:
        return bytes(self.files.cat_file(f"{self.settings.url}/{name}"))

    def put(self, name: str, data: bytes) -> None:
        self.files.pipe_file(f"{self.settings.url}/{name}", data)


def record(number: int) -> bytes:
    """The record of a number: small, with all kinds of values; number 7 is longer than what is
    encoded on the loop.
    """
    raw = np.random.default_rng(number).bytes(1_500_000 if number == 7 else 300)
    return streamrec.encode_example(
        {"floats": [0.1, float("nan")], "id": number, "name": f"cät {number}", "raw": raw}
    )


async def write(settings: Settings) -> None:
    pattern = f"{settings.url}/train-{{shard}}.tfrecord"
    options = settings.storage_options
    async with streamrec.ShardWriter(
        pattern, max_shard_records=250, index=settings.index, storage_options=options
    ) as writer:
        for number in range(RECORDS):
            await writer.write(record(number))
    async with streamrec.ShardWriter(
        f"{settings.url}/large/0.tfrecord", storage_options=options
    ) as writer:
        payload = bytes(100_000)
        for _ in range(LARGE_BYTES // len(payload) + 1):
            await writer.write(payload)


@pytest.fixture(scope="module")
def served(s3_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = Settings(f"{s3_store.url}/service", s3_store.options)
    asyncio.run(write(settings))
    with serving(settings, tmp_path_factory.mktemp("service") / "log") as running:
        yield Served(
            running, settings, s3fs.S3FileSystem(**s3_store.options, use_listings_cache=False)
        )


@asynccontextmanager
async def client_of(running: Running) -> AsyncIterator[Any]:
    async with aiohttp.ClientSession(
        running.url, timeout=aiohttp.ClientTimeout(total=120)
    ) as client:
        yield client


async def send_request(
    running: Running, path: str, method: str = "GET", **request: Any
) -> tuple[int, bytes]:
    if isinstance(request.get("data"), bytes):
        request["data"] = io.BytesIO(request["data"])
    async with client_of(running) as client, client.request(method, path, **request) as response:
        return response.status, await response.read()


async def metrics_of(running: Running) -> dict[str, float]:
    """The metrics, each by its name and the values of its labels."""
    async with client_of(running) as client:
        found = await scraped(client)
    return {
        " ".join([name, *(value for _, value in labels)]): value
        for (name, labels), value in found.items()
    }


async def test_bodies_equal_the_objects_of_the_bucket(served: Served) -> None:
    shards = [served.bytes_of(f"train-{number}.tfrecord") for number in range(3)]
    status, body = await send_request(
        served.running, "/shards/train-*.tfrecord", headers={"accept": TFRECORD}
    )
    assert (status, body) == (200, b"".join(shards))
    status, body = await send_request(served.running, "/shards/train-1.tfrecord")
    assert [from_json(line) for line in body.splitlines()] == [
        record(number) for number in range(250, 500)
    ]
    assert (status, json.loads(body.splitlines()[0])["name"]) == (200, ["cät 250"])
    pieces = [
        (await send_request(served.running, f"/shards/train-0.tfrecord?{piece}"))[1].splitlines()
        for piece in ("end=10000", "start=10000&end=1000000", "start=1000000")
    ]
    assert [from_json(line) for piece in pieces for line in piece] == [
        record(number) for number in range(250)
    ]
    status, names = await send_request(served.running, "/shards")
    assert set(json.loads(names)) >= {f"train-{number}.tfrecord" for number in range(3)}


async def test_records_by_their_numbers(served: Served) -> None:
    for path, numbers in {"17": [17], "599,3,7": [599, 3, 7], "240:260": range(240, 260)}.items():
        status, body = await send_request(served.running, f"/records/{path}")
        assert (status, body.decode().splitlines()) == (
            200,
            [to_json(record(number)) for number in numbers],
        )


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/shards/none.tfrecord", 404, "/service/none.tfrecord"),
        ("/shards/none-*.tfrecord", 404, "none-"),
        ("/shards/..%2Fother.tfrecord", 400, "is not a shard's name"),
        ("/shards/train-0.tfrecord?start=x", 400, "start='x' is not a byte offset"),
        ("/shards/train-0.tfrecord?start=9&end=3", 400, "end=3 is before start=9"),
        ("/shards/train-*.tfrecord?start=9", 400, "bytes of one shard"),
        ("/shards/train-0.tfrecord?start=99999999", 416, "the shard has"),
        ("/shards/large/0.tfrecord", 406, "not Examples"),
        ("/records/3;4", 400, "write 17, or 17,3, or 100:200"),
        ("/records/5:5", 400, "holds no record"),
        ("/records/0:20000", 413, "more than the 10000"),
        ("/records/1,600", 416, "no record 600: there are 600"),
    ],
)
async def test_an_impossible_request_is_answered_with_a_status_and_a_reason(
    served: Served, path: str, status: int, told: str
) -> None:
    found, body = await send_request(served.running, path)
    assert found == status, body
    assert told in json.loads(body)["error"]


async def test_damage_breaks_the_body_off(served: Served) -> None:
    """Damage in the first block has a status; behind it, the client sees that the body is not
    whole.
    """
    good = served.bytes_of("train-0.tfrecord")
    served.put("damaged/first.tfrecord", good[:40] + b"?" + good[41:])
    served.put("damaged/last.tfrecord", good[:-40] + b"?" + good[-39:])
    served.put("damaged/cut.tfrecord", good[:-40])
    status, body = await send_request(served.running, "/shards/damaged/first.tfrecord")
    assert (status, json.loads(body)["record"], json.loads(body)["offset"]) == (502, 0, 0)
    before = await metrics_of(served.running)
    for name in ("last", "cut"):
        for accept in (TFRECORD, NDJSON):
            taken = bytearray()
            async with (
                client_of(served.running) as client,
                client.get(
                    f"/shards/damaged/{name}.tfrecord", headers={"accept": accept}
                ) as response,
            ):
                assert response.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    async for part in response.content.iter_any():
                        taken += part
            assert accept == NDJSON or good.startswith(taken)
        assert re.search(
            rf"broken off: .*/damaged/{name}\.tfrecord, record 249, byte",
            served.running.log.read_text(),
        )
    after = await metrics_of(served.running)
    assert after["service_streams_total failed"] - before["service_streams_total failed"] == 4


async def test_http_1_0_cannot_tell_a_broken_body(served: Served) -> None:
    host, port = served.running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /shards/train-0.tfrecord HTTP/1.0\r\n\r\n")
    assert (await reader.read()).split(b"\r\n")[0].endswith(b" 505 HTTP Version Not Supported")
    writer.close()
    await writer.wait_closed()


async def slow_stream(
    running: Running, path: str = "/shards/large/0.tfrecord"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client with little room that has read the head of a large body, and nothing else."""
    host, port = running.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    connection.connect((host, int(port)))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 16)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {TFRECORD}\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    return reader, writer


async def disconnect(*clients: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    for _, writer in clients:
        writer.transport.abort()
        await writer.wait_closed()


async def read_whole(reader: asyncio.StreamReader) -> None:
    """Reads a large body to its end."""
    size, end = 0, b""
    while not end.endswith(b"\r\n0\r\n\r\n"):
        part = await reader.read(1 << 16)
        assert part, "the connection was closed within the body"
        size, end = size + len(part), (end + part)[-7:]
    assert size > LARGE_BYTES


def peak_bytes(running: Running) -> int:
    """The most memory that the service has had."""
    status = Path(f"/proc/{running.process.pid}/status")
    if not status.exists():
        pytest.skip("only Linux tells a process's peak of memory in /proc")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    assert found is not None
    return 1024 * int(found[1])


async def test_slow_clients_and_those_that_leave(served: Served) -> None:
    """Bodies that nobody reads cost no memory; when their clients leave, nothing of them is open
    any more.
    """
    await send_request(served.running, "/shards/large/0.tfrecord", headers={"accept": TFRECORD})
    before, peak = await metrics_of(served.running), peak_bytes(served.running)
    clients = [await slow_stream(served.running) for _ in range(SLOW_CLIENTS)]
    async with client_of(served.running) as client:
        for number in range(60):  # meanwhile all of the bodies could be read
            await (await client.get(f"/records/{number}")).read()
    during = await metrics_of(served.running)
    read = during["streamrec_read_bytes_total s3"] - before["streamrec_read_bytes_total s3"]
    assert read < SLOW_CLIENTS * LARGE_BYTES / 3
    assert peak_bytes(served.running) - peak < SLOW_CLIENTS * LARGE_BYTES / 4
    assert during["service_open_streams"] == SLOW_CLIENTS == during["streamrec_open_streams"]
    await read_whole(clients[0][0])
    await disconnect(*clients[1:])
    async with asyncio.timeout(60):
        while (now := await metrics_of(served.running))["service_open_streams"]:
            pass
    assert now["streamrec_open_streams"] == 0
    assert (
        now["service_streams_total left"] - before["service_streams_total left"] == SLOW_CLIENTS - 1
    )
    await disconnect(clients[0])


async def test_the_service_of_the_guide(served: Served, s3_store: Store, tmp_path: Path) -> None:
    """Slow clients cost what the guide says, those that leave cost nothing, and SIGTERM lets a
    stream finish.
    """
    keys = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": s3_store.endpoint,
    }
    environment = {
        **keys,
        "AWS_DEFAULT_REGION": "us-east-1",
        "SERVED": f"{served.settings.url}/large",
    }
    command = ["examples.service.minimal:app", "--timeout-graceful-shutdown", "30"]
    with running(command, environment, tmp_path / "log") as service:
        assert (await send_request(service, "/shards/none.tfrecord"))[0] == 404
        assert (await send_request(service, "/shards/0.tfrecord"))[1] == served.bytes_of(
            "large/0.tfrecord"
        )
        peak = peak_bytes(service)
        clients = [await slow_stream(service, "/shards/0.tfrecord") for _ in range(SLOW_CLIENTS)]
        for _ in range(60):  # meanwhile all of the bodies could be read
            assert (await metrics_of(service))["served_streams"] == SLOW_CLIENTS
        assert peak_bytes(service) - peak < SLOW_CLIENTS * (4 << 20)
        await disconnect(*clients[1:])
        async with asyncio.timeout(60):
            while (await metrics_of(service))["served_streams"] > 1:
                pass
        service.process.terminate()
        await read_whole(clients[0][0])
        clients[0][1].close()
        await asyncio.to_thread(service.process.wait, 60)
        assert "Finished server process" in service.log.read_text()


@pytest.mark.parametrize("kind", [TFRECORD, NDJSON])
async def test_uploads_come_back(served: Served, kind: str) -> None:
    name = "up-1.tfrecord" if kind == TFRECORD else "up-2.tfrecord"
    records = [record(number) for number in range(40)]
    lines = "".join(to_json(one) + "\n" for one in records).encode()
    body = streamrec.encode_records(records) if kind == TFRECORD else lines
    headers = {"content-type": kind, "if-none-match": "*"}
    status, told = await send_request(
        served.running, f"/shards/uploads/{name}", "PUT", data=body, headers=headers
    )
    assert (status, json.loads(told)["records"]) == (201, 40)
    assert served.bytes_of(f"uploads/{name}") == streamrec.encode_records(records)
    status, told = await send_request(
        served.running, f"/shards/uploads/{name}", "PUT", data=body, headers=headers
    )
    assert (status, "there is an object of this name" in json.loads(told)["error"]) == (412, True)


async def test_an_index_grows_with_uploads(served: Served) -> None:
    body = streamrec.encode_records([record(RECORDS), record(RECORDS + 1)])
    await send_request(
        served.running,
        "/shards/train-9.tfrecord",
        "PUT",
        data=body,
        headers={"content-type": TFRECORD},
    )
    try:
        assert json.loads((await send_request(served.running, "/index", "POST"))[1]) == {
            "records": 602,
            "shards": 4,
        }
        assert (await send_request(served.running, "/records/601"))[1].decode() == to_json(
            record(601)
        ) + "\n"
    finally:
        served.files.rm_file(f"{served.settings.url}/train-9.tfrecord")
        await send_request(served.running, "/index", "POST")


TWO_RECORDS = streamrec.encode_records([b"one", b"two"])


@pytest.mark.parametrize(
    ("kind", "body", "status", "told"),
    [
        (TFRECORD, TWO_RECORDS[:-5], 400, "the body, record 1, byte 19: the shard ends"),
        (TFRECORD, TWO_RECORDS[:13] + b"?" + TWO_RECORDS[14:], 400, "the body, record 0, byte 0: "),
        (
            NDJSON,
            b'{"a": [1]}\n\n{"a": [1, "b"]}\n',
            400,
            "the body, line 3: feature 'a': values of several kinds",
        ),
        (NDJSON, b'{"a": [1]}\n{"a": ', 400, "the body, line 2: "),
        (NDJSON, b"[1]", 400, "line 1: it is not an object of features"),
        (NDJSON, b'{"a": [9223372036854775808]}', 400, "line 1: feature 'a': "),
        ("text/csv", b"a,b", 415, "a shard is sent as"),
    ],
)
async def test_a_wrong_upload_says_where_and_leaves_nothing(
    served: Served, kind: str, body: bytes, status: int, told: str
) -> None:
    found, answer = await send_request(
        served.running,
        "/shards/wrong/one.tfrecord",
        "PUT",
        data=body,
        headers={"content-type": kind},
    )
    assert found == status, answer
    assert told in json.loads(answer)["error"]
    assert not served.files.exists(f"{served.settings.url}/wrong")


@pytest.mark.parametrize("who", ["client", "service"])
async def test_an_upload_that_is_killed_leaves_nothing(
    served: Served, who: str, tmp_path: Path
) -> None:
    """Neither an object nor, where the service lives, an unfinished upload; and the next one
    works.
    """
    name, begun = f"killed/{who}.tfrecord", asyncio.Event()
    body = streamrec.encode_records([bytes(1 << 20)] * 24)

    async def endless() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1 << 18):
            yield body[start : start + (1 << 18)]
        begun.set()
        await asyncio.Event().wait()

    with serving(served.settings, tmp_path / "log") as running:
        headers = {"content-type": TFRECORD}
        upload = asyncio.create_task(
            send_request(running, f"/shards/{name}", "PUT", data=endless(), headers=headers)
        )
        await begun.wait()
        if who == "service":
            running.process.kill()
            with pytest.raises(aiohttp.ClientError):
                await upload
        else:
            upload.cancel()
            async with asyncio.timeout(60):
                while await unfinished(served, name):
                    pass
    assert not served.files.exists(f"{served.settings.url}/{name}")
    status, _ = await send_request(
        served.running, f"/shards/{name}", "PUT", data=body, headers=headers
    )
    assert (status, await unfinished(served, name)) == (201, [])


async def unfinished(served: Served, name: str) -> list[str]:
    bucket, key = f"{served.settings.url}/{name}".removeprefix("s3://").split("/", 1)
    found = await asyncio.to_thread(
        served.files.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=key
    )
    return [upload["Key"] for upload in found.get("Uploads", ())]


async def test_a_store_that_is_down(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    options = {"endpoint_url": endpoint, "key": "k", "secret": "s"}
    with serving(Settings("s3://bucket/x", options, patience=0.2), tmp_path / "log") as running:
        assert await send_request(running, "/healthz") == (200, b'{"status":"alive"}')
        for path in ("/readyz", "/shards/a.tfrecord", "/records/1", "/shards"):
            async with client_of(running) as client, client.get(path) as response:
                assert (response.status, response.headers["retry-after"]) == (503, "1")
                assert "s3://bucket/x" in (await response.json())["error"]


async def test_a_store_that_goes_away(tmp_path: Path) -> None:
    """The client sees that the body is not whole, and the service's log says at which object."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "a.tfrecord").write_bytes(
        streamrec.encode_records([bytes(400_000)] * 80)
    )
    with ServerProcess(
        "tests.servers.objectstore", ("--root", str(tmp_path)), Faults(rate=8e6)
    ) as store:
        settings = Settings("s3://bucket", {"endpoint_url": store.url, "anon": True}, patience=0.2)
        with serving(settings, tmp_path / "log") as running:
            accept = {"accept": TFRECORD}
            async with (
                client_of(running) as client,
                client.get("/shards/a.tfrecord", headers=accept) as response,
            ):
                assert response.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    async for _ in response.content.iter_any():
                        store.close()
            assert re.search(r"broken off: s3://bucket/a\.tfrecord", running.log.read_text())
            assert (await send_request(running, "/healthz"))[0] == 200


async def test_clients_of_all_kinds_at_once_get_what_they_ask_for(served: Served) -> None:
    """All kinds of clients at once get what they ask for, and the figures of the event loop are
    there.
    """
    before = await metrics_of(served.running)
    told = await load(served.running.url, 3.0, 15)
    assert told["requests"]["single records"] > 0 < told["requests"]["left streams"]
    assert (
        told["loop_round_ms"]["p99"]
        >= told["loop_round_ms"]["p50"]
        > 0
        < told["loop_delay_ms"]["p99"]
    )
    after = await metrics_of(served.running)
    assert after["service_streams_total failed"] == before["service_streams_total failed"]
    assert after["streamrec_requests_total s3"] > before["streamrec_requests_total s3"]
    assert (await send_request(served.running, "/readyz"))[0] == 200


async def append(running: Running, first: int, count: int, known: list[int]) -> None:
    """Posts events one after the other until the service is gone; `known` gets what it has
    acknowledged.
    """
    async with client_of(running) as client:
        for number in range(first, first + count):
            line = json.dumps({"id": [number]}).encode()
            try:
                async with client.post(
                    "/events", data=line, headers={"content-type": NDJSON}
                ) as response:
                    assert response.status == 201, await response.text()
            except aiohttp.ClientError:
                return
            known.append(number)


def are_acknowledged(known: list[int], count: int) -> bool:
    """Whether so many events are acknowledged."""
    return len(known) >= count


async def test_acknowledged_events_survive_a_service_that_is_killed(tmp_path: Path) -> None:
    """Each acknowledged event is stored once, and no event is stored twice."""
    settings = Settings(str(tmp_path / "served"))
    known: list[int] = []
    for run in range(3):
        with serving(settings, tmp_path / f"log-{run}") as running:
            before = len(known)
            clients = [
                asyncio.create_task(append(running, (10 * run + client) * 1000, 1000, known))
                for client in range(5)
            ]
            await wait_until(partial(are_acknowledged, known, before + 10))
            running.process.kill()
            await asyncio.gather(*clients)
    features = {"id": streamrec.FixedLenFeature([], "int64")}
    shards = streamrec.TFRecordDataset(f"{settings.url}/events/*/*.tfrecord")
    found = [number for batch in shards.batch(64).parse_example(features) for number in batch["id"]]
    assert len(found) == len(set(found))
    assert set(known) <= set(found)
