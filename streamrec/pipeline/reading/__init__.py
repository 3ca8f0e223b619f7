"""Reading shards: `source.py` moves blocks, `interleave.py` plans whose turn it is, `dealing.py` who reads what."""
