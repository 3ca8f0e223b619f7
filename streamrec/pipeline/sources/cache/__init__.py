"""The cache: `cache.py` describes and runs it, `cache_file.py` keeps it in a file."""
