"""What a global shuffle holds does not grow with the data set: its budget counts what is fetched too."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamrec import encode_records, write_index_sync
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.shards.manifest import ShardInfo
from streamrec.tfrecord import BLOCK, PackedLengths

FIRST_BATCH = """
import resource, sys
import numpy
from streamrec import TFRecordDataset
from streamrec.pipeline import sources

pattern, index, quality, budget, verify = sys.argv[1:]
def peak_mib(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak_mib()
dataset = TFRecordDataset(pattern, verify=bool(verify)).with_options(memory_budget=int(budget) << 20)
shuffled = dataset.global_shuffle(7, index=index, global_batch_size=256, quality=quality, window_bytes=16 << 20)
batches = iter(shuffled)
records = sum(len(next(batches)) for _ in range(3))
print(records, peak_mib() - before)
"""


def first_batches(pattern: str, index: str, quality: str, budget: int, verify: str = "yes") -> tuple[int, int]:
    """How many records the first three batches have, and by how many MiB the process grew."""
    command = [sys.executable, "-c", FIRST_BATCH, pattern, index, quality, str(budget), verify]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    records, grown = map(int, done.stdout.split())
    return records, grown


def test_an_exact_order_holds_no_more_than_its_budget(tmp_path: Path) -> None:
    """Wanted records are near each other, so that nearly all of the 170 MiB are read for each run of steps."""
    data = encode_records([b"x" * 100] * 100_000)
    for shard in range(16):
        (tmp_path / f"shard-{shard:02}").write_bytes(data)
    index = f"{tmp_path}/x.index"
    write_index_sync(f"{tmp_path}/shard-*", index)
    records, grown = first_batches(f"{tmp_path}/shard-*", index, "exact", 32)
    assert records == 768
    assert grown < 32 + 120


@pytest.mark.parametrize("quality", ["exact", "blocks"])
def test_a_thousand_million_records(tmp_path: Path, quality: str) -> None:
    """Sparse files and an index of records that were never written."""
    many, size, shards = 1_000_000_000 // 16, 100, []
    counts = np.full(-(-many // 1024), 1024)
    counts[-1] = many - 1024 * (len(counts) - 1)
    blocks = np.zeros(len(counts), BLOCK)
    blocks["base"], blocks["end"] = size, np.cumsum(counts * (size + 16))
    for number in range(16):
        path = tmp_path / f"shard-{number:02}"
        with path.open("wb") as file:
            file.truncate(many * (size + 16))
        info = ShardInfo(str(path), many, many * (size + 16), None)
        shards.append(IndexedShard(info, PackedLengths(b"", blocks, many)))
    index = tmp_path / "x.index"
    index.write_bytes(encode_index(str(index), shards))
    records, grown = first_batches(f"{tmp_path}/shard-*", str(index), quality, 256, "")
    assert records == 768
    assert grown < 300 + 256
