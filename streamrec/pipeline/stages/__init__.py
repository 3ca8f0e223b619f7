"""Stages: what happens to elements, as frozen descriptions and steps without I/O. `engine/stage.py` has the rules."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "batch": ("Batch", "PaddedBatch", "RaggedBatch"),
        "bucket": ("Bucket",),
        "padding": ("Padding",),
        "calling": ("Conform",),
        "parse": ("Parse",),
        "rebatch": ("CyclicBatch", "Unbatch"),
        "resample": ("Resample", "distribution"),
        "scan": ("Scan",),
        "select": ("Enumerate", "Filter", "IgnoreErrors", "Shard", "Skip", "Take", "TakeWhile", "Unique"),
        "window": ("GroupByWindow", "Window"),
    },
)
