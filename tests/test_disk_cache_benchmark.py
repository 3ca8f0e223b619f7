"""The benchmark of the cache: what its server counts, what its processes do, and its page."""

import asyncio
import doctest
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.disk_cache import data, page, ranks
from benchmarks.disk_cache.ranks import Ranks, RunError, Terms
from benchmarks.disk_cache.runs import Bucket, Case, Runner
from benchmarks.disk_cache.sides import Place
from benchmarks.harness.results import RESULTS, load
from tests.servers import accesslog
from tests.servers.accesslog import AccessLog
from tests.servers.real import Store, counted, nginx

SHAPE = data.Shape(6, 20)
"""12 MB of images: more than the smallest cache."""


@pytest.fixture(scope="module")
def bucket(s3_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """The images in a SeaweedFS, with a server in front of it that counts."""
    folder = tmp_path_factory.mktemp("images")
    data.write_tfrecord(str(folder), SHAPE.shards, SHAPE.images)
    paths = sorted(folder.iterdir())
    s3_store.put({f"{s3_store.url}/disk-cache/{path.name}": path.read_bytes() for path in paths})
    with counted(s3_store) as store:
        yield Bucket(
            store=store,
            folder="disk-cache",
            names=[path.name for path in paths],
            nbytes=sum(path.stat().st_size for path in paths),
            shape=SHAPE,
        )


def test_the_log_of_a_server_says_what_was_sent() -> None:
    with nginx() as store:
        (store.directory / "x").write_bytes(bytes(100_000))
        log = AccessLog(store)
        request = urllib.request.Request(f"{store.endpoint}/x", headers={"Range": "bytes=0-999"})
        read(request)
        assert log.taken() == accesslog.Taken(requests=1, nbytes=1_000, failed=0)
        read(f"{store.endpoint}/x")
        with pytest.raises(urllib.error.HTTPError) as missing:
            read(f"{store.endpoint}/y")
        with missing.value as answer:
            body = len(answer.read())
        assert log.taken() == accesslog.Taken(requests=2, nbytes=100_000 + body, failed=1)
        assert log.taken() == accesslog.Taken(requests=0, nbytes=0, failed=0)


def read(request: str | urllib.request.Request) -> None:
    with urllib.request.urlopen(request) as answer:
        answer.read()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_row_has_what_the_store_sent_in_each_epoch(
    bucket: Bucket, tmp_path: Path, shuffled: bool
) -> None:
    case = Case(side="streamrec", limit=1.0, processes=1 + shuffled, shuffled=shuffled)
    row = Runner("", 60, tmp_path).row(case, bucket)
    assert "error" not in row
    read = [epoch["read"] for epoch in row["epochs"]]
    assert read == pytest.approx([1, 0, 0], abs=0.01)
    assert row["disk"] == pytest.approx(1, abs=0.01)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_what_a_new_one_reads(bucket: Bucket, tmp_path: Path) -> None:
    row = Runner("", 60, tmp_path).row(Case(side="streamrec", limit=1.0, killed=True), bucket)
    assert "error" not in row
    assert [epoch["read"] for epoch in row["epochs"]] == pytest.approx([1, 0], abs=0.01)


def test_an_error_of_a_library_is_that_of_its_row(bucket: Bucket, tmp_path: Path) -> None:
    row = Runner("", 60, tmp_path).row(Case(side="streamrec", limit=0.1), bucket)
    assert row["epochs"] == []
    assert row["error"].startswith("ValueError: storage_options['cache_bytes'] is ")


def test_a_library_that_hangs_is_an_error_and_its_processes_are_ended(tmp_path: Path) -> None:
    script = tmp_path / "hangs"
    script.write_text(f"#!{sys.executable}\nimport sys\nsys.stdin.read()\n")
    script.chmod(0o700)
    place = Place(
        url="s3://b",
        names=[],
        endpoint="",
        options={},
        cache=str(tmp_path / "cache"),
        limit=0,
        shuffled=False,
    )
    started = Ranks("x", place, Terms(python=str(script), count=2, seconds=0.5, environment={}))

    async def start() -> None:
        async with started:
            pass

    with pytest.raises(RunError, match=r"did not end within 0 s"):
        asyncio.run(start())
    assert started._processes == []


def a_row(**changed: Any) -> dict[str, Any]:
    epochs = [{"read": read, "requests": 9, "seconds": 1.0, "cpu_s_gb": 0.5} for read in (1, 0, 0)]
    row = {"store": "s3", "side": "Mosaic", "shard_mb": 4.0, "limit": 0.5, "processes": 1}
    row |= {"shuffled": False, "killed": False, "disk": 0.5, "epochs": epochs}
    return row | changed


def test_the_table_has_a_line_for_each_limit_and_library() -> None:
    failed = {"epochs": [], "error": "ValueError: " + "x" * 100, "processes": 4}
    rows = [a_row(), a_row(disk=0.6, **failed), a_row(killed=True), a_row(shuffled=True)]
    [line, shuffled] = page.read_rows(rows)
    assert line[:3] == ["50 %", "MosaicML Streaming", "1.00, 0.00, 0.00"]
    assert line[3].startswith("ValueError: xxx")
    assert line[3].endswith(" ...")
    assert line[4:] == ["60 %", "0.50, 0.50"]
    assert shuffled[0] == "50 %, shuffled"
    assert page.killed_rows(rows) == [["50 %", "MosaicML Streaming", "0.00", "50 %"]]


@pytest.mark.skipif(
    not (RESULTS / "disk_cache.json").exists(), reason="it was not measured on a calm machine yet"
)
def test_the_guide_has_the_tables_of_the_data() -> None:
    assert page.section(load("disk_cache")) in page.PAGE.read_text()


@pytest.mark.parametrize("module", [accesslog, data, page, ranks])
def test_examples_are_true(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
