"""Several calls of a function at once: `parallel_map.py` runs them, `in_flight.py` and `autotune.py` decide."""
