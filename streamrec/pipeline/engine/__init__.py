"""Runs a description: the driver (`run.py`), its queue, memory budget, threads and positions."""
