from streamrec.pipeline.sources.cache.cache import Cache, Saved, Saving
from streamrec.pipeline.sources.cache.cache_file import CacheFile
from streamrec.pipeline.sources.chains import Concatenate, Prefetch, Repeat
from streamrec.pipeline.sources.combine.interleave import Interleaved
from streamrec.pipeline.sources.combine.sample import Choose
from streamrec.pipeline.sources.combine.zip import Zip
from streamrec.pipeline.sources.generator import Generated
from streamrec.pipeline.sources.global_shuffle.source import GlobalShuffle
from streamrec.pipeline.sources.in_memory import Choices, Counter, Random, Range, Slices, weights_of
from streamrec.pipeline.sources.list_files import Names
from streamrec.pipeline.sources.parallel_map.source import ParallelMap
from streamrec.pipeline.sources.shards.counted import CountedShards
from streamrec.pipeline.sources.shards.distribute import Distribute, Portions
from streamrec.pipeline.sources.shuffle.shuffle import Shuffle

__all__ = [
    "Cache",
    "CacheFile",
    "Choices",
    "Choose",
    "Concatenate",
    "CountedShards",
    "Counter",
    "Distribute",
    "Generated",
    "GlobalShuffle",
    "Interleaved",
    "Names",
    "ParallelMap",
    "Portions",
    "Prefetch",
    "Random",
    "Range",
    "Repeat",
    "Saved",
    "Saving",
    "Shuffle",
    "Slices",
    "Zip",
    "weights_of",
]
