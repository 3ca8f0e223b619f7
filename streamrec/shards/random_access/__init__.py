"""Any record of an indexed data set: planned into ranges, fetched, and given to async and sync callers."""
