"""The sink: what a run gives, written into shards."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "records": ("Encoder",),
        "target": ("target_of",),
        "write": ("WriteProgress", "write_shards"),
    },
)
