"""Datasets as a user sees them: `for` and `async for`, stages, errors, resuming; on files that need
no server.
"""

import asyncio
import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import streamrec
from streamrec import (
    Dataset,
    TFRecordDataset,
    TFRecordWriter,
    encode_records,
    write_index_sync,
    write_manifest_sync,
)
from streamrec.errors import ManifestError, ObjectChangedError, PositionMismatchError
from tests.pipeline.stored_shards import ALL
from tests.servers.real import Store


async def collect(dataset: Dataset[Any]) -> list[Any]:
    return [element async for element in dataset]


def test_other_async_functions_say_under_trio_that_they_need_asyncio(
    files: list[str], tmp_path: Path
) -> None:
    index, manifest = f"{tmp_path}/a.index", f"{tmp_path}/m.json"
    write_index_sync(files, index)
    source = streamrec.RecordSource(index)

    async def read() -> None:
        async with streamrec.open_shard(files[0]):
            raise AssertionError

    async def write() -> None:
        async with streamrec.ShardWriter(f"{tmp_path}/new-{{shard}}"):
            raise AssertionError

    calls: list[Any] = [
        read,
        write,
        partial(source.get, [0]),
        partial(streamrec.RecordSource.open, index),
    ]
    for call in (
        *calls,
        partial(streamrec.verify, manifest),
        partial(streamrec.write_manifest, files, manifest),
    ):
        with pytest.raises(
            RuntimeError,
            match=r"need asyncio's event loop\. Under Trio .*trio\.to_thread\.run_sync",
        ):
            trio.run(call)
    in_thread: Any = partial(trio.run, trio.to_thread.run_sync)
    in_thread(write_manifest_sync, files, manifest)
    assert in_thread(streamrec.verify_sync, manifest)
    assert in_thread(source.__getitem__, 0) == ALL[0]


@pytest.mark.parametrize("kind", ["manifest.json", "all.index"])
def test_a_manifest_stands_for_its_shards(kind: str, s3_store: Store, tmp_path: Path) -> None:
    """As for the commands: in its own directory, by its own list, with the sizes that it says."""
    for folder, options in (
        (f"{tmp_path}/in", {}),
        (f"{s3_store.url}/manifests-{kind}", s3_store.options),
    ):
        for name in (b"b", b"a", b"not named"):
            with TFRecordWriter(f"{folder}/{name.decode()}", storage_options=options) as writer:
                writer.write(name)
        names, path = [f"{folder}/b", f"{folder}/a"], f"{folder}/{kind}"
        make = write_manifest_sync if kind.endswith("json") else write_index_sync
        make(names, path, storage_options=options)
        assert list(TFRecordDataset(path, storage_options=options)) == [b"b", b"a"]
        both = TFRecordDataset([path, f"{folder}/not*"], storage_options=options)
        assert list(both) == [b"b", b"a", b"not named"]
        assert list(Dataset.list_files(path, storage_options=options)) == [path.encode()]
        with TFRecordWriter(f"{folder}/a", storage_options=options) as writer:
            writer.write(b"longer")
        with pytest.raises(ObjectChangedError, match="/a"):
            list(TFRecordDataset(path, storage_options=options))
    (tmp_path / "in" / "x.json").write_text('{"a": 1}')
    with pytest.raises(ManifestError, match=r"x\.json: this JSON is not a manifest"):
        list(TFRecordDataset(f"{tmp_path}/in/x.json"))
    (tmp_path / "in" / "x.json").write_bytes((tmp_path / "in" / "b").read_bytes())
    with pytest.raises(ManifestError, match="neither a manifest nor an index"):
        list(TFRecordDataset(f"{tmp_path}/in/x.json"))


async def test_async_iteration_resumes_too(files: list[str]) -> None:
    dataset = TFRecordDataset(files, num_parallel_reads=2).batch(4)
    async with dataset.aiterate() as closed:
        first = [await anext(closed), await anext(closed)]
        state = closed.state_dict()
    with pytest.raises(streamrec.errors.ClosedError):
        await anext(closed)
    async with dataset.aiterate(state) as elements:
        rest = [element async for element in elements]
    assert list(map(list, first + rest)) == list(map(list, dataset))


def test_a_state_of_another_pipeline_is_refused(files: list[str]) -> None:
    state = TFRecordDataset(files).batch(4).iterate().state_dict()
    with pytest.raises(
        PositionMismatchError,
        match=r"with Batch\(batch_size=4.* where this one has Batch\(batch_size=5",
    ):
        TFRecordDataset(files).batch(5).iterate(state)
    ahead = TFRecordDataset(files).batch(4).prefetch(1).iterate().state_dict()
    again = TFRecordDataset(files).batch(4).prefetch(buffer_bytes=2 << 20).iterate(ahead)
    assert list(again), "how far it runs ahead is free"
    with pytest.raises(PositionMismatchError, match="with Prefetch"):
        TFRecordDataset(files).batch(4).iterate(ahead)
    with pytest.raises(PositionMismatchError, match="where this one has nothing"):
        TFRecordDataset(files).iterate(state)


NAMES = Dataset.list_files("x-*", shuffle=True, seed=4)
VALUES: dict[str, Dataset[Any]] = {
    "Batch(batch_size=3": TFRecordDataset("x-*", num_parallel_reads=2).batch(3),
    "Interleave(": Dataset.sample_from_datasets(
        [NAMES.interleave(TFRecordDataset), NAMES], [1, 2], 3
    ).skip(1),
    "ParallelMap(builtins.len, deterministic=False)": TFRecordDataset("x", on_error="resync").map(
        len, 4, False
    ),
    "Filter(builtins.len": NAMES.shard(2, 0)
    .filter(len)
    .padded_batch(2, [None], -1)
    .unbatch()
    .enumerate(),
    "Slices(": Dataset.from_tensor_slices([b"a"])
    .bucket_by_sequence_length(len, [2], [1, 2])
    .cache(),
}


@pytest.mark.parametrize("text", VALUES)
def test_a_dataset_is_a_value(text: str) -> None:
    dataset = VALUES[text]
    assert pickle.loads(pickle.dumps(dataset)) == dataset != dataset.take(1)
    assert text in repr(dataset)


def test_batches_of_one_shard_are_windows_of_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "large.tfrecord"
    path.write_bytes(encode_records(bytes(600 + index * 7919 % 200) for index in range(60_000)))
    batches = list(TFRecordDataset(str(path)).batch(1024))
    copied = [batch for batch in batches if batch.origin is None]
    assert len(batches) == 59
    assert len(copied) <= 2, "those that begin in the first, small blocks"


async def test_a_loop_over_elements_that_are_ready_lets_others_have_their_turn() -> None:
    """However many elements a chunk has; and a state within it is exact."""
    with streamrec.TFRecordWriter("memory://fair/all.tfrecord") as writer:
        for number in range(30_000):
            writer.write(b"%d" % number)
    dataset = TFRecordDataset("memory://fair/all.tfrecord")
    turns, at_turn = 0, 0
    stretches: list[int] = []

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with dataset.aiterate() as records:
        task = asyncio.create_task(others())
        seen = stretch = 0
        state = None
        async for record in records:
            assert record == b"%d" % seen
            seen, stretch = seen + 1, stretch + 1 if turns == at_turn else 1
            at_turn = turns
            stretches.append(stretch)
            if seen == 10_001:
                state = records.state_dict()
        task.cancel()
    assert seen == 30_000
    assert max(stretches) <= 4096
    with dataset.iterate(state) as rest:
        assert next(rest) == b"10001"


DESCRIPTIONS = [
    Dataset.range(9).window(3, shift=2),
    Dataset.range(9).bucket_by_sequence_length(len, [3], [1, 2]),
    TFRecordDataset("a-*.tfrecord"),
    Dataset.list_files("a-*.tfrecord", shuffle=True, seed=3),
    TFRecordDataset("a-*.tfrecord").global_shuffle(seed=1, index="a.index"),
]


@pytest.mark.parametrize("dataset", DESCRIPTIONS, ids=lambda dataset: repr(dataset.chain.source))
def test_copies_of_a_description_are_equal(dataset: Dataset[Any]) -> None:
    """Loader workers get pickled copies, and saved states compare the lines."""
    for duplicate in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert duplicate.chain == dataset.chain
        assert list(duplicate.chain.lines()) == list(dataset.chain.lines())
