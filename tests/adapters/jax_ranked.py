"""One of several JAX processes with four devices each: prints what it read of global batches, as JSON.

python -m tests.adapters.jax_ranked RANK WORLD_SIZE PORT SHARDS
"""

import json
import sys

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from streamrec import FixedLenFeature, TFRecordDataset
from streamrec.jax import Loader, rank_under


def main(rank: int, world_size: int, port: int, shards: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", world_size, rank)
    mesh = jax.make_mesh((world_size, 4), ("data", "model"))
    rows, columns = (NamedSharding(mesh, PartitionSpec(name)) for name in ("data", "model"))
    dataset = TFRecordDataset(shards).distribute().batch(8).parse_example({"id": FixedLenFeature((), np.int64)})
    own, sums = [], []
    for batch in Loader(dataset, rows):
        assert batch["id"].shape == (8 * world_size,)
        own += batch["id"].addressable_data(0).tolist()
        sums.append(int(jax.jit(lambda ids: ids.sum())(batch["id"])))  # over all processes
    apart, shared = rank_under(rows), rank_under(columns)
    print(json.dumps([own, sums, [apart.rank, apart.world_size], [shared.rank, shared.world_size]]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
