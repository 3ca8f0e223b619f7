"""One of several processes that read their parts with PyTorch or JAX: prints its records as JSON.

python -m tests.adapters.ranked torch|jax RANK WORLD_SIZE MEETING SHARDS

The processes meet at a file (PyTorch) or a port (JAX).
"""

import json
import sys
from typing import Any

import numpy as np

from streamrec import FixedLenFeature, TFRecordDataset


def with_torch(rank: int, world_size: int, meeting: str, shards: str) -> list[Any]:
    """The records of this rank, read without a worker and by a spawned one."""
    import torch.distributed
    from torch.utils.data import DataLoader

    from streamrec.torch import IterableDataset

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size
    )
    dataset = IterableDataset(TFRecordDataset(shards).distribute())
    here = sorted(record.decode() for record in dataset)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    there = sorted(record.decode() for record in loader)
    torch.distributed.destroy_process_group()
    return [here, there]


def with_jax(rank: int, world_size: int, meeting: str, shards: str) -> list[Any]:
    """This process's part of global batches, sums over all, and its ranks under shardings of rows
    and of columns.
    """
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from streamrec.jax import Loader, rank_under

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{meeting}", world_size, rank)
    mesh = jax.make_mesh((world_size, 4), ("data", "model"))
    rows, columns = (NamedSharding(mesh, PartitionSpec(name)) for name in ("data", "model"))
    dataset = (
        TFRecordDataset(shards)
        .distribute()
        .batch(8)
        .parse_example({"id": FixedLenFeature((), np.int64)})
    )
    own, sums = [], []
    for batch in Loader(dataset, rows):
        assert batch["id"].shape == (8 * world_size,)
        own += batch["id"].addressable_data(0).tolist()
        sums.append(int(jax.jit(lambda ids: ids.sum())(batch["id"])))
    apart, shared = rank_under(rows), rank_under(columns)
    return [own, sums, [apart.rank, apart.world_size], [shared.rank, shared.world_size]]


if __name__ == "__main__":
    read = {"torch": with_torch, "jax": with_jax}[sys.argv[1]]
    print(json.dumps(read(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])))
