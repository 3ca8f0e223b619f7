from streamrec.pipeline.stages.batch import Batch, PaddedBatch, RaggedBatch
from streamrec.pipeline.stages.bucket import Bucket
from streamrec.pipeline.stages.padding import Padding
from streamrec.pipeline.stages.parse import Parse
from streamrec.pipeline.stages.rebatch import CyclicBatch, Unbatch
from streamrec.pipeline.stages.resample import Resample, distribution
from streamrec.pipeline.stages.scan import Scan
from streamrec.pipeline.stages.select import (
    Enumerate,
    Filter,
    IgnoreErrors,
    Shard,
    Skip,
    Take,
    TakeWhile,
    Unique,
)
from streamrec.pipeline.stages.window import GroupByWindow, Window

__all__ = [
    "Batch",
    "Bucket",
    "CyclicBatch",
    "Enumerate",
    "Filter",
    "GroupByWindow",
    "IgnoreErrors",
    "PaddedBatch",
    "Padding",
    "Parse",
    "RaggedBatch",
    "Resample",
    "Scan",
    "Shard",
    "Skip",
    "Take",
    "TakeWhile",
    "Unbatch",
    "Unique",
    "Window",
    "distribution",
]
