"""jax: a Dataset as global arrays under a sharding, some of them on their way to the devices ahead of their turn.

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    loader = streamrec.jax.Loader(dataset, NamedSharding(mesh, PartitionSpec("data")))
    for batch in loader: ...

Rules:
- Each process reads its own part of every global batch. Processes whose devices hold the same rows (the model is
  divided among them) read the same part: the sharding tells which do.
- What JAX would change without a word is an error: int64 that does not fit the int32 which it becomes without
  `jax_enable_x64`.

Needs `pip install 'streamrec[jax]'`. For Grain see `streamrec.grain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from streamrec import Dataset, RaggedTensor, SparseTensor
from streamrec.arguments import integer, name_type
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline.engine.ranks import Rank, rank_here
from streamrec.pipeline.loading import Epochs, convert_leaves

__all__ = ["Loader"]

for kind in (RaggedTensor, SparseTensor):  # so that what jit compiles takes them
    jax.tree_util.register_pytree_node(
        kind, lambda tensor: (tensor.parts, type(tensor)), lambda kind, parts: kind(*parts)
    )


class Loader(Epochs[Any]):
    """A Dataset's batches as JAX arrays: iterate it, once for each epoch.

    Args:
        dataset: What is read; its elements are this process's part of a batch. Where there are several processes, it
            must hold `distribute`; `even=` there and `drop_remainder=True` of `batch` give each as many batches, of
            one size.
        sharding: How devices share the rows of a global batch: a `jax.sharding.Sharding` for all columns, or one for
            each by its name. None puts whole batches on the default device.
        prefetch: How many batches are sent to the devices ahead of the one that is worked on.

    Returns:
        Iterating it gives elements of the dataset's structure, with `jax.Array` in the place of arrays: of shape `[n *
        parts, ...]` where this process has batches of `[n, ...]`. Strings become lists of `bytes`, on the host.

    Raises:
        ValueError: The columns' shardings assign the rows to the processes in different ways. While it runs: the
            sharding cannot divide a batch.
        OverflowError: While it runs: an integer that does not fit.

    Examples:
        >>> [batch] = Loader(Dataset.range(4).batch(4))
        >>> batch
        Array([0, 1, 2, 3], dtype=int32)
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        sharding: jax.sharding.Sharding | Mapping[str, jax.sharding.Sharding] | None = None,
        *,
        prefetch: int = 2,
    ) -> None:
        self._sharding = sharding
        ahead = integer("prefetch", prefetch, 0)
        super().__init__(dataset, self._place, lambda element: element, ahead, self._reader)

    def _reader(self) -> Rank:
        if jax.process_count() == 1:
            return rank_here()
        shardings = self._sharding.values() if isinstance(self._sharding, Mapping) else [self._sharding]
        ranks = {
            Rank(jax.process_index(), jax.process_count()) if one is None else rank_under(one) for one in shardings
        }
        if len(ranks) > 1:
            raise ValueError(
                f"the columns' shardings deal rows to processes in different ways: {sorted(map(str, ranks))}"
            )
        return ranks.pop()

    def _place(self, element: Any) -> Any:
        if self._sharding is not None:
            check_rows(element)
        return convert_leaves(element, self._array)

    def _array(self, array: npt.NDArray[Any], name: str) -> Any:
        check_fits(array, name)
        sharding = self._sharding
        if isinstance(sharding, Mapping):
            sharding = of_column(sharding, name)
        if sharding is None:
            return jax.device_put(array)
        if not array.ndim:
            raise ValueError(
                f"{where(name)}a single {array.dtype} has no rows to divide among devices: make batches, "
                "batch(..., drop_remainder=True)"
            )
        try:
            global_array: Any = jax.make_array_from_process_local_data  # it has no types
            return global_array(sharding, array)
        except (ValueError, ZeroDivisionError, IndexError, AssertionError) as error:
            raise ValueError(
                f"{where(name)}an array of shape {list(array.shape)} cannot be divided as {sharding} says: {error}. "
                "batch(..., drop_remainder=True) gives batches of one size"
            ) from error


def rank_under(sharding: jax.sharding.Sharding) -> Rank:
    """Which part of a global batch this process has: processes whose devices hold the same rows are one rank."""
    dimensions = len(getattr(sharding, "spec", ())) or 1
    shape = (len(sharding.device_set),) * dimensions
    rows: dict[int, set[tuple[int, int]]] = {}
    devices: Mapping[Any, Any] = sharding.devices_indices_map(shape)
    for device, index in devices.items():
        first, last, _ = index[0].indices(shape[0])
        rows.setdefault(device.process_index, set()).add((first, last))
    return rank_among(rows, jax.process_index())


def rank_among(rows: Mapping[int, set[tuple[int, int]]], process: int) -> Rank:
    """The rank of a process, by the rows that the devices of each process hold.

    Raises:
        ValueError: Some have rows in common, and not all.

    >>> rank_among({0: {(0, 4)}, 1: {(4, 8)}, 2: {(0, 4)}, 3: {(4, 8)}}, 3)
    Rank(rank=1, world_size=2)
    """
    parts: list[set[tuple[int, int]]] = []
    for _, held in sorted(rows.items()):
        if held not in parts:
            parts.append(held)
    if sum(map(len, parts)) != len(set().union(*parts)):
        raise ValueError(f"processes share some of their rows and not all of them, so no rank has a part alone: {rows}")
    return Rank(parts.index(rows[process]), len(parts))


def of_column(shardings: Mapping[str, jax.sharding.Sharding], name: str) -> jax.sharding.Sharding:
    """A column's sharding."""
    if name not in shardings:
        raise ValueError(f"column {name!r} has no sharding; there are those of {sorted(shardings)}")
    return shardings[name]


def check_rows(element: Any) -> None:
    """Refuses columns whose arrays have no row for each example: they cannot be divided."""
    columns = element.items() if isinstance(element, Mapping) else [("", element)]
    for name, column in columns:
        if isinstance(column, CompositeTensor):
            raise ValueError(
                f"{where(name)}{name_type(column)} cannot be divided among devices: pad it "
                "(FixedLenSequenceFeature(..., allow_missing=True), or padded_batch), or leave it out"
            )


def check_fits(array: npt.NDArray[Any], name: str) -> None:
    """Refuses integers that JAX would cut to 32 bits."""
    kept = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if array.dtype.kind not in "iu" or kept.itemsize >= array.dtype.itemsize or not array.size:
        return
    limits = np.iinfo(kept)
    least, most = array.min(), array.max()
    if least < limits.min or most > limits.max:
        raise OverflowError(
            f"{where(name)}values from {least:,} to {most:,} do not fit the {kept.name} that JAX makes of them: "
            'jax.config.update("jax_enable_x64", True), or map the column to what fits'
        )


def where(name: str) -> str:
    """The beginning of a message about a column."""
    return f"column {name!r}: " if name else ""
