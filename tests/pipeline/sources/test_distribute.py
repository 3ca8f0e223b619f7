"""distribute: ranks and loader workers read each record once, as many records each where they are
to, and resume.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import (
    Dataset,
    TFRecordDataset,
    TFRecordWriter,
    encode_records,
    write_index_sync,
    write_manifest_sync,
)
from streamrec.errors import CacheError, ManifestError, PositionMismatchError
from streamrec.pipeline.engine.ranks import Rank, Reader, rank_here, reader_here
from tests.effort import drawn_examples
from tests.pipeline.stored_shards import all_records, folder_of, record, shares_of_rank
from tests.runs import in_new_interpreter, write_shards
from tests.servers.objectstore import ObjectStore
from tests.servers.real import Store
from tests.servers.resuming import assert_resumes_everywhere, stop_after


@given(
    st.lists(st.integers(0, 25), min_size=1, max_size=6),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from([1, 30]),
    st.data(),
)
@drawn_examples(25)
def test_readers_of_any_shards_read_each_record_once(
    counts: list[int], world: int, cycle: int, size: int, data: st.DataObject
) -> None:
    compressed = data.draw(st.lists(st.booleans(), max_size=len(counts)))
    folder = folder_of(counts, size=size, compressed=compressed)
    everything = sorted(all_records(counts, size))
    seen = [list(shares_of_rank(folder, rank, world, cycle)) for rank in range(world)]
    assert sorted(record for own in seen for record in own) == everything
    sizes = [sum(map(len, own)) for own in seen]
    if not any(compressed) and sum(counts) > 10 * world:
        assert max(sizes) <= 1.06 * sum(sizes) / world + 3 * len(record(0, 2, size))
    for even in ("pad", "drop", "cycle"):
        own = [
            list(
                shares_of_rank(
                    folder, rank, world, cycle, even=even, manifest=f"{folder}/manifest.json"
                )
            )
            for rank in range(world)
        ]
        total, each = len(everything), len(own[0])
        assert {len(records) for records in own} == {
            total // world if even == "drop" else -(-total // world)
        }
        found = Counter(record for records in own for record in records)
        assert len(found) == (each * world if even == "drop" else total)
        assert sum(found.values()) == each * world


def test_pad_and_cycle_repeat_records_and_drop_leaves_the_last_ones_out() -> None:
    folder = folder_of([6, 5])
    manifest = f"{folder}/manifest.json"
    everything = all_records([6, 5])
    pad, drop, cycle = (
        [list(shares_of_rank(folder, rank, 3, even=even, manifest=manifest)) for rank in range(3)]
        for even in ("pad", "drop", "cycle")
    )
    assert pad == [everything[:4], everything[4:8], everything[8:] + everything[:1]]
    assert drop == [everything[:3], everything[3:6], everything[6:9]]
    assert cycle == [everything[:3] + everything[:1], everything[3:7], everything[7:11]]


def test_losses_do_not_make_a_rank_shorter() -> None:
    folder = folder_of([10, 10])
    with fsspec.open(f"{folder}/train-001", "r+b") as file:
        file.seek(20)
        file.write(b"?")
    dataset = TFRecordDataset(f"{folder}/train-*", on_error="skip_record")
    for even in ("pad", "drop", "cycle"):
        manifest = f"{folder}/manifest.json"
        own = [list(dataset.distribute(rank, 2, even=even, manifest=manifest)) for rank in range(2)]
        assert [len(records) for records in own] == [10, 10]
        assert own[1] == [*all_records([0, 10])[1:], record(1, 1)]


def test_a_manifest_of_nothing_but_losses_ends() -> None:
    folder = folder_of([3])
    with fsspec.open(f"{folder}/train-000", "r+b") as file:
        file.write(b"x")
    dataset = TFRecordDataset(f"{folder}/train-*", on_error="skip_shard")
    with pytest.raises(ManifestError, match="none of the records that it lists"):
        list(dataset.distribute(0, 1, even="pad", manifest=f"{folder}/manifest.json"))


def test_marks_skip_the_bytes_before_them(tmp_path: Path) -> None:
    records = [b"%02d" % number + b"-" * (1 << 20) for number in range(40)]
    [shard], manifest = write_shards(tmp_path, [records]), f"{tmp_path}/manifest.json"
    write_manifest_sync(shard, manifest)
    elements = TFRecordDataset(shard).distribute(3, 4, even="pad", manifest=manifest).iterate()
    assert list(elements) == records[30:]
    assert sum(counts.bytes for counts in elements.stats().storage.backends.values()) < 20 << 20


def test_a_shard_that_the_manifest_does_not_name() -> None:
    folder = folder_of([2, 2])
    with fsspec.open(f"{folder}/train-007", "wb") as file:
        file.write(encode_records([b"late"]))
    with pytest.raises(ManifestError, match=r"does not name .*train-007"):
        list(shares_of_rank(folder, 0, 2, even="drop", manifest=f"{folder}/manifest.json"))


def test_the_environment_says_who_iterates() -> None:
    assert rank_here({}, {}) == Rank(0, 1)
    assert rank_here({"RANK": "2", "WORLD_SIZE": "4"}, {}) == Rank(2, 4)
    for environ in (
        {"RANK": "1"},
        {"WORLD_SIZE": "2"},
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "x"},
    ):
        with pytest.raises(ValueError, match="set both RANK, from 0, and WORLD_SIZE"):
            rank_here(environ, {})

    def torch(up: bool) -> Any:
        return SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: up,
            get_rank=lambda: 3,
            get_world_size=lambda: 8,
        )

    def jax(up: bool) -> Any:
        distributed = SimpleNamespace(is_initialized=lambda: up)
        return SimpleNamespace(
            distributed=distributed, process_index=lambda: 5, process_count=lambda: 6
        )

    environ = {"RANK": "0", "WORLD_SIZE": "2"}
    assert rank_here(environ, {"torch.distributed": torch(True), "jax": jax(True)}) == Rank(3, 8)
    assert rank_here(environ, {"torch.distributed": torch(False), "jax": jax(True)}) == Rank(5, 6)
    assert rank_here(environ, {"torch.distributed": torch(False), "jax": jax(False)}) == Rank(0, 2)
    assert reader_here(Rank(1, 4)) == Reader(1, 4)


CHILD = """
import sys, streamrec
print(len(list(streamrec.TFRecordDataset(sys.argv[1]).distribute())), "torch" in sys.modules, "jax" in sys.modules)
"""  # noqa: E501


def test_processes_find_their_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [path] = write_shards(tmp_path, [[b"%05d" % number for number in range(1000)]])
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        found.append(in_new_interpreter(CHILD, path).split())
    assert [own[1:] for own in found] == [["False", "False"]] * 2
    assert sum(int(own[0]) for own in found) == 1000
    assert abs(int(found[0][0]) - 500) < 30


@pytest.mark.parametrize("store", ["s3_store", "gcs_store"])
def test_pieces_of_a_large_shard_in_a_store(store: str, request: pytest.FixtureRequest) -> None:
    place: Store = request.getfixturevalue(store)
    url = f"{place.url}/distribute/large"
    records = [
        b"%06d" % number + b"-" * (number % 5000) for number in range(8000)
    ]  # 20 MB: cut by parallel ranges
    with TFRecordWriter(url, storage_options=place.options) as writer:
        for payload in records:
            writer.write(payload)
    dataset = TFRecordDataset(f"{url}*", storage_options=place.options).distribute()
    seen = [list(dataset.with_options(rank=rank, world_size=3)) for rank in range(3)]
    assert [record for own in seen for record in own] == records
    sizes = [sum(map(len, own)) for own in seen]
    assert max(sizes) - min(sizes) < sum(sizes) / 3 * 0.02
    second = dataset.with_options(rank=1, world_size=3)
    before, state = stop_after(second, 700)
    assert before + list(second.iterate(state)) == seen[1]


def counts_and_warnings(
    ranks: Sequence[Dataset[Any]], caplog: pytest.LogCaptureFixture
) -> tuple[list[int], list[str]]:
    """How many elements each rank gets in two epochs, and what was said about that."""
    caplog.clear()
    counts = [sum(1 for _ in dataset) for dataset in ranks]
    assert [sum(1 for _ in dataset) for dataset in ranks] == counts
    return counts, [entry.message for entry in caplog.records if entry.levelname == "WARNING"]


def ranks_of(
    counts: Sequence[int], world: int, even: bool = False, **shards: Any
) -> list[Dataset[bytes]]:
    folder = folder_of(counts, **shards)
    options = {"even": "drop", "manifest": f"{folder}/manifest.json"} if even else {}
    return [shares_of_rank(folder, rank, world, **options) for rank in range(world)]


TWO_COMPRESSED = {"compressed": [True, True]}
WORDS_OF_WARNING = ["of 4 ranks, these get nothing of ", "/train-000 and 1 more: 2, 3. "]
WORDS_OF_WARNING += ["more shards", "uncompressed", "'drop'"]


@pytest.mark.parametrize(
    ("ranks", "counts", "words"),
    [
        (lambda: ranks_of([50, 50], 4, **TWO_COMPRESSED), [50, 50, 0, 0], WORDS_OF_WARNING),
        (lambda: ranks_of([50, 50], 4, **TWO_COMPRESSED)[1:2], [50], []),
        (lambda: ranks_of([50, 50], 4, **TWO_COMPRESSED)[3:], [0], WORDS_OF_WARNING),
        (lambda: ranks_of([50, 50], 4, even=True, **TWO_COMPRESSED), [25] * 4, []),
        (
            lambda: ranks_of([400, 2], 2, size=1000, **TWO_COMPRESSED),
            [400, 2],
            ["times as much as rank 1 of"],
        ),
        (lambda: ranks_of([40, 50], 2), [45, 45], []),
        (
            lambda: ranks_of([2, 1], 4, even=True),
            [0] * 4,
            ["even='drop' gives no records to 4 readers"],
        ),
    ],
)
def test_shares_that_are_empty_or_far_smaller_are_reported_once(
    ranks: Callable[[], Sequence[Dataset[bytes]]],
    counts: list[int],
    words: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Compressed shards cannot be cut: with fewer of them than ranks, some ranks have none."""
    found, said = counts_and_warnings(ranks(), caplog)
    assert found == pytest.approx(counts, abs=0 if words else 2)
    assert len(said) == bool(words)
    assert all(word in text for text in said for word in words)


def test_parts_of_shards_in_which_no_record_begins_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counts, said = counts_and_warnings(ranks_of([1, 1], 4, size=100_000), caplog)
    assert sorted(counts) == [0, 0, 1, 1]
    assert [text.split(" got no records")[0] for text in said] == [
        f"reader {rank} of 4 (ranks times loader workers)"
        for rank, count in enumerate(counts)
        if not count
    ]


def test_a_global_shuffle_of_fewer_records_than_ranks_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = folder_of([2, 1])
    write_index_sync(f"{folder}/train-*", f"{folder}/train.index")
    records = TFRecordDataset(f"{folder}/train-*")
    ranks = [
        records.global_shuffle(1, index=f"{folder}/train.index", rank=rank, world_size=5)
        for rank in range(5)
    ]
    counts, [said] = counts_and_warnings(ranks, caplog)
    assert counts == [1, 1, 1, 0, 0]
    assert said.startswith(
        f"of 5 ranks, these get nothing of the 3 records of {folder}/train.index: 3, 4. Pass even="
    )


@pytest.mark.filterwarnings("ignore:window_bytes and slot_groups")
def test_blocks_of_a_global_shuffle_that_many_ranks_read_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = folder_of([100, 100])
    write_index_sync(f"{folder}/train-*", f"{folder}/train.index")

    def ranks(groups: int | None) -> list[Dataset[Any]]:
        records = TFRecordDataset(f"{folder}/train-*")
        shuffled = records.global_shuffle(
            1,
            index=f"{folder}/train.index",
            quality="blocks",
            global_batch_size=100,
            slot_groups=groups,
        )
        return [shuffled.with_options(rank=rank, world_size=50) for rank in range(50)]

    assert counts_and_warnings(ranks(None), caplog)[1] == []
    _, [said] = counts_and_warnings(ranks(20), caplog)
    assert (
        "20 groups of slots for 50 ranks, so about 2 ranks read each block: pass slot_groups=50"
        in said
    )
    assert counts_and_warnings(ranks(50), caplog)[1] == []


def test_shard_of_a_shorter_list_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    names = Dataset.from_tensor_slices(["a", "b"])
    counts, [said] = counts_and_warnings([names.shard(97, rank) for rank in (0, 1, 96)], caplog)
    assert counts == [1, 1, 0]
    assert said.startswith("shard(97, 96) gives no elements: its input has only 2.")


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_no_rank_asks_for_each_shard(tmp_path: Path, scheme: str) -> None:
    """Sizes come from listings; a server that cannot list has shards of one size."""
    write_shards(
        tmp_path / "bucket" / "data", ([record(number, 0)] for number in range(1500)), "shard-{:04}"
    )
    with ObjectStore(tmp_path) as store:
        urls = [store.url_of(scheme, f"bucket/data/shard-{number:04}") for number in range(1500)]
        once = streamrec.RetryPolicy(hedge_share=0)
        dataset = TFRecordDataset(urls, storage_options=store.options(scheme), retry=once)
        for world in (75, 2):
            before = store.counters.requests
            assert list(dataset.distribute(0, world)) == [
                record(number, 0) for number in range(0, 1500, world)
            ]
            assert store.counters.requests - before <= 1500 / world + 3


def test_no_rank_looks_into_each_shard_that_is_cut(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    write_shards(bucket, ([record(number, index) for index in range(9)] for number in range(150)))
    options = streamrec.TFRecordOptions("GZIP")
    with ObjectStore(tmp_path) as store:
        for _ in range(2):
            dataset = TFRecordDataset("s3://bucket/*", storage_options=store.options())
            before = store.counters.requests
            own = [list(dataset.distribute(rank, 100)) for rank in (0, 49)]
            assert all(own)
            assert store.counters.requests - before <= 2 * (64 + 10)
            for path in bucket.iterdir():  # and the same of compressed ones, of which none is cut
                with TFRecordWriter(str(path), options) as writer:
                    writer.write(record(0, 0))


@pytest.mark.parametrize(
    ("counts", "rank", "world", "options"),
    [
        ([20, 5], 1, 3, {}),
        ([9, 9, 9], 0, 2, {}),
        ([12, 5], 2, 3, {"even": "pad"}),
        ([6, 5], 0, 3, {"even": "cycle"}),
        ([12, 5], 1, 2, {"even": "drop"}),
        ([2], 3, 7, {"even": "pad"}),
    ],
)
@pytest.mark.parametrize("cycle", [1, 2])
@pytest.mark.parametrize("batch", [None, 2])
def test_resumes(
    counts: list[int], rank: int, world: int, options: dict[str, Any], cycle: int, batch: int | None
) -> None:
    folder = folder_of(counts)
    if options:
        options = {**options, "manifest": f"{folder}/manifest.json"}
    dataset: Dataset[Any] = shares_of_rank(folder, rank, world, cycle, **options).repeat(2)
    assert_resumes_everywhere(dataset if batch is None else dataset.batch(batch))


@pytest.mark.parametrize("options", [{}, {"even": "pad"}])
def test_shuffled_shares_resume_by_reference(options: dict[str, Any]) -> None:
    folder = folder_of([12, 5, 9], compressed=[False, True])
    if options:
        options = {**options, "manifest": f"{folder}/manifest.json"}
    dataset = shares_of_rank(folder, 1, 3, 2, **options).shuffle(4, seed=1).repeat(2)
    assert sorted(dataset) == sorted(list(shares_of_rank(folder, 1, 3, 2, **options)) * 2)
    assert_resumes_everywhere(dataset)
    _, state = stop_after(dataset, 1)
    assert '"offset": [' in json.dumps(state)  # references, and no numbers of elements


def test_resumes_in_any_order() -> None:
    folder = folder_of([20, 5, 8])
    dataset = TFRecordDataset(f"{folder}/train-*", cycle_length=2, deterministic=False).distribute(
        1, 2
    )
    own = sorted(dataset)
    for stop in (0, 3, len(own)):
        before, state = stop_after(dataset, stop)
        assert sorted([*before, *dataset.iterate(state)]) == own


def test_a_state_of_another_rank_or_of_other_shards_is_refused() -> None:
    folder = folder_of([20, 5])
    dataset = TFRecordDataset(f"{folder}/train-*").distribute()
    for read in (dataset.shuffle(5, seed=1), dataset):
        _, state = stop_after(read.with_options(rank=0, world_size=2), 1)
        with pytest.raises(
            PositionMismatchError, match="saved by reader 0 of 2, and this is reader 1 of 2"
        ):
            list(read.with_options(rank=1, world_size=2).iterate(state))
    with pytest.raises(PositionMismatchError, match="reader 0 of 2, and this is reader 0 of 3"):
        list(dataset.with_options(rank=0, world_size=3).iterate(state))
    with pytest.raises(
        PositionMismatchError,
        match=r"with Distribute\(even=None\) where this one has Distribute\(Rank",
    ):
        shares_of_rank(folder, 0, 2).iterate(state)
    with fsspec.open(f"{folder}/train-000", "ab") as file:
        file.write(encode_records([b"more"]))
    dataset = TFRecordDataset(f"{folder}/train-*").distribute()
    with pytest.raises(PositionMismatchError, match="names, sizes or numbers of records"):
        list(dataset.with_options(rank=0, world_size=2).iterate(state))


def test_the_cache_of_another_reader_is_refused(tmp_path: Path) -> None:
    folder = folder_of([20, 5])
    dataset = TFRecordDataset(f"{folder}/train-*").distribute().cache(tmp_path / "cache")
    own = list(dataset.with_options(rank=0, world_size=2))
    assert list(dataset.with_options(rank=0, world_size=2)) == own
    (tmp_path / "cache-00000-of-00002").rename(tmp_path / "cache-00001-of-00002")
    with pytest.raises(CacheError):
        list(dataset.with_options(rank=1, world_size=2))
