"""Libraries that divide a data set among the processes of a job: each record is trained on once, or
each process says what to do before its first batch.
"""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import Dataset, TFRecordDataset, encode_example
from streamrec.pipeline.dividing import check_assigned
from streamrec.pipeline.engine.dividers import OTHERS, Divider, divider_of, in_turns
from streamrec.pipeline.engine.ranks import Rank
from tests.adapters.conftest import free_port, needs

RECORDS = 400

ERRORS = {
    "dispatch=(None|True): whole, workers": "2 loader workers would each read all",
    ".*byte strings.*": "sends only tensors to the other processes, but 'name' of this dataset",
    "dispatch=False: whole.*": r"call \.distribute\(even='drop'",
    "dispatch=False: assigned": r"pass even='drop' \(or 'pad'\) and manifest=",
    ".*: ranked.*": "leave these arguments out",
    "dispatch=False: batches, batch_size=None": "pass dispatch_batches=True, or a batch_size",
    ".*: batches(, batch_size=10)?": "takes single examples",
}
"""What each process says, by the names of the ways that cannot work."""


async def write(directory: Path) -> None:
    async with streamrec.ShardWriter(
        f"{directory}/{{shard}}.tfrecord", max_shard_records=50, manifest=f"{directory}/m.json"
    ) as writer:
        for number in range(RECORDS):
            await writer.write(encode_example({"id": number, "name": b"%d" % number}))


def both_ranks(library: str, directory: Path) -> list[dict[str, Any]]:
    """What each of two processes printed, by the name of the way."""
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    command = [sys.executable, "-m", "tests.adapters.accelerated", library, str(directory)]
    ranks = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], [err[-2000:] for _, err in said]
    return [
        dict(json.loads(line) for line in out.splitlines() if line.startswith("["))
        for out, _ in said
    ]


@pytest.mark.peer
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "library",
    [
        pytest.param("accelerate", marks=needs("accelerate")),
        pytest.param("trainer", marks=needs("transformers")),
    ],
)
async def test_two_ranks_get_each_record_once_or_the_same_error(
    library: str, tmp_path: Path
) -> None:
    await write(tmp_path)
    first, second = both_ranks(library, tmp_path)
    assert first.keys() == second.keys()
    for way, found in first.items():
        expected = next((text for name, text in ERRORS.items() if re.fullmatch(name, way)), None)
        other = second[way]
        if expected is not None:
            assert found == other, way
            assert re.search(expected, found["error"]), (way, found)
            continue
        assert "error" not in found, (way, found)
        for batches, others in zip(found["epochs"], other["epochs"], strict=True):
            ids = sorted(number for batch in batches + others for number in batch)
            assert ids == list(range(RECORDS)), way
            assert found.get("len") in (None, len(batches)), way
            assert len(batches) == len(others), way
    assert sum("error" not in found for found in first.values()) > len(first) // 3


@pytest.mark.peer
@pytest.mark.parametrize("package", [pytest.param("accelerate", marks=needs("accelerate"))])
@given(
    count=st.integers(0, 40),
    batch=st.integers(1, 5),
    processes=st.integers(1, 4),
    data=st.data(),
    splits=st.booleans(),
    drops=st.booleans(),
)
def test_a_shard_of_accelerate_keeps_all_elements_of_its_process(
    package: str, count: int, batch: int, processes: int, data: Any, splits: bool, drops: bool
) -> None:
    from accelerate.data_loader import IterableDatasetShard

    size = batch * processes if splits else batch
    place = data.draw(st.integers(0, processes - 1))
    shard = IterableDatasetShard([], size, drops, processes, place, splits)  # type: ignore[arg-type]
    divider = divider_of(shard)
    assert divider is not None
    shard.dataset = list(in_turns(range(count), divider))  # type: ignore[assignment]
    kept = list(shard)
    assert OTHERS not in kept
    whole = count - count % batch
    if drops:
        assert kept == list(range(whole))
    else:
        assert kept[:count] == list(range(count))
        assert len(kept) == -(-count // batch) * batch  # repeats from the beginning


@pytest.mark.peer
@pytest.mark.parametrize("package", [pytest.param("accelerate", marks=needs("accelerate"))])
def test_a_version_that_divides_in_an_unknown_way_is_an_error(package: str) -> None:
    from accelerate.data_loader import IterableDatasetShard

    shard = IterableDatasetShard([], 1, False, 2, 0)  # type: ignore[arg-type]
    del shard.num_processes
    with pytest.raises(ValueError, match=r"does not know how this version of it does.*num_process"):
        divider_of(shard)


def test_turns_of_others_are_not_read() -> None:
    read = []
    elements = (read.append(number) or number for number in range(4))  # type: ignore[func-returns-value]
    divider = Divider(name="", rank=Rank(1, 3), batch_size=2, turn=2)
    turns = list(in_turns(elements, divider))
    assert [turns.index(number) for number in range(4)] == [2, 3, 8, 9]
    assert turns.count(OTHERS) == 8
    assert read == [0, 1, 2, 3]


def test_a_share_that_is_divided_again_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    share = TFRecordDataset(str(tmp_path / "a.tfrecord")).distribute()
    check_assigned(share.shard(2, 0), Rank(1, 2))  # a split, the same for all ranks
    check_assigned(Dataset.range(4).shard(2, 1), Rank(0, 1))
    assert not caplog.records
    check_assigned(share.shard(3, 2), Rank(2, 3))
    assert "no process reads the others: leave shard() out" in caplog.text


def test_the_log_names_the_number_of_readers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.tfrecord").write_bytes(streamrec.encode_records([b"record"] * 8))
    dataset = TFRecordDataset(str(tmp_path / "a.tfrecord")).distribute(rank=1, world_size=3)
    with caplog.at_level(logging.INFO, logger="streamrec"):
        list(dataset)
    assert "reader 1 of 3 (ranks times loader workers) reads its part of" in caplog.text
