"""RecordSource as a map-style dataset of torch's DataLoader and of Grain, in one process and in
workers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import RecordSource, write_index_sync
from tests.adapters.conftest import LOADER_WARNINGS
from tests.runs import write_shards

torch = pytest.importorskip("torch")
grain = pytest.importorskip("grain")

from absl import flags  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

pytestmark = [pytest.mark.peer, *LOADER_WARNINGS]

RECORDS = [b"%d" % number for number in range(200)]


@pytest.fixture
def source(tmp_path: Path) -> RecordSource:
    write_index_sync(
        write_shards(tmp_path, np.split(np.array(RECORDS, object), 4)), f"{tmp_path}/x.index"
    )
    return RecordSource(f"{tmp_path}/x.index")


def as_numbers(records: Sequence[bytes]) -> Any:
    """A collate function; it is pickled for workers that are spawned."""
    return torch.tensor([int(record) for record in records])


class CountingSource(RecordSource):
    """Counts its calls."""

    calls = 0

    def __getitems__(self, numbers: Any) -> Any:
        CountingSource.calls += 1
        return super().__getitems__(numbers)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (2, "spawn")])
def test_torch_loads_each_record_once(
    source: RecordSource, workers: int, method: str | None
) -> None:
    assert source[0] == RECORDS[0]  # the parent has used it before workers are forked
    generator = torch.Generator().manual_seed(7)
    options: dict[str, Any] = {
        "generator": generator,
        "collate_fn": as_numbers,
        "num_workers": workers,
    }
    loader: Any = DataLoader(source, 16, shuffle=True, multiprocessing_context=method, **options)  # type: ignore[arg-type]
    batches = list(loader)
    assert [len(batch) for batch in batches] == [16] * 12 + [8]
    found = [int(number) for batch in batches for number in batch]
    assert sorted(found) == list(range(200))
    assert found != sorted(found)


def test_torch_fetches_a_batch_by_one_call(source: RecordSource) -> None:
    counted = CountingSource(source.index.path)
    CountingSource.calls = 0
    batches = list(DataLoader(counted, batch_size=50))  # type: ignore[arg-type]
    assert [record for batch in batches for record in batch] == RECORDS
    assert CountingSource.calls == 4


def test_grain_takes_it_as_a_source(source: RecordSource) -> None:
    dataset = grain.MapDataset.source(source).shuffle(seed=3).map(int)
    assert len(dataset) == 200
    assert sorted(dataset[number] for number in range(200)) == list(range(200))
    batches = dataset.batch(8).to_iter_dataset(
        grain.ReadOptions(num_threads=4, prefetch_buffer_size=16)
    )
    found = [int(number) for batch in batches for number in batch]
    assert sorted(found) == list(range(200))
    assert [int(number) for batch in batches for number in batch] == found


def test_grains_batched_reads_are_one_call(source: RecordSource) -> None:
    """Grain makes them if its experiment of batch pushdown is on."""
    counted = CountingSource(source.index.path)
    CountingSource.calls = 0
    assert grain.MapDataset.source(counted)._getitems([5, 150, 7]) == [
        RECORDS[5],
        RECORDS[150],
        RECORDS[7],
    ]
    assert CountingSource.calls == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_grains_data_loader_loads_each_record_once(source: RecordSource, workers: int) -> None:
    flags.FLAGS(["test"])  # Grain's workers ask for flags, which a program of absl has parsed
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers)
    assert sorted(loader) == sorted(RECORDS)
