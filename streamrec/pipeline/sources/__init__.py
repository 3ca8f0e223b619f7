"""Sources: where elements come from, and sources that run other chains: again, ahead, side by side, shuffled, kept."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "cache.cache_file": ("CacheFile",),
        "cache.cache": ("Cache", "Saved", "Saving"),
        "combine.interleave": ("Interleaved",),
        "combine.sample": ("Choose",),
        "combine.zip": ("Zip",),
        "chains": ("Concatenate", "Prefetch", "Repeat"),
        "endless": ("Choices", "Counter", "Random", "weights_of"),
        "generator": ("Generated",),
        "global_shuffle.source": ("GlobalShuffle",),
        "in_memory": ("Range", "Slices"),
        "list_files": ("Names",),
        "parallel_map.source": ("ParallelMap",),
        "shards.distribute": ("Distribute", "Portions"),
        "shuffle.shuffle": ("Shuffle",),
    },
)
