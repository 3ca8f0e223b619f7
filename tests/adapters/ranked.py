"""One rank of a process group, whose loader's workers are spawned: prints what it read, as JSON.

python -m tests.adapters.ranked RANK WORLD_SIZE FILE_OF_THE_GROUP SHARDS
"""

import json
import sys

import torch.distributed
from torch.utils.data import DataLoader

from streamrec import TFRecordDataset
from streamrec.torch import IterableDataset


def main(rank: int, world_size: int, meeting: str, shards: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    dataset = IterableDataset(TFRecordDataset(shards).distribute())
    here = sorted(record.decode() for record in dataset)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    there = sorted(record.decode() for record in loader)
    torch.distributed.destroy_process_group()
    print(json.dumps([here, there]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
