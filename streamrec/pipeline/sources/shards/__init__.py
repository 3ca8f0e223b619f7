"""Shards.

`source.py` moves blocks, `interleave.py` plans whose turn it is, `distribute.py` which reader reads
what.
"""
