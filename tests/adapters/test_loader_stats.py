"""What a training loop's loader says of itself: statistics, progress, traces; also of workers."""

import gc
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, RaggedTensor, TFRecordDataset
from streamrec.pipeline import Stats
from streamrec.pipeline.telemetry.sums import sum_stats
from streamrec.pipeline.watching import count_tokens
from tests.adapters.conftest import FEATURES, LOADER_WARNINGS, write_numbered

data = pytest.importorskip("torch.utils.data")

from streamrec.torch import IterableDataset, Loader  # noqa: E402

pytestmark = [pytest.mark.peer, *LOADER_WARNINGS]

RECORDS, BATCH = 400, 10


def with_lengths(batch: Any) -> Any:
    return {**batch, "length": batch["id"] % 7}


@pytest.fixture
def batches(tmp_path: Path) -> Dataset[Any]:
    """Batches of four shards, each with the lengths of its rows."""
    for shard in range(4):
        path = tmp_path / f"train-{shard}"
        write_numbered(path, RECORDS // 4)
    records = TFRecordDataset(str(tmp_path / "train-*")).distribute()
    return records.batch(BATCH).parse_example(FEATURES).map(with_lengths)


def test_a_loader_counts_the_samples_that_it_gave(batches: Any) -> None:
    loader = Loader(batches, tokens="length")
    assert loader.stats().bottleneck == "nothing yet"
    iterator = iter(loader)
    assert iterator.stats().elements == 0
    lengths = [int(next(iterator)["length"].sum()) for _ in range(3)]
    for stats in (loader.stats(), iterator.stats()):
        assert (stats.samples, stats.tokens) == (3 * BATCH, sum(lengths))
    lengths += [int(batch["length"].sum()) for batch in iterator]
    stats = loader.stats()
    assert (stats.samples, stats.tokens) == (RECORDS, sum(lengths))
    assert stats.samples_per_second == pytest.approx(RECORDS / stats.seconds)
    assert stats.tokens_per_second == pytest.approx(sum(lengths) / stats.seconds)
    assert "samples/s" in str(stats)
    assert "tokens/s" in str(stats)
    assert stats.records == RECORDS
    assert [stage.title for stage in stats.stages][-1].startswith("map")


def test_a_slow_step_is_the_bottleneck_of_its_loop() -> None:
    def slow(number: Any) -> Any:
        time.sleep(0.01)
        return number

    loader = Loader(Dataset.range(20).map(slow).batch(1))
    for _ in loader:
        pass
    assert "slow" in loader.stats().bottleneck
    loader = Loader(Dataset.range(20).batch(1))
    for _ in loader:
        time.sleep(0.01)
    assert loader.stats().bottleneck == "the consumer"


def test_a_loader_shows_progress_and_writes_a_trace_for_each_epoch(
    batches: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loader = Loader(batches, progress=True, trace=tmp_path / "run.json")
    for _ in range(2):
        for _ in loader:
            pass
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 2
    assert all("streamrec: 40 elements" in line and "samples/s" in line for line in shown)
    for name in ("run.json", "run-epoch1.json"):
        assert json.loads((tmp_path / name).read_text())


def test_a_rank_shows_and_traces_what_is_its_own(
    batches: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in range(2):
        dataset = batches.with_options(rank=rank, world_size=2)
        loader = Loader(dataset, progress=True, trace=tmp_path / "run.json")
        assert sum(len(batch["id"]) for batch in loader) == loader.stats().samples
    assert len(capsys.readouterr().err.splitlines()) == 1  # rank 0
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "run-rank0.json",
        "run-rank1.json",
    ]


class TestWorkers:
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_statistics_are_summed_over_the_workers(
        self, method: str, batches: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        shared = IterableDataset(
            batches, tokens="length", progress=True, trace=tmp_path / "run.json"
        )
        for _ in range(2):
            loader = data.DataLoader(
                shared, batch_size=None, num_workers=2, multiprocessing_context=method
            )
            lengths = sum(int(batch["length"].sum()) for batch in loader)
            stats = shared.stats()
            assert (stats.samples, stats.tokens, stats.readers) == (RECORDS, lengths, 2)
            assert stats.records == RECORDS
            assert stats.samples_per_second == pytest.approx(RECORDS * 2 / stats.seconds)
        assert {path.name for path in tmp_path.glob("*.json")} == {
            f"run-worker{worker}{epoch}.json" for worker in range(2) for epoch in ("", "-epoch1")
        }
        assert "samples/s" in capfd.readouterr().err

    def test_statistics_of_workers_leave_no_files(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        shared = IterableDataset(Dataset.range(8).batch(2))
        loader = data.DataLoader(shared, batch_size=None, num_workers=1)
        assert len(list(loader)) == 4
        assert shared.stats().samples == 8
        [directory] = tmp_path.glob("streamrec-*")
        assert directory.stat().st_mode & 0o777 == 0o700
        del shared, loader
        gc.collect()
        assert not list(tmp_path.glob("streamrec-*"))

    def test_workers_read_where_nothing_can_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").write_text("")
        with monkeypatch.context() as patch:
            patch.setattr("tempfile.tempdir", str(tmp_path / "file"))
            shared = IterableDataset(Dataset.range(8).batch(2))
        loader = data.DataLoader(shared, batch_size=None, num_workers=1)
        assert len(list(loader)) == 4
        assert shared.stats().bottleneck == "nothing yet"


def test_an_iterable_dataset_counts_single_examples_without_workers(batches: Any) -> None:
    shared = IterableDataset(batches.unbatch(), tokens="length")
    ids = [batch["id"] for batch in data.DataLoader(shared, batch_size=8)]
    assert sum(map(len, ids)) == RECORDS
    assert shared.stats().samples == RECORDS
    assert shared.stats().readers == 1


def test_a_column_of_tokens_that_is_not_there_is_named(batches: Any) -> None:
    with pytest.raises(ValueError, match=r"tokens='count' is not a column.*\['id', 'length'\]"):
        next(iter(Loader(batches, tokens="count")))
    with pytest.raises(TypeError, match="tokens=5 must be the name of a column"):
        Loader(batches, tokens=5)  # type: ignore[arg-type]


def test_ragged_lengths_are_added_up() -> None:
    mask = RaggedTensor(np.array([1, 1, 0, 1]), (np.array([0, 1, 4]),))
    assert count_tokens({"mask": mask}, "mask") == 3


def test_a_sum_has_the_numbers_of_all_its_parts(tmp_path: Path) -> None:
    parts: list[Stats] = []
    for shard in range(3):
        path = write_numbered(tmp_path / f"train-{shard}", 10 + shard)
        run = TFRecordDataset(path).prefetch(2).batch(2).iterate()
        taken = list(run)
        run.count(samples=len(taken))
        parts.append(run.stats())
    total = sum_stats(parts)
    for name in ("elements", "bytes", "records", "bytes_read", "samples", "seconds", "readers"):
        assert getattr(total, name) == pytest.approx(sum(getattr(part, name) for part in parts))
    for row, stage in enumerate(total.stages):
        outs = [part.stages[row].elements_out for part in parts]
        assert stage.elements_out == sum(outs)
    counts = [part.storage.backends["file"] for part in parts]
    found = total.storage.backends["file"]
    assert found.requests == sum(each.requests for each in counts)
    assert found.first_byte.count == sum(each.first_byte.count for each in counts)
    assert sum_stats(parts[:1]) == parts[0]
