"""Each block belongs to one version of one object of one store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import TFRecordDataset
from streamrec.storage.cache import close_caches, spans
from tests.servers.answering import Answer, Asked
from tests.servers.small_store import SmallStore, small_store
from tests.storage.cache.test_cached_reads import LONG, blocks, records_of, shard


@pytest.fixture
def store() -> Iterator[SmallStore]:
    with small_store({"d/s-0": shard(0, LONG)}) as running:
        yield running
    close_caches()


@pytest.fixture
def options(store: SmallStore, tmp_path: Path) -> dict[str, Any]:
    return {**store.options("s3"), "cache_dir": tmp_path / "cache", "cache_bytes": "64MiB"}


def one_tag(asked: Asked, answer: Answer) -> Answer:
    """Gives all objects the same version, as two stores may."""
    if "ETag" in answer.headers:
        answer.headers["ETag"] = '"same"'
    return answer


@pytest.mark.parametrize("records", [5, LONG])
def test_two_stores_with_the_same_names_versions_and_sizes_share_nothing(
    options: dict[str, Any], store: SmallStore, records: int
) -> None:
    """Two servers, both with a bucket `b`: their URLs differ in nothing."""
    with small_store() as other:
        for number, each in enumerate((store, other)):
            each.objects = {"d/s-0": shard(number, records)}
            each.replace = one_tag
        for _ in range(2):
            for each in (store, other):
                own = options | {"endpoint_url": each.endpoint}
                url = [each.url("s3", "d/s-0")]
                found = list(TFRecordDataset(url, storage_options=own))
                assert found == records_of(each.objects["d/s-0"])
    assert len(blocks(options["cache_dir"])) == 2


@pytest.mark.parametrize("records", [5, LONG])
def test_two_objects_of_one_version_and_size_share_nothing(
    options: dict[str, Any], store: SmallStore, records: int
) -> None:
    store.replace = one_tag
    store.objects = {f"d/s-{number}": shard(number, records) for number in range(3)}
    urls = [store.url("s3", name) for name in store.objects]
    expected = [record for data in store.objects.values() for record in records_of(data)]
    for _ in range(2):
        assert list(TFRecordDataset(urls, storage_options=options)) == expected


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_a_shard_that_is_rewritten_under_a_running_job_is_never_mixed(
    store: SmallStore,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    lost: bool,
    cached: bool,
) -> None:
    """A later pass gives the shard as it was or as it is. If the disk has only a part of the shard
    as it was, the pass ends as if the shard were rewritten while it is read.
    """
    monkeypatch.setattr(spans.segment_end, "__defaults__", (60_000,))
    old = records_of(store.objects["d/s-0"])
    new_data = shard(7, LONG)
    assert len(new_data) == len(store.objects["d/s-0"])
    storage_options = options if cached else store.options("s3")
    dataset = TFRecordDataset([store.url("s3", "d/s-0")], storage_options=storage_options)

    run = dataset.repeat(2).with_options(memory_budget=1 << 20).iterate()
    first = [next(run) for _ in range(LONG - 1)]
    assert first == old[:-1]
    store.objects["d/s-0"] = new_data
    if cached and lost:
        for path in blocks(options["cache_dir"])[::2]:
            path.unlink()
    second, error = until_error(run)
    run.close()
    assert error is None or "was replaced" in error
    assert second[0] == old[-1]
    second.pop(0)
    assert error or len(second) == LONG
    assert second in (old[: len(second)], records_of(new_data)[: len(second)])
    fresh = TFRecordDataset([store.url("s3", "d/s-0")], storage_options=storage_options)
    assert list(fresh) == records_of(new_data)


def until_error(run: Iterator[bytes]) -> tuple[list[bytes], str | None]:
    """Returns the rest of a run, and the error that ends it, if one does."""
    found = []
    try:
        for record in run:
            found.append(record)
    except streamrec.StreamrecError as error:
        return found, str(error)
    return found, None
