"""A Dataset as global JAX arrays under a sharding; batches go to the devices ahead of their turn.

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    loader = streamrec.jax.Loader(dataset, NamedSharding(mesh, PartitionSpec("data")))
    for batch in loader: ...

Rules:
- Each process reads its own part of every global batch. Processes whose devices hold the same rows
  (the model is divided among them) read the same part; the loader sees this from the sharding.
- Without `jax_enable_x64` JAX converts int64 to int32. A value that does not fit is an error here.

Needs the extra `jax`. For Grain see `streamrec.grain`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from streamrec import Dataset, RaggedTensor, SparseTensor
from streamrec.arguments import check_integer, name_type
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline.engine.ranks import Rank, rank_here
from streamrec.pipeline.loading import Epochs, convert_leaves
from streamrec.pipeline.watching import Tokens, Watch

__all__ = ["Loader"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


for kind in (RaggedTensor, SparseTensor):  # so that what jit compiles takes them
    jax.tree_util.register_pytree_node(
        kind, lambda tensor: (tensor.parts, type(tensor)), lambda kind, parts: kind(*parts)
    )


class Loader(Epochs[Any]):
    """A Dataset's batches as JAX arrays: iterate it once for each epoch.

    Args:
        dataset: The Dataset to read; its elements are this process's part of a batch. With several
            processes, it must contain `distribute`. Use `distribute(even=)` and
            `batch(drop_remainder=True)` to give each process the same number of batches of the same
            size.
        sharding: How devices share the rows of a global batch: a `jax.sharding.Sharding` for all
            columns, or one for each column by its name. None puts whole batches on the default
            device.
        prefetch: The number of batches that are sent to the devices in advance.
        progress: Whether rank 0 shows progress, with samples per second, as `Dataset.iterate` does.
        trace: A file to write for the Perfetto trace viewer (ui.perfetto.dev). Of several ranks,
            and of epochs after the first, each has its own: "run-rank1-epoch2.json".
        tokens: What counts tokens, for `stats().tokens_per_second`: the name of a column whose
            values are added up (lengths, an attention mask), or a function of an element of the
            dataset, such as `lambda batch: batch["tokens"].size`.

    Returns:
        Iterating it returns elements of the dataset's structure, with `jax.Array` instead of
        arrays: of shape `[n * parts, ...]` if this process has batches of `[n, ...]`. Strings
            become lists of `bytes`, on the host.

    Raises:
        ValueError: The columns' shardings assign the rows to the processes in different ways.
            During iteration: the sharding cannot divide a batch.
        OverflowError: During iteration: an integer does not fit.

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
        progress: bool = False,
        trace: str | os.PathLike[str] | None = None,
        tokens: Tokens = None,
    ) -> None:
        self._sharding = sharding
        ahead = check_integer("prefetch", prefetch, 0)
        super().__init__(
            dataset,
            self._place,
            lambda element: element,
            ahead,
            self._reader,
            watch=Watch(progress=progress, trace=trace, tokens=tokens),
        )

    def _reader(self) -> Rank:
        if jax.process_count() == 1:
            return rank_here()
        sharding = self._sharding
        shardings = sharding.values() if isinstance(sharding, Mapping) else [sharding]
        ranks = {
            Rank(jax.process_index(), jax.process_count()) if one is None else rank_under(one)
            for one in shardings
        }
        if len(ranks) > 1:
            raise ValueError(
                "the columns' shardings assign rows to processes in different ways: "
                f"{sorted(map(str, ranks))}"
            )
        return ranks.pop()

    def _place(self, element: Any) -> Any:
        for name, column in element.items() if isinstance(element, Mapping) else [("", element)]:
            if self._sharding is not None and isinstance(column, CompositeTensor):
                raise ValueError(
                    f"{where(name)}{name_type(column)} cannot be divided among devices: pad it "
                    "(FixedLenSequenceFeature(..., allow_missing=True), or padded_batch), or leave "
                    "it out"
                )
        return convert_leaves(element, self._array)

    def _array(self, array: npt.NDArray[Any], name: str) -> Any:
        check_fits(array, name)
        sharding = self._sharding
        if isinstance(sharding, Mapping):
            if name not in sharding:
                raise ValueError(
                    f"column {name!r} has no sharding; there are those of {sorted(sharding)}"
                )
            sharding = sharding[name]
        if sharding is None:
            return jax.device_put(array)
        if not array.ndim:
            raise ValueError(
                f"{where(name)}a single {array.dtype} has no rows to divide among devices: make "
                "batches, batch(..., drop_remainder=True)"
            )
        try:
            global_array: Any = jax.make_array_from_process_local_data  # it has no types
            return global_array(sharding, array)
        except (ValueError, ZeroDivisionError, IndexError, AssertionError) as error:
            raise ValueError(
                f"{where(name)}an array of shape {list(array.shape)} cannot be divided as "
                f"{sharding} says: {error}. batch(..., drop_remainder=True) gives batches of one "
                "size"
            ) from error


def rank_under(sharding: jax.sharding.Sharding) -> Rank:
    """The part of a global batch that this process has.

    Processes whose devices hold the same rows are one rank.
    """
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

    >>> rank_among({0: {(0, 4)}, 1: {(4, 8)}, 2: {(0, 4)}, 3: {(4, 8)}}, 3)
    Rank(rank=1, world_size=2)
    """
    parts = list(dict.fromkeys(frozenset(held) for _, held in sorted(rows.items())))
    if sum(map(len, parts)) != len(frozenset().union(*parts)):
        raise ValueError(
            "processes share some of their rows but not all, so that no rank has rows of its own: "
            f"{rows}"
        )
    return Rank(parts.index(frozenset(rows[process])), len(parts))


def check_fits(array: npt.NDArray[Any], name: str) -> None:
    """Refuses integers that JAX would cut to 32 bits."""
    target = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if array.dtype.kind not in "iu" or target.itemsize >= array.dtype.itemsize or not array.size:
        return
    limits = np.iinfo(target)
    smallest = array.min()
    largest = array.max()
    if smallest < limits.min or largest > limits.max:
        raise OverflowError(
            f"{where(name)}values from {smallest:,} to {largest:,} do not fit the {target.name} "
            'that JAX makes of them: call jax.config.update("jax_enable_x64", True), or map the '
            "column to values that fit"
        )


def where(name: str) -> str:
    """The beginning of a message about a column."""
    return f"column {name!r}: " if name else ""
