"""What the log says, and when."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from streamrec import TFRecordDataset, encode_records
from streamrec.storage import RetryPolicy, Statistics, Storages
from streamrec.storage.faults import Cause
from streamrec.storage.statistics import Reporter, lines
from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore

DATA = encode_records([b"x" * 100] * 5_000)


def test_a_line_tells_what_matters() -> None:
    statistics = Statistics()
    tally = statistics.backend("s3")
    tally.count(Cause.BROKEN)
    tally.count(Cause.THROTTLED)
    tally.count(Cause.THROTTLED)
    tally.count("hedges")
    tally.count("hedges")
    tally.count("hedges_won")
    tally.request(waited=1.5)
    tally.count_loss(1234)
    (line,) = lines(statistics.snapshot())
    for part in ("3 retried (1 broken, 2 throttled)", "1 of 2 hedges won", "1 loss of 1,234 bytes", "1.5 s for leave"):
        assert part in line


def test_a_run_is_logged_at_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "key").write_bytes(DATA)
    caplog.set_level(logging.INFO, "streamrec")
    with ObjectStore(tmp_path, replace(NO_FAULTS, script=("reset",), at=0.5)) as store:
        options = {"endpoint_url": store.url, "anon": True}
        dataset = TFRecordDataset("s3://bucket/key", storage_options=options, retry=RetryPolicy(backoff_base=0.01))
        assert sum(len(frames) for frames in dataset.batch(100)) == 5_000
    retry, end = (record.getMessage() for record in caplog.records if record.name == "streamrec")
    assert retry.startswith("s3://bucket/key: trying again in 0.0 s after the connection broke")
    assert end.startswith("at the end, s3: 0.6 MB in 2 requests")
    assert "1 retried (1 broken)" in end


def test_silence_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Untouchable(Statistics):
        def snapshot(self) -> object:  # type: ignore[override]
            raise AssertionError("nobody listens")

    async def run() -> None:
        reporter = Reporter(Untouchable(), interval=60)
        reporter.start()
        reporter.stop()

    caplog.set_level(logging.WARNING, "streamrec")
    asyncio.run(run())
    assert not caplog.records


async def test_lines_come_at_intervals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The interval is the loop's own timer, so its shortest turns will do."""
    caplog.set_level(logging.INFO, "streamrec")
    (tmp_path / "key").write_bytes(DATA)
    async with Storages(report_interval=0.0) as storages:
        storage = await storages.at(str(tmp_path))
        await storage.stat(str(tmp_path / "key"))
        for _ in range(10):
            await asyncio.sleep(0)
    assert caplog.records[0].getMessage().startswith("so far, file: 0.0 MB in 1 request,")
    count = len(caplog.records)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(caplog.records) == count  # nothing goes on behind the end
