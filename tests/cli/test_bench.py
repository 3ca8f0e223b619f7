"""`streamrec bench --write`: it measures with objects of its own, and leaves none."""

import time
from pathlib import Path

import pytest

from tests.cli.conftest import Bucket, Call, interrupt, run, start


def test_what_it_wrote_is_removed(bucket: Bucket, called: Call) -> None:
    done = called("bench", *bucket.options, "--json", "--write", "--seconds", "0.05", bucket.url)
    assert done.code == 0, done.err
    assert len(done.json["measurements"]) == 24
    assert "nothing is below" in called("ls", *bucket.options, bucket.url).err


@pytest.mark.parametrize("written", ["first", "all"])
def test_ctrl_c_leaves_nothing(bucket: Bucket, called: Call, written: str) -> None:
    wanted = 1 if written == "first" else 8
    with start("bench", *bucket.options, "--write", "--seconds", "60", bucket.url) as process:
        deadline = time.monotonic() + 60
        while listed(bucket, called) < wanted:
            assert process.poll() is None
            assert time.monotonic() < deadline
        interrupt(process)
    assert "nothing is below" in run("ls", *bucket.options, bucket.url).err


def listed(bucket: Bucket, called: Call) -> int:
    done = called("ls", *bucket.options, "--json", bucket.url)
    return len(done.json) if done.code == 0 else 0


def test_write_wants_a_directory(shard: Path, called: Call) -> None:
    done = called("bench", "--write", shard)
    assert done.code == 2
    assert "ends in /" in done.err
