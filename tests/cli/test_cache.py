"""`streamrec cache`: shows, fills and empties a cache, and never what a running process uses."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamrec import TFRecordDataset
from streamrec.storage.cache import close_caches
from tests.cli.conftest import CommandLine
from tests.servers.small_store import SmallStore, small_store
from tests.storage.cache.test_cached_reads import blocks, shard


@pytest.fixture
def store() -> Iterator[SmallStore]:
    names = [f"{folder}/s-{index}.tfrecord" for folder in ("d", "e") for index in range(3)]
    with small_store({name: shard(index) for index, name in enumerate(names)}) as running:
        yield running
    close_caches()


def read(store: SmallStore, folder: str, directory: Path) -> int:
    """Reads a folder through the cache; returns how many bytes the store sent."""
    options: dict[str, Any] = store.options("s3") | {"cache_dir": directory, "cache_bytes": 1 << 26}
    records = TFRecordDataset(store.url("s3", f"{folder}/*"), storage_options=options).iterate()
    assert sum(1 for _ in records) == 120
    return records.stats().storage.backends["s3"].bytes


def test_a_cache_is_shown_with_what_a_running_process_uses(
    store: SmallStore, tmp_path: Path, cli: CommandLine
) -> None:
    read(store, "d", tmp_path / "c")
    close_caches()
    about = next((tmp_path / "c").glob("sets/*/about.json"))
    os.utime(about, (about.stat().st_mtime - 7300,) * 2)
    read(store, "e", tmp_path / "c")
    found = cli("cache", tmp_path / "c")
    first, second, total = found.out.splitlines()[-3:]
    assert first.split()[:2] == ["s3://b/e/", "3"]
    assert first.endswith(" now")
    assert second.split()[:2] == ["s3://b/d/", "3"]
    assert second.endswith(" 2 h ago")
    assert total.endswith(" in 2 data sets")
    listed = json.loads(cli("cache", "--json", tmp_path / "c").out)
    assert [(each["url"], each["blocks"], each["in_use"]) for each in listed] == [
        ("s3://b/e/", 3, True),
        ("s3://b/d/", 3, False),
    ]


def test_clearing_leaves_what_a_running_process_uses(
    store: SmallStore, tmp_path: Path, cli: CommandLine
) -> None:
    read(store, "d", tmp_path / "c")
    close_caches()
    read(store, "e", tmp_path / "c")
    assert "removed" in cli("cache", tmp_path / "c", "--clear").out
    assert read(store, "e", tmp_path / "c") == 0
    close_caches()
    assert "the cache is empty" in cli("cache", tmp_path / "c", "--clear").out
    assert blocks(tmp_path / "c") == []
    assert read(store, "d", tmp_path / "c") > 0


def test_trimming_removes_what_was_used_longest_ago(
    store: SmallStore, tmp_path: Path, cli: CommandLine
) -> None:
    for folder in "de":
        read(store, folder, tmp_path / "c")
        close_caches()
        for about in (tmp_path / "c").glob("sets/*/about.json"):
            os.utime(about, (about.stat().st_mtime - 60,) * 2)
    total = sum(each["bytes"] for each in json.loads(cli("cache", "--json", tmp_path / "c").out))
    cli("cache", tmp_path / "c", "--trim", str(total // 2))
    assert read(store, "e", tmp_path / "c") == 0
    assert read(store, "d", tmp_path / "c") > 0


def test_warming_fills_a_cache_before_a_job(
    store: SmallStore, tmp_path: Path, cli: CommandLine
) -> None:
    options = [
        word for name, value in store.options("s3").items() for word in ("-o", f"{name}={value}")
    ]
    warm = ("--limit", "64MiB", "--warm", store.url("s3", "d/*"))
    assert "s3://b/d/" in cli("cache", tmp_path / "c", *warm, *options).out
    close_caches()
    assert read(store, "d", tmp_path / "c") == 0


def test_warming_says_what_is_not_in_the_cache(
    store: SmallStore, tmp_path: Path, cli: CommandLine
) -> None:
    store.objects = {f"d/s-{index:02d}.tfrecord": shard(index, 10, 100_000) for index in range(12)}
    words = [
        word for name, value in store.options("s3").items() for word in ("-o", f"{name}={value}")
    ]
    warm = ("--limit", "8MiB", "--warm", store.url("s3", "d/*"))
    done = cli("cache", tmp_path / "c", *warm, *words)
    assert " of 12 MB are not in the cache: give a larger --limit" in done.err
    kept = cli("cache", tmp_path / "c", "--limit", "64MiB", *warm[2:], *words)
    assert "are not in the cache" not in kept.err


def test_a_directory_without_a_cache_is_an_error_and_keeps_its_files(
    tmp_path: Path, cli: CommandLine
) -> None:
    (tmp_path / "x").write_bytes(b"mine")
    cli.fails(3, "this directory is no cache", "cache", tmp_path, "--clear")
    assert (tmp_path / "x").read_bytes() == b"mine"
    cli.fails(2, "--limit", "cache", tmp_path, "--warm", "s3://b/x")


def test_doctor_examines_the_disk_of_the_cache(
    store: SmallStore, tmp_path: Path, cli: CommandLine
) -> None:
    words = [
        word for name, value in store.options("s3").items() for word in ("-o", f"{name}={value}")
    ]

    def look(directory: Path, limit: str) -> dict[str, Any]:
        cache = ("-o", f"cache_dir={directory}", "-o", f"cache_bytes={limit}")
        url = store.url("s3", "d/")
        done = cli("doctor", "--json", "--no-write", *words, *cache, url)
        [row] = [row for row in json.loads(done.out)["checks"] if row["name"] == "cache"]
        return dict(row)

    good = look(tmp_path / "c", "8MiB")
    assert good["ok"] is True, good
    assert "free; it writes " in good["found"]
    large = look(tmp_path / "c", "4000000TB")
    assert large["ok"] is False
    assert "set cache_bytes to at most" in large["found"]
    (tmp_path / "link").symlink_to(tmp_path / "c")
    linked = look(tmp_path / "link", "8MiB")
    assert linked["ok"] is False
    assert "symbolic link" in linked["found"]
    assert {path.name for path in (tmp_path / "c").iterdir()} == {
        *("runs", "sets", "usage", "streamrec-cache.json")
    }
