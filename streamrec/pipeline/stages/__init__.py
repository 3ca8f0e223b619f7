"""Stages: what happens to elements, as frozen descriptions and steps without I/O. `engine/stage.py` has the rules."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "batch": ("Batch", "PaddedBatch", "RaggedBatch"),
        "bucket": ("Bucket",),
        "conform": ("Conform",),
        "ignore_errors": ("IgnoreErrors",),
        "padding": ("Padding",),
        "parse": ("Parse",),
        "rebatch": ("CyclicBatch",),
        "resample": ("Resample", "distribution"),
        "scan": ("Scan",),
        "select": ("Enumerate", "Filter", "Shard", "Skip", "Take", "TakeWhile"),
        "unbatch": ("Unbatch",),
        "unique": ("Unique",),
        "window": ("GroupByWindow", "Window"),
    },
)
