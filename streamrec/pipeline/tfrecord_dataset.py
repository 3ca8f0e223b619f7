"""TFRecordDataset: a Dataset of the records of shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamrec.arguments import check_flag, check_integer
from streamrec.pipeline import sources
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.engine.description import AUTOTUNE, Chain
from streamrec.pipeline.engine.session import SourceStores
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.shards import Filenames, Portion, ReadOptions
from streamrec.shards.listing import to_names
from streamrec.storage import MAX_CONNECTIONS, RetryPolicy, check_source, locate
from streamrec.tfrecord import MAX_RECORD_BYTES, Loss
from streamrec.tracebacks import border

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


@border
def TFRecordDataset(  # noqa: N802 - TensorFlow's name, so that a user changes the import and nothing else
    filenames: Filenames,
    compression_type: str | None = None,
    buffer_size: int | None = None,
    num_parallel_reads: int | None = None,
    *,
    cycle_length: int | None = None,
    block_length: int = 1,
    deterministic: bool | None = None,
    verify: bool = True,
    on_error: str = "raise",
    max_skipped: int | None = None,
    on_loss: Callable[[Loss], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    max_connections: int = MAX_CONNECTIONS,
) -> Dataset[bytes]:
    """The records of TFRecord shards, in any store.

    Args:
        filenames: A URL or path, a pattern (`gs://b/train-*.tfrecord`, `{00000..00127}`), or a
            list; bytes or text. A manifest (`.json`) or an index (`.index`) means the shards that
            it names, below its own directory.
        compression_type: None to detect it (in TensorFlow, None means no compression); "", "GZIP",
            "ZLIB" or "ZSTD".
        buffer_size: How many bytes of a shard are framed at a time; None for the storage's optimum.
            Of local files, up to eight such blocks are read and framed together.
        num_parallel_reads: How many shards are interleaved, in TensorFlow's order; None for one
            after the other; AUTOTUNE for 16 on all machines, since the order depends on it. How
            many connections read them, and how far ahead, is always tuned automatically.
        cycle_length: The same under `interleave`'s name.
        block_length: How many records one shard gives before the next one's turn.
        deterministic: False to take the blocks that arrive first; None follows `with_options`.
        verify: Whether the CRC32C of each record is checked; those of lengths always are.
        on_error: How damage in a shard is handled: "raise", "skip_record", "resync" or
            "skip_shard"; see `open_shard`. A resumed run leaves out the same records again.
        max_skipped: How many losses of one shard are allowed; the next one is an error. None for
            any number.
        on_loss: Called with each Loss, on the thread that fetches: it must not block. Losses are
            also logged.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint).
        filesystem: Your own fsspec filesystem, instead of one made from `storage_options`.
        retry: What happens when the network fails; see RetryPolicy.
        max_record_bytes: A longer record counts as corruption. By default, any length that the
            shard can hold is accepted: a record takes as much memory as it has bytes.
        max_connections: The largest number of concurrent requests for ranges of large shards; the
            number is tuned automatically. Each open shard has one more request. More than 32 are
            useful if one process reads more than about 2 GB/s.

    Returns:
        A Dataset of `bytes`; `.batch(n)` of it gives `Frames`, which parse without an object per
        record.

    Raises:
        ValueError: An argument is out of range. Errors of files are raised when it is iterated.
    """
    retry = check_source(storage_options, filesystem, retry)
    reads = check_integer("num_parallel_reads", num_parallel_reads, AUTOTUNE, none=True)
    cycle = check_integer("cycle_length", cycle_length, AUTOTUNE, none=True)
    for name, value in (("num_parallel_reads", reads), ("cycle_length", cycle)):
        if value == 0:
            raise ValueError(f"{name} is 0: it must be 1 or more, AUTOTUNE, or None")
    cycle = cycle or reads or 1
    # Names become URLs now: a later change of the working directory must not change the data set.
    names = tuple(locate(name, filesystem) for name in to_names(filenames))
    options = ReadOptions(
        compression_type=compression_type,
        verify=check_flag("verify", verify),
        max_record_bytes=check_integer("max_record_bytes", max_record_bytes, 1),
        block_bytes=check_integer("buffer_size", buffer_size, 1, none=True),
        on_error=on_error,
        max_skipped=max_skipped,
        on_loss=on_loss,
    )
    stores = SourceStores(
        storage_options, filesystem, retry, check_integer("max_connections", max_connections, 1)
    )
    plan = Plan.of(cycle, block_length, deterministic)
    return Dataset(Chain(Shards(filenames=names, plan=plan, options=options, stores=stores)))


def read_portions(portions: Sequence[Portion], **reading: Any) -> Dataset[bytes]:
    """The records of parts of shards, in order, without patterns or listings.

    Args:
        portions: The parts. Each shard is compared with what its portion expects.
        reading: Options for reading; see `TFRecordDataset`.
    """
    shards = TFRecordDataset((), **reading).chain.source
    assert isinstance(shards, Shards)
    names = tuple(dict.fromkeys(portion.path for portion in portions))
    return Dataset(Chain(sources.Portions(replace(shards, filenames=names), tuple(portions))))


def read_counted(portions: Sequence[Portion], **reading: Any) -> Dataset[bytes]:
    """The records of parts of shards whose numbers of records are known.

    `distribute` divides them by these numbers.

    Args:
        portions: The parts; each has an end, or an expected number of records.
        reading: Options for reading; see `TFRecordDataset`.
    """
    shards = TFRecordDataset((), **reading).chain.source
    assert isinstance(shards, Shards)
    counted = sources.CountedShards(
        filenames=tuple(dict.fromkeys(portion.path for portion in portions)),
        plan=shards.plan,
        options=shards.options,
        stores=shards.stores,
        portions=tuple(portions),
    )
    return Dataset(Chain(counted))
