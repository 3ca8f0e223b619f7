"""A shard that is not what the listing, manifest, index or run has seen is an error, and not other
records.
"""

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest

import streamrec
from streamrec import StreamrecError, TFRecordDataset, bridge, encode_records
from streamrec.errors import ManifestError, ObjectChangedError, PositionMismatchError
from streamrec.pipeline.engine.states import digest_state
from streamrec.pipeline.sources.global_shuffle.job_state import job_state
from streamrec.shards import Manifest
from streamrec.storage import Storages
from tests.runs import flip_bit, in_new_interpreter, until_error
from tests.servers.real import Store
from tests.servers.resuming import stop_after
from tests.storage.contract import write_object

SIZES = {"short": 20, "long": 50_000}
"""Of each record of a shard of ten: read whole by one response, or block by block."""


class Folder:
    """A place for shards."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self.url, self.options = url, options

    def put(self, name: str, data: bytes) -> None:
        async def write() -> None:
            async with Storages(self.options) as storages:
                await write_object(await storages.at(self.url), f"{self.url}/{name}", data)

        bridge.run(write)

    def dataset(self, names: str = "x-*", **more: Any) -> streamrec.Dataset[bytes]:
        return TFRecordDataset(f"{self.url}/{names}", storage_options=self.options, **more)


@pytest.fixture(params=["local", "s3_store", "gcs_store", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    if request.param == "local":
        yield Folder(str(tmp_path), {})
    elif request.param == "memory":
        yield Folder(f"memory://{uuid4().hex}", {})
    else:
        store: Store = request.getfixturevalue(request.param)
        yield Folder(f"{store.url}/{uuid4().hex}", store.options)


def shard(number: int, size: int, count: int = 10) -> bytes:
    return encode_records([b"%d-%d" % (number, row) + b"-" * size for row in range(count)])


CHANGES: dict[str, Callable[[int], bytes]] = {
    "cut": lambda size: shard(1, size, 9),
    "emptied": lambda size: b"",
    "longer": lambda size: shard(1, size, 11),
    "replaced": lambda size: shard(7, size),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_changed_since_it_was_listed(folder: Folder, size: str, change: str) -> None:
    for number in range(3):
        folder.put(f"x-{number}", shard(number, SIZES[size]))
    dataset = folder.dataset()
    assert len(list(dataset)) == 30  # what was listed is kept for all epochs
    folder.put("x-1", CHANGES[change](SIZES[size]))
    seen, _ = until_error(
        dataset, ObjectChangedError, r"x-1.* when it was listed.*make the Dataset again"
    )
    assert [record[:3] for record in seen] == [b"0-%d" % row for row in range(10)]
    assert (
        len(list(folder.dataset()))
        == len(CHANGES[change](SIZES[size])) // (len(shard(1, SIZES[size])) // 10) + 20
    )


@pytest.mark.parametrize(
    "changed", [(0, b""), (4, None), (4, shard(4, 20, 9)), (2, shard(7, 20)), (9, b"")]
)
@pytest.mark.parametrize("reads", [1, 3])
def test_a_run_does_not_go_on_with_other_shards(
    folder: Folder, changed: tuple[int, bytes | None], reads: int
) -> None:
    """A shard was added, removed, cut or replaced since the state was saved: its places are others
    now.
    """
    for number in range(1, 5):
        folder.put(f"x-{number}", shard(number, 20))
    taken, state = stop_after(folder.dataset(num_parallel_reads=reads), 12)
    assert sorted([*taken, *folder.dataset(num_parallel_reads=reads).iterate(state)]) == sorted(
        folder.dataset()
    )
    number, data = changed
    if data is None:
        filesystem, path = fsspec.url_to_fs(f"{folder.url}/x-{number}", **folder.options)
        filesystem.rm(path)
    else:
        folder.put(f"x-{number}", data)
    with pytest.raises(
        PositionMismatchError, match="matched other shards, or shards of other sizes"
    ):
        list(folder.dataset(num_parallel_reads=reads).iterate(state))


@pytest.mark.parametrize("changed", [1, 2])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reads", [1, 3])
def test_shards_given_by_name_that_changed_before_a_run_continues(
    folder: Folder, changed: int, size: str, reads: int
) -> None:
    """Nothing was listed: a state knows the shards whose records it counts, whole or begun."""
    for number in range(1, 5):
        folder.put(f"x-{number}", shard(number, SIZES[size]))
    names = [f"{folder.url}/x-{number}" for number in range(1, 5)]

    def dataset() -> streamrec.Dataset[bytes]:
        return TFRecordDataset(names, num_parallel_reads=reads, storage_options=folder.options)

    taken, state = stop_after(dataset(), 13)
    assert [*taken, *dataset().iterate(state)] == list(dataset())
    folder.put(f"x-{changed}", shard(changed, SIZES[size] + 1))
    if (changed, reads) == (1, 1):  # all of its records came, and none of them is skipped
        assert list(dataset().iterate(state)) == list(dataset())[13:]
    else:
        with pytest.raises(ObjectChangedError, match=f"x-{changed}"):
            list(dataset().iterate(state))


@pytest.mark.parametrize("count", [12, 20, 30])
def test_a_share_does_not_go_on_with_other_shards(folder: Folder, count: int) -> None:
    """Where the one reader has all of them, no cut between shards moves."""
    for number in range(3):
        folder.put(f"x-{number}", shard(number, 20))
    taken, state = stop_after(folder.dataset().distribute(0, 1), 12)
    assert [*taken, *folder.dataset().distribute(0, 1).iterate(state)] == list(folder.dataset())
    folder.put("x-1", shard(1, 20, count))
    with pytest.raises(
        PositionMismatchError, match="names, sizes or numbers of records of the shards"
    ):
        list(folder.dataset().distribute(0, 1).iterate(state))


def test_names_of_which_a_listing_found_a_part(tmp_path: Path) -> None:
    """With many names a rank, those that are not listed cheaply count as equally large; the others
    are compared.
    """
    names = [tmp_path / "listed" / f"x-{number}" for number in range(10)]
    names += [tmp_path / "full" / f"x-{number}" for number in range(70)]
    for path in [*names, *(tmp_path / "full" / f"x-other-{number}" for number in range(150))]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(shard(1, 20))
    dataset = TFRecordDataset(names).distribute(0, 1)
    assert len(list(dataset)) == 800
    names[0].write_bytes(shard(1, 20, 9))
    with pytest.raises(ObjectChangedError, match="listed/x-0"):
        list(dataset)


@pytest.mark.parametrize("compressed", [False, True])
def test_it_is_compared_however_work_is_dealt(folder: Folder, compressed: bool) -> None:
    pack = gzip.compress if compressed else bytes
    for number in range(2):
        folder.put(f"x-{number}", pack(shard(number, 5000)))
    manifest = f"{folder.url}/m.json"
    streamrec.write_manifest_sync(f"{folder.url}/x-*", manifest, storage_options=folder.options)
    ways: list[dict[str, Any]] = [{}, {"even": "pad", "manifest": manifest}, {"manifest": manifest}]
    for name in ("x-*", "x-{0..1}"):
        for how in ways:
            ranks = [folder.dataset(name).distribute(rank, 2, **how) for rank in range(2)]
            assert sum(len(list(own)) for own in ranks) == 20
            folder.put("x-1", pack(shard(1, 5000, 9)))
            with pytest.raises(StreamrecError, match=r"x-1.*written since"):
                for own in ranks:
                    list(own)
            folder.put("x-1", pack(shard(1, 5000)))


@pytest.mark.parametrize("count", [1500, 700])
@pytest.mark.parametrize("even", ["drop", "pad", "cycle"])
@pytest.mark.parametrize("name", ["x-0", "x-*"])
def test_a_stale_manifest(tmp_path: Path, count: int, even: Any, name: str) -> None:
    folder = Folder(str(tmp_path), {})
    folder.put("x-0", shard(0, 5, 1000))
    manifest = f"{tmp_path}/m.json"
    streamrec.write_manifest_sync(f"{tmp_path}/x-0", manifest)
    assert len(list(folder.dataset(name).distribute(0, 2, even=even, manifest=manifest))) == 500
    folder.put("x-0", shard(0, 5, count))
    for rank in range(2):
        with pytest.raises(
            ManifestError,
            match=r"m\.json says that this shard has [\d,]+ bytes.*write_manifest_sync",
        ):
            list(folder.dataset(name).distribute(rank, 2, even=even, manifest=manifest))
    streamrec.write_manifest_sync(f"{tmp_path}/x-0", manifest)
    assert (
        len(list(folder.dataset(name).distribute(0, 2, even=even, manifest=manifest))) == count // 2
    )


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("even", ["drop", "pad", "cycle", None])
@pytest.mark.parametrize("size", SIZES)
def test_a_false_number_of_records(tmp_path: Path, wrong: int, even: Any, size: str) -> None:
    """The size is right: only a reader of the whole shard can know; all records that are there come
    before.
    """
    folder = Folder(str(tmp_path), {})
    for number in range(2):
        folder.put(f"x-{number}", shard(number, SIZES[size]))
    manifest = f"{folder.url}/m.json"
    first, second = streamrec.write_manifest_sync(
        f"{folder.url}/x-*", manifest, storage_options=folder.options
    )
    shards = first, replace(second, records=10 + wrong)
    folder.put("m.json", Manifest(manifest, first.path, "", shards).to_json())
    told = rf"x-1: .*m\.json says .* {10 + wrong} records, and it has 10"
    seen, _ = until_error(
        folder.dataset().distribute(0, 1, even=even, manifest=manifest), ManifestError, told
    )
    assert len(seen) == (19 if wrong < 0 else 20)


def test_skipped_damage_does_not_contradict_the_manifests_number_of_records(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(shard(0, 20))
    streamrec.write_manifest_sync(str(tmp_path / "x"), f"{tmp_path}/m.json")
    flip_bit(tmp_path / "x", 30)
    dataset = TFRecordDataset(str(tmp_path / "x"), on_error="skip_record")
    assert len(list(dataset.distribute(0, 1, even="pad", manifest=f"{tmp_path}/m.json"))) == 10


def rewrite(path: Path) -> None:
    """Writes other records of the same size in place."""
    with path.open("r+b") as opened:
        opened.write(bytes(path.stat().st_size))
    os.utime(path, ns=(1, 1))


def cut_off(path: Path) -> None:
    os.truncate(path, 5000)


@pytest.fixture(params=["", ".gz"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Larger than what a run of a small budget reads ahead."""
    path = tmp_path / f"train.tfrecord{request.param}"
    data = encode_records([b"%04d" % index + os.urandom(10_000) for index in range(4000)])
    path.write_bytes(gzip.compress(data, 0) if request.param else data)
    return path


@pytest.mark.parametrize("change", [rewrite, cut_off])
def test_nothing_that_changed_is_handed_out(file: Path, change: Callable[[Path], None]) -> None:
    wanted = set(TFRecordDataset(str(file)))
    records = TFRecordDataset(str(file), buffer_size=100_000).with_options(memory_budget=8_000_000)
    batches = records.shuffle(20, seed=1).batch(4).iterate()
    assert set(next(batches)) <= wanted
    change(file)
    found, error = until_error(batches, ObjectChangedError, "replaced while it was being read")
    assert {record for batch in found for record in batch} <= wanted
    assert error.path == str(file)


def test_a_name_that_goes_to_another_file_is_not_a_change(file: Path) -> None:
    wanted = list(TFRecordDataset(str(file)))
    records = iter(TFRecordDataset(str(file), buffer_size=100_000))
    found = [next(records)]
    other = file.with_suffix(".new")
    other.write_bytes(encode_records([b"new"] * 10))
    other.replace(file)
    assert [*found, *records] == wanted


# Records of the same lengths.

WAYS = ("pattern", "names", "manifest", "index", "share", "counted share", "global shuffle")


def write_again(folder: Folder, tag: str, numbers: Iterable[int] = range(4)) -> None:
    """Writes shards of equal lengths, and what describes them."""
    for number in numbers:
        folder.put(
            f"x-{number}", encode_records([f"{tag}{number}-{row}".encode() for row in range(10)])
        )
    how: dict[str, Any] = {"storage_options": folder.options}
    streamrec.write_manifest_sync(f"{folder.url}/x-*", f"{folder.url}/m.json", **how)
    streamrec.write_index_sync(f"{folder.url}/x-*", f"{folder.url}/i.index", **how)


def dataset_of(folder: Folder, way: str, reads: int = 1) -> streamrec.Dataset[bytes]:
    names = {"pattern": "x-*", "manifest": "m.json", "index": "i.index"}.get(way, "x-{0..3}")
    data = folder.dataset(names, num_parallel_reads=reads)
    if way == "share":
        return data.distribute(0, 1)
    if way == "counted share":
        return data.distribute(0, 1, even="pad", manifest=f"{folder.url}/m.json")
    return (
        data.global_shuffle(1, index=f"{folder.url}/i.index") if way == "global shuffle" else data
    )


def assert_refused(dataset: streamrec.Dataset[bytes], state: Any) -> None:
    """Neither a record of the new shards, nor a whole run."""
    found: list[bytes] = []
    with pytest.raises(
        (ObjectChangedError, PositionMismatchError),
        match=r"writ|replaced|have changed|matched other",
    ):
        found.extend(dataset.iterate(state))
    assert not any(record.startswith(b"B") for record in found)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reads", [1, 3])
def test_a_run_does_not_go_on_with_other_records_of_the_same_lengths(
    folder: Folder, way: str, reads: int
) -> None:
    """In a second epoch the versions of all shards are known, and those that are left count."""
    write_again(folder, "A")
    dataset = dataset_of(folder, way, reads).repeat(2)
    taken, state = stop_after(dataset, 45)
    assert sorted([*taken, *dataset.iterate(state)]) == sorted(dataset)
    with dataset.iterate(state) as run:  # it has opened few shards itself
        next(run)
        later = run.state_dict()
    write_again(folder, "B", [3])
    for saved in (state, later):
        assert_refused(dataset_of(folder, way, reads).repeat(2), json.loads(json.dumps(saved)))


@pytest.mark.parametrize("way", WAYS)
def test_the_open_shards_and_the_next_are_compared_in_the_first_epoch(
    folder: Folder, way: str
) -> None:
    write_again(folder, "A")
    taken, state = stop_after(dataset_of(folder, way), 12)
    assert [*taken, *dataset_of(folder, way).iterate(state)] == list(dataset_of(folder, way))
    write_again(folder, "B", [1, 2, 3])
    assert_refused(dataset_of(folder, way), state)


def of_an_earlier_release(state: Any) -> Any:
    """A state without the versions of shards."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without(part) for key, part in value.items() if key != "versions"}
        return value

    old = {key: value for key, value in without(state).items() if key != "digest"}
    assert len(json.dumps(old)) < len(json.dumps(state))
    return {**old, "digest": digest_state(old)}


@pytest.mark.parametrize("way", WAYS)
def test_a_state_of_an_earlier_release_is_resumed_with_one_warning(
    tmp_path: Path, way: str
) -> None:
    """A warning comes once in a process, so each way has its own."""
    program = (
        "import logging, sys\n"
        "logging.basicConfig(stream=sys.stdout)\n"
        "from tests.pipeline.sources.test_changed_shards import *\n"
        "folder, way = Folder(sys.argv[1], {}), sys.argv[2]\n"
        "write_again(folder, 'A')\n"
        "taken, state = stop_after(dataset_of(folder, way), 12)\n"
        "old = of_an_earlier_release(state)\n"
        "for _ in range(2):\n"
        "    rest = list(dataset_of(folder, way).iterate(old))\n"
        "    assert [*taken, *rest] == list(dataset_of(folder, way))\n"
    )
    said = in_new_interpreter(program, tmp_path, way)
    told = 0 if way in ("pattern", "index", "share") else 1
    assert said.count("saved by an earlier release") == told


def test_the_state_of_a_whole_job_keeps_the_versions(folder: Folder) -> None:
    write_again(folder, "A")
    _, state = stop_after(dataset_of(folder, "global shuffle"), 5)
    job = job_state([state])
    assert len(list(dataset_of(folder, "global shuffle").iterate(job))) == 35
    write_again(folder, "B", [2])
    assert_refused(dataset_of(folder, "global shuffle"), job)
